//! Mistakes in runs of a script for several locks.

use super::{Mutant, mutant};

/// The mistakes.
pub const MUTANTS_OF_SEVERAL: [Mutant; 3] = [
    mutant(
        "one lock of several is run for all",
        "begin(KEYS[i == 1 and 1 or i + 1])",
        "begin(lock)",
    ),
    mutant(
        "the holders of one lock are those of the next",
        "events, held, moved = {}, {}, false, 0, {}, {}, {}, ''",
        "events, moved = {}, {}, false, 0, {}, {}, ''\n  held = held or {}",
    ),
    mutant(
        "what changed of one lock changes the next",
        "  known, changed, touched_queue, more, hand_offs, events, held",
        "  local _\n  changed = changed or {}\n  known, _, touched_queue, more, hand_offs, events, held",
    ),
];
