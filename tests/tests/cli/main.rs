//! The command line `leasehold`.

mod loads {
    mod run_faults;
}

mod commands;
mod doors;
mod errors;
mod lease;
mod operate;
mod run;
mod run_ends;
mod terminal;
mod waiting;
