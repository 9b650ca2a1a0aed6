//! Lease streams: attachment, heartbeats, waits and hand-offs, under faults and load.

mod alone {
    mod crowd;
    mod overload;
}
mod loads {
    mod crash;
    mod faults;
    mod killed;
    mod several;
}
mod waits {
    mod hand_off;
    mod moved;
    mod store_down;
    mod swallowed;
    mod waiting;
}

mod connection;
mod drain;
mod stream;
