//! The Rust client.

mod loads {
    mod cancelled;
    mod pause;
    mod rolling;
    mod suspend;
    mod swallowed;
}

mod beats;
mod calls;
mod credentials;
mod kinds;
mod losses;
mod tls;
mod trace;
