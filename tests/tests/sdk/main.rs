//! Tests of the Rust client.

mod loads {
    mod cancelled;
    mod rolling;
    mod swallowed;
}
mod waits {
    mod beats;
    mod losses;
    mod pause;
    mod suspend;
}

mod calls;
mod credentials;
mod kinds;
mod tls;
mod trace;
