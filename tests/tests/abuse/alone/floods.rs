//! Floods of frames without work for the broker. A flood closes its connection and does not affect
//! control clients.

use leasehold_tests::{
    broker::process::BrokerOptions,
    net::{
        flood::{Flood, check_floods, no_prefix, open_hold_call},
        raw_http2::frames::{
            ACK, PING, SETTINGS, UNKNOWN, frame, go_away, ping, priority, settings, window_update,
        },
    },
};

const IDLE: [Flood; 9] = [
    Flood {
        name: "PING",
        prefix: no_prefix,
        frame_bytes: |_| ping(),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "answers to PING",
        prefix: no_prefix,
        frame_bytes: |_| frame(PING, ACK, 0, b"I am not"),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "SETTINGS",
        prefix: no_prefix,
        frame_bytes: |_| settings(&[]),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "answers to SETTINGS",
        prefix: no_prefix,
        frame_bytes: |_| frame(SETTINGS, ACK, 0, &[]),
        accepted_frames: 0,
        rejected_frames: 10_000,
    },
    Flood {
        name: "PRIORITY",
        prefix: no_prefix,
        frame_bytes: |_| priority(1, 3),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "WINDOW_UPDATE of the connection",
        prefix: no_prefix,
        frame_bytes: |_| window_update(0, 1),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "WINDOW_UPDATE of a stream",
        prefix: open_hold_call,
        frame_bytes: |_| window_update(1, 1),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "an unknown kind",
        prefix: no_prefix,
        frame_bytes: |_| frame(UNKNOWN, 0, 0, b"nonsense"),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "GOAWAY while a call is open",
        prefix: open_hold_call,
        frame_bytes: |_| go_away(),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
];

/// Runs alone: it measures latency of other clients during floods of frames.
#[tokio::test]
async fn floods_of_useless_frames_close_the_connection() {
    check_floods(&IDLE, BrokerOptions::default()).await;
}
