//! Mutations of the revocation of leases.

use super::{Mutant, mutant};

pub const MUTANTS_OF_REVOKING: [Mutant; 15] = [
    mutant(
        "a revoked lease is renewed on",
        "if own ~= '0' then left = math.min(left, own) end",
        "left = own",
    ),
    mutant(
        "a later revocation gives more time",
        "left = math.min(left, own)",
        "left = left",
    ),
    mutant(
        "every revocation is unsafe",
        "if force == '!' then",
        "if true then",
    ),
    mutant(
        "no revocation is unsafe",
        "if force == '!' then",
        "if false then",
    ),
    mutant(
        "an end is not notified",
        "hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3] = '!', text, h.owner",
        "",
    ),
    mutant(
        "a revoked end is reported as an expiry",
        "and 'REVOKED' or is_cut",
        "and 'EXPIRED' or is_cut",
    ),
    mutant(
        "the end by max_hold is reported as an expiry",
        "is_cut and 'MAXHOLD' or",
        "false and 'MAXHOLD' or",
    ),
    mutant(
        "an end in recovery is not notified",
        "'RECOVERING', now, closed, hand_offs }",
        "'RECOVERING', now, closed }",
    ),
    mutant("looking revokes", "if force ~= '?' then", "if true then"),
    mutant(
        "a hand-off that is not claimed is taken away",
        "if not h or h.position then return",
        "if not h then return",
    ),
    mutant(
        "the reason is lost at the end",
        "field('k:' .. h.lease) or nil",
        "nil",
    ),
    mutant(
        "a lock_delay is forgotten by the next revocation",
        "or has_flag(h, DELAYS_ON_RELEASE)) and DELAYS_ON_RELEASE",
        ") and DELAYS_ON_RELEASE",
    ),
    mutant(
        "what was released closes nothing",
        "rare().close_after(h, has_flag(h, DELAYS_ON_RELEASE) and now)",
        "rare().close_after(h, nil)",
    ),
    mutant(
        "a revoked lease is not of several grants",
        "flags = flags % 2 + REVOKED",
        "flags = REVOKED",
    ),
    mutant(
        "the queue does not move after a revocation",
        "    advance()\n    if notify ==",
        "    if notify ==",
    ),
];
