//! Streams that are opened and then reset, by the client or by the broker. A flood of them closes
//! its connection.

use leasehold_tests::{
    broker::process::BrokerOptions,
    net::{
        flood::{ACQUIRE, Flood, check_floods, no_prefix, stream_id},
        raw_http2::frames::{call_headers, reset, window_update},
    },
};

const RESETS: [Flood; 4] = [
    Flood {
        name: "rapid reset",
        prefix: no_prefix,
        frame_bytes: |number| {
            [
                call_headers(stream_id(number), ACQUIRE, 0),
                reset(stream_id(number)),
            ]
            .concat()
        },
        accepted_frames: 10,
        rejected_frames: 1_000,
    },
    Flood {
        name: "windows opened by nothing",
        prefix: no_prefix,
        frame_bytes: |number| {
            [
                call_headers(stream_id(number), ACQUIRE, 0),
                window_update(stream_id(number), 0),
            ]
            .concat()
        },
        accepted_frames: 0,
        rejected_frames: 2_000,
    },
    Flood {
        name: "resets made by windows without end",
        prefix: no_prefix,
        frame_bytes: |number| {
            let (stream, most) = (stream_id(number), i32::MAX.cast_unsigned());
            [
                call_headers(stream, ACQUIRE, 0),
                window_update(stream, most),
            ]
            .concat()
        },
        accepted_frames: 50,
        rejected_frames: 2_000,
    },
    Flood {
        name: "more calls than allowed",
        prefix: no_prefix,
        frame_bytes: |number| call_headers(stream_id(number), ACQUIRE, 0),
        accepted_frames: 90,
        rejected_frames: 4_000,
    },
];

/// Runs alone: it measures latency of other clients during floods of resets.
#[tokio::test]
async fn floods_of_resets_are_cut() {
    check_floods(&RESETS, BrokerOptions::default()).await;
}
