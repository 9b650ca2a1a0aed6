//! Frames that ask for nothing: a flood of them ends its connection, and nobody else notices.

use leasehold_tests::{
    broker_process::BrokerOptions,
    flood::{Flood, nothing, open, suffer},
    raw_http2::frames::{
        ACK, PING, SETTINGS, UNKNOWN, frame, go_away, ping, priority, settings, window_update,
    },
};

const IDLE: [Flood; 9] = [
    Flood {
        name: "PING",
        before: nothing,
        unit: |_| ping(),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "answers to PING",
        before: nothing,
        unit: |_| frame(PING, ACK, 0, b"I am not"),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "SETTINGS",
        before: nothing,
        unit: |_| settings(&[]),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "answers to SETTINGS",
        before: nothing,
        unit: |_| frame(SETTINGS, ACK, 0, &[]),
        few: 0,
        many: 10_000,
    },
    Flood {
        name: "PRIORITY",
        before: nothing,
        unit: |_| priority(1, 3),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "WINDOW_UPDATE of the connection",
        before: nothing,
        unit: |_| window_update(0, 1),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "WINDOW_UPDATE of a stream",
        before: open,
        unit: |_| window_update(1, 1),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "an unknown kind",
        before: nothing,
        unit: |_| frame(UNKNOWN, 0, 0, b"nonsense"),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "GOAWAY while a call is open",
        before: open,
        unit: |_| go_away(),
        few: 50,
        many: 10_000,
    },
];

/// Runs alone: it measures latency of other clients during floods of frames.
#[tokio::test]
async fn floods_of_frames_that_ask_for_nothing_are_cut() {
    suffer(&IDLE, BrokerOptions::default()).await;
}
