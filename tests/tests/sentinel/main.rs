//! Brokers on Redis with Sentinel, which replaces the master.

mod loads {
    mod fail_over;
    mod held_leases;
    mod lagging_replica;
    mod recovery_time;
}
mod waits {
    mod settings;
    mod topology;
    mod two_masters;
}

mod tls;
