//! Exclusive locks on a quorum of independent Redis servers.

mod alone {
    mod listing;
}
mod loads {
    mod contention;
    mod faults;
}

mod api;
mod clocks;
mod copies;
mod line;
mod losses;
mod lost_nodes;
mod tokens;
