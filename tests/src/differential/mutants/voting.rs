//! Mutations of the votes of a RedLock store.

use super::{Mutant, mutant};

pub const MUTANTS_OF_VOTING: [Mutant; 10] = [
    mutant(
        "a renewal by the client is not recorded",
        "if is_delivered == '1' then rare().add_unlisted_attempt(h) end",
        "",
    ),
    mutant(
        "a node grants its newest token again",
        "return proposed <= last_token or",
        "return proposed < last_token or",
    ),
    mutant(
        "a token far behind the clock is accepted",
        "proposed <= last_token or proposed < now_us - max_clock_skew * 1000 end",
        "proposed <= last_token end",
    ),
    mutant(
        "a raise lowers the token",
        "h.entries ~= '' or is_behind() or is_ahead() then return end",
        "h.entries ~= '' or is_ahead() then return end",
    ),
    mutant(
        "a token is raised in the first round",
        "if not may_raise_token or e ~= h",
        "if e ~= h",
    ),
    mutant(
        "the token of a lease that was entered again is raised",
        "e ~= h or h.entries ~= '' or is_behind()",
        "is_behind()",
    ),
    mutant(
        "a node that may have lost data votes for a repeat",
        "if proposed and ms_until_grants() ~= 0 then return",
        "if false then return",
    ),
    mutant(
        "a node grants its own token",
        "  if token then last_token = token end\n",
        "",
    ),
    mutant(
        "brokers stay subscribed after a release",
        "  changed.n = false\n",
        "",
    ),
    mutant(
        "a broker with other waiters is not subscribed",
        "  if proposed and notify == '2' then rare().subscribe_release() end\n",
        "",
    ),
];
