//! One-line mistakes in the scripts, each of which the sequences must find.

/// A mistake: in every script, the text that is right and what stands there instead.
pub struct Mutant {
    /// What it does wrong.
    pub name: &'static str,
    /// The right text.
    pub right: &'static str,
    /// The wrong one.
    pub wrong: &'static str,
}

const fn mutant(name: &'static str, right: &'static str, wrong: &'static str) -> Mutant {
    Mutant { name, right, wrong }
}

/// The mistakes.
pub const MUTANTS: [Mutant; 20] = [
    mutant(
        "anybody releases",
        "if holder and holder.lease == lease then\n  if holder.token == token then",
        "if holder then\n  if true then",
    ),
    mutant(
        "a renewal does not compare the token",
        "holder.lease == lease and holder.token == token then\n  extend(",
        "holder.lease == lease then\n  extend(",
    ),
    mutant(
        "tokens follow the clock back",
        "fence = math.max(fence + 1, now_us)",
        "fence = now_us",
    ),
    mutant(
        "a newcomer passes the line",
        "  advance()\n  if not holder and more == 0",
        "  if not holder and more == 0",
    ),
    mutant(
        "any era will do",
        "closed_ms = id == era_id and",
        "closed_ms = id and",
    ),
    mutant(
        "tombstones are not read",
        "if known == attempt and tonumber(until_ms) > now then return",
        "if false then return",
    ),
    mutant(
        "a claim leaves the grant provisional",
        "    holder.place = nil\n",
        "",
    ),
    mutant(
        "an unclaimed waiter falls back to the tail",
        "write_waiter(holder.place, w)",
        "drop(holder.place, w.request) join(w)",
    ),
    mutant(
        "a lease lives a millisecond longer",
        "holder.expires > now then return false",
        "holder.expires >= now then return false",
    ),
    mutant(
        "a cancel takes all attempts back",
        "if left ~= '' then",
        "if false then",
    ),
    mutant(
        "silence is not noticed",
        "not gone and silent <= SILENT and",
        "not gone and",
    ),
    mutant(
        "silent brokers keep their place for ever",
        "silent > 2 * SILENT",
        "false",
    ),
    mutant(
        "a stall counts as silence",
        "(gap > STALL and 0 or gap)",
        "gap",
    ),
    mutant(
        "a renewal shortens",
        "math.max(holder.expires, now + expiry(holder.ttl))",
        "now + expiry(holder.ttl)",
    ),
    mutant(
        "late commands are executed",
        "if now > not_after then",
        "if false then",
    ),
    mutant(
        "a waiter belongs to its first attempt's broker",
        "return string.sub(attempts, -16)",
        "return string.sub(attempts, 15, 30)",
    ),
    mutant(
        "the line has one place too many",
        "queue.n >= cap",
        "queue.n > cap",
    ),
    mutant(
        "an unclaimed waiter is not passed over",
        "and touched_ms >= w.passed then",
        "then",
    ),
    mutant(
        "a hand-off to another broker is final",
        "    grant(w, place)",
        "    drop(place, w.request) grant(w)",
    ),
    mutant(
        "arguments are not compared",
        "if w.lease ~= lease or w.arguments ~= arguments then",
        "if w.lease ~= lease then",
    ),
];
