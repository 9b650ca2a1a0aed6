//! Streams that are opened to be reset, by the client or by the broker: a flood of them ends its connection.

use leasehold_tests::{
    broker_process::BrokerOptions,
    flood::{ACQUIRE, Flood, nothing, stream, suffer},
    raw_http2::frames::{call, reset, window_update},
};

/// What the broker bears on a connection here: so many calls at once, and so many resets that it was made
/// to send. With ten times as many, its defaults, a flood is a thousand calls each time, and costs as much
/// as these.
const BORNE: &str = "100";

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

#[tokio::test]
async fn floods_of_resets_are_cut() {
    let mut options = BrokerOptions::default();
    for key in ["CONCURRENT_STREAMS", "LOCAL_ERROR_RESETS"] {
        let key = format!("LEASEHOLD__HTTP2__MAX_{key}");
        options.env.push((key, BORNE.to_owned()));
    }
    suffer(&RESETS, options).await;
}
