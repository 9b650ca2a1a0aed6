//! Mutations of the limit of spans.

use super::{Mutant, mutant};

pub const MUTANTS_OF_SPANS: [Mutant; 20] = [
    mutant(
        "a limit is raised before its time",
        "left > 0 and math.min(before, after) or after",
        "after",
    ),
    mutant(
        "a limit is not lowered before its time",
        "left > 0 and math.min(before, after) or after",
        "left > 0 and before or after",
    ),
    mutant(
        "a limit below the least one counts",
        "or after, SPAN_MIN_MS)",
        "or after, 0)",
    ),
    mutant(
        "a store without an era has no limit",
        "era_text or '|span:0:0:0'",
        "era_text or ''",
    ),
    mutant(
        "a rejected command is repeated before the limit changes",
        "span_retry_ms = left > 0 and left or SPAN_RETRY_MS",
        "span_retry_ms = SPAN_RETRY_MS",
    ),
    mutant(
        "a rejection loses the lease ends that it found",
        "span_retry_ms, hand_offs }",
        "span_retry_ms }",
    ),
    mutant(
        "a rejection does not record the lease ends that it found",
        "  if next(changed) then save() end\n  return { 'SPAN'",
        "  return { 'SPAN'",
    ),
    mutant(
        "the lock_delay is no part of the span",
        "return expiry(w.ttl) + delay, delay",
        "return expiry(w.ttl), 0",
    ),
    mutant(
        "a grant reports the span of its cut validity",
        "    (span_of(h))\n",
        "    expiry(effective_ttl(h))\n",
    ),
    mutant(
        "a validity is a millisecond shorter than necessary",
        "math.floor((rest + 1) / (EXPIRY_DIVISOR + 1))",
        "math.ceil((rest + 1) / (EXPIRY_DIVISOR + 1))",
    ),
    mutant(
        "a short ttl is rejected like one of a second",
        "math.min(ttl, CUT_TTL_MIN_MS)",
        "CUT_TTL_MIN_MS",
    ),
    mutant(
        "a validity is cut below a second",
        "math.max(longest, least)",
        "longest",
    ),
    mutant(
        "a grant stores the cut validity as its ttl",
        "token = changed.f, ttl = w.ttl,",
        "token = changed.f, ttl = cut_ttl(w),",
    ),
    mutant(
        "a repeat ignores the limit of spans",
        "    if not fits_span(h) then return rare().span_rejection() end\n    rare().attach_to",
        "    rare().attach_to",
    ),
    mutant(
        "an entry ignores the limit of spans",
        "    if not fits_span(h) then return rare().span_rejection() end\n    if waits",
        "    if waits",
    ),
    mutant(
        "a waiter keeps its position over the limit of spans",
        "    if not fits_span(w) then return rare().span_rejection() end\n    if wait > 0",
        "    if wait > 0",
    ),
    mutant(
        "a new call ignores the limit of spans",
        "  if not fits_span(w) then return rare().span_rejection() end\n  -- advance",
        "  -- advance",
    ),
    mutant(
        "a renewal ignores the limit of spans",
        "  if not fits_span(h) then return rare().span_rejection() end\n  if is_delivered",
        "  if is_delivered",
    ),
    mutant(
        "a renewal is rejected for its span after max_hold",
        "  if not effective_ttl(h) then return reply(rare().end_reason(h)) end\n  if not fits_span(h) then return rare().span_rejection() end\n  if is_delivered",
        "  if not fits_span(h) then return rare().span_rejection() end\n  if not effective_ttl(h) then return reply(rare().end_reason(h)) end\n  if is_delivered",
    ),
    mutant(
        "a waiter over the limit of spans is handed the lock",
        " and fits_span(w)",
        "",
    ),
];
