//! Brokers on a Redis Cluster.

mod alone {
    mod lost_master;
}
mod loads {
    mod changes;
    mod eras;
    mod hand_off;
    mod messages;
    mod repeats;
    mod stalled;
}
mod waits {
    mod topology;
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
