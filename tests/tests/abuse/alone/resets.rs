//! Streams that are opened to be reset, by the client or by the broker: a flood of them ends its connection.

use leasehold_tests::{
    broker_process::BrokerOptions,
    flood::{ACQUIRE, Flood, nothing, stream, suffer},
    raw_http2::frames::{call, reset, window_update},
};

const RESETS: [Flood; 4] = [
    Flood {
        name: "rapid reset",
        before: nothing,
        unit: |number| [call(stream(number), ACQUIRE, 0), reset(stream(number))].concat(),
        few: 10,
        many: 1_000,
    },
    Flood {
        name: "windows opened by nothing",
        before: nothing,
        unit: |number| {
            [
                call(stream(number), ACQUIRE, 0),
                window_update(stream(number), 0),
            ]
            .concat()
        },
        few: 0,
        many: 2_000,
    },
    Flood {
        name: "resets made by windows without end",
        before: nothing,
        unit: |number| {
            let (stream, most) = (stream(number), i32::MAX.cast_unsigned());
            [call(stream, ACQUIRE, 0), window_update(stream, most)].concat()
        },
        few: 50,
        many: 2_000,
    },
    Flood {
        name: "more calls than allowed",
        before: nothing,
        unit: |number| call(stream(number), ACQUIRE, 0),
        few: 90,
        many: 4_000,
    },
];

/// Runs alone: it measures latency of other clients during floods of resets.
#[tokio::test]
async fn floods_of_resets_are_cut() {
    suffer(&RESETS, BrokerOptions::default()).await;
}
