//! The Rust client.

mod alone {
    mod cancelled;
    mod pause;
    mod suspend;
}
mod loads {
    mod rolling;
    mod swallowed;
}

mod beats;
mod calls;
mod credentials;
mod kinds;
mod losses;
mod tls;
mod trace;
