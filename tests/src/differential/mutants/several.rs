//! Mutations of script runs for several locks.

use super::{Mutant, mutant};

pub const MUTANTS_OF_SEVERAL: [Mutant; 3] = [
    mutant(
        "one lock of several is run for all",
        "KEYS[i == 1 and 1 or i + 1]",
        "KEYS[1]",
    ),
    mutant(
        "the holders of one lock are those of the next",
        "events, holder_cache, moved = {}, {}, false, 0, {}, nil, {}, ''",
        "events, moved = {}, {}, false, 0, {}, nil, ''\n  holder_cache = holder_cache or {}",
    ),
    mutant(
        "what changed of one lock changes the next",
        "  known, changed, is_queue_touched, more, hand_offs, events, holder_cache",
        "  local _\n  changed = changed or {}\n  known, _, is_queue_touched, more, hand_offs, events, holder_cache",
    ),
];
