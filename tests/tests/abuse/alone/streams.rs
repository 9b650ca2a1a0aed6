//! Floods on one stream. Each flood closes its connection and does not affect control clients.

use leasehold_tests::{
    broker::process::BrokerOptions,
    net::{
        flood::{Flood, HOLD, check_floods, no_prefix, open_hold_call, stream_id},
        raw_http2::frames::{
            CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, call_header_block, frame, header,
            reset,
        },
    },
};

const STREAMS: [Flood; 7] = [
    Flood {
        name: "resets of a stream that is over",
        prefix: || [open_hold_call(), reset(1)].concat(),
        frame_bytes: |_| reset(1),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "resets of streams that never were",
        prefix: no_prefix,
        frame_bytes: |number| reset(stream_id(number)),
        accepted_frames: 0,
        rejected_frames: 1_000,
    },
    Flood {
        name: "DATA without a byte",
        prefix: open_hold_call,
        frame_bytes: |_| frame(DATA, 0, 1, &[]),
        accepted_frames: 50,
        rejected_frames: 1_000,
    },
    Flood {
        name: "DATA of one byte",
        prefix: open_hold_call,
        frame_bytes: |_| frame(DATA, 0, 1, &[0]),
        accepted_frames: 50,
        rejected_frames: 10_000,
    },
    Flood {
        name: "CONTINUATION without a byte",
        prefix: || frame(HEADERS, 0, 1, &call_header_block(HOLD)),
        frame_bytes: |_| frame(CONTINUATION, 0, 1, &[]),
        accepted_frames: 0,
        rejected_frames: 10_000,
    },
    Flood {
        name: "CONTINUATION with headers",
        prefix: || frame(HEADERS, 0, 1, &call_header_block(HOLD)),
        frame_bytes: |_| frame(CONTINUATION, 0, 1, &header("more", &"x".repeat(10_000))),
        accepted_frames: 0,
        rejected_frames: 1_000,
    },
    Flood {
        name: "trailers again and again",
        prefix: open_hold_call,
        frame_bytes: |_| frame(HEADERS, END_STREAM | END_HEADERS, 1, &header("late", "1")),
        accepted_frames: 0,
        rejected_frames: 10_000,
    },
];

/// Runs alone: it measures latency of other clients during floods on a stream.
#[tokio::test]
async fn floods_on_a_stream_are_cut() {
    check_floods(&STREAMS, BrokerOptions::default()).await;
}
