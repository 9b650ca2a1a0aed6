//! Tests of the command line program `leasehold`.

mod loads {
    mod run_faults;
}
mod waits {
    mod doors;
    mod lease;
}

mod closure;
mod commands;
mod errors;
mod hidden;
mod limit;
mod operate;
mod run;
mod run_ends;
mod terminal;
mod waiting;
