//! Tests of brokers on a Redis Cluster.

mod alone {
    mod lost_master;
}
mod loads {
    mod changes;
    mod eras;
    mod half_moved;
    mod hand_off;
    mod messages;
    mod migration;
    mod repeats;
    mod stalled;
    mod store;
}
mod waits {
    mod topology;
}

mod access;
mod checks;
mod gate;
mod listing;
mod names;
mod tls;
