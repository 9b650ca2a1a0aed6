//! Exclusive locks on a quorum of independent Redis servers.

mod loads {
    mod contention;
    mod faults;
    mod listing;
}

mod api;
mod clocks;
mod copies;
mod line;
mod losses;
mod lost_nodes;
mod tokens;
