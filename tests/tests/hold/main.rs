//! Lease streams.

mod alone {
    mod connection;
    mod crash;
    mod crowd;
}
mod loads {
    mod faults;
    mod killed;
    mod several;
}

mod drain;
mod hand_off;
mod moved;
mod store_down;
mod stream;
mod swallowed;
mod waits;
