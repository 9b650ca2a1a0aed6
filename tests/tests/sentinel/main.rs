//! Brokers on a master that Sentinel replaces.

mod loads {
    mod fail_over;
}
mod waits {
    mod settings;
    mod topology;
    mod two_masters;
}

mod tls;
