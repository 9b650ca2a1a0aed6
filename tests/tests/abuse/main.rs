//! Misbehaving clients: floods, oversized and incomplete messages, and stalled connections.

mod alone {
    mod bombs;
    mod floods;
    mod healthy;
    mod many;
    mod resets;
    mod slow;
    mod streams;
    mod windows;
}

mod loads {
    mod honest;
    mod strangers;
}

mod waits {
    mod connection_limits;
    mod handshakes;
}
