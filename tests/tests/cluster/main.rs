//! Brokers on a Redis Cluster.

mod alone {
    mod eras;
    mod lost_master;
    mod messages;
}
mod loads {
    mod changes;
    mod hand_off;
    mod repeats;
    mod stalled;
}

mod access;
mod checks;
mod gate;
mod half_moved;
mod listing;
mod migration;
mod names;
mod store;
mod tls;
mod topology;
