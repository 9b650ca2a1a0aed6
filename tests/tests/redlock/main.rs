//! Exclusive locks on a quorum of independent Redis servers.

mod loads {
    mod contention;
    mod faults;
}
mod waits {
    mod clocks;
    mod losses;
    mod lost_nodes;
    mod tokens;
}

mod api;
mod copies;
mod listing;
mod queue;
