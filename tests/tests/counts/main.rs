//! Counts that determine the speed: Redis commands, instructions of Redis, and allocations. Unlike
//! times, they are the same on a busy machine, so that small regressions are found.

mod loads {
    mod instructions;
}

mod allocations;
mod commands;
mod kept;
mod locks;
