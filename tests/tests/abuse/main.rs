//! Clients that misbehave: floods, oversized and unfinished messages, connections that stall.

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
    mod handshakes;
    mod places;
}
