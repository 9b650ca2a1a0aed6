//! Brokers on a master that Sentinel replaces.

mod loads {
    mod fail_over;
}
mod waits {
    mod topology;
}

mod tls;
