//! Counts that determine the speed: Redis commands and allocations. Unlike times, they are the same
//! on a busy machine, so that small regressions are found.

mod allocations;
mod commands;
mod kept;
mod locks;
