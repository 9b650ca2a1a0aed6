//! Floods on one stream: each ends its connection, and nobody else notices.

use leasehold_tests::{
    broker_process::BrokerOptions,
    flood::{Flood, HOLD, nothing, open, stream, suffer},
    raw_http2::frames::{
        CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, call_block, frame, header, reset,
    },
};

const STREAMS: [Flood; 7] = [
    Flood {
        name: "resets of a stream that is over",
        before: || [open(), reset(1)].concat(),
        unit: |_| reset(1),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "resets of streams that never were",
        before: nothing,
        unit: |number| reset(stream(number)),
        few: 0,
        many: 1_000,
    },
    Flood {
        name: "DATA without a byte",
        before: open,
        unit: |_| frame(DATA, 0, 1, &[]),
        few: 50,
        many: 1_000,
    },
    Flood {
        name: "DATA of one byte",
        before: open,
        unit: |_| frame(DATA, 0, 1, &[0]),
        few: 50,
        many: 10_000,
    },
    Flood {
        name: "CONTINUATION without a byte",
        before: || frame(HEADERS, 0, 1, &call_block(HOLD)),
        unit: |_| frame(CONTINUATION, 0, 1, &[]),
        few: 0,
        many: 10_000,
    },
    Flood {
        name: "CONTINUATION with headers",
        before: || frame(HEADERS, 0, 1, &call_block(HOLD)),
        unit: |_| frame(CONTINUATION, 0, 1, &header("more", &"x".repeat(10_000))),
        few: 0,
        many: 1_000,
    },
    Flood {
        name: "trailers again and again",
        before: open,
        unit: |_| frame(HEADERS, END_STREAM | END_HEADERS, 1, &header("late", "1")),
        few: 0,
        many: 10_000,
    },
];

/// Runs alone: it measures latency of other clients during floods on a stream.
#[tokio::test]
async fn floods_on_a_stream_are_cut() {
    suffer(&STREAMS, BrokerOptions::default()).await;
}
