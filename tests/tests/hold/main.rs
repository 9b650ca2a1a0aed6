//! Lease streams.

mod alone {
    mod crash;
    mod crowd;
}
mod loads {
    mod connection;
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
