//! Requests that exceed size limits, declare an excessive size, or never end.

use std::time::Duration;

use leasehold_tests::{
    broker::{
        abuse_fixture::{AbuseFixture, AbuseRun},
        process::BrokerOptions,
    },
    clock::boottime,
    net::raw_http2::{
        RawHttp2, RawHttp2Options, ReceivedFrames,
        frames::{
            DATA, END_HEADERS, END_STREAM, HEADERS, call_header_block, call_headers, frame, header,
            indexed_header, message_prefix,
        },
    },
    scale::scaled_count,
};
use tokio::time::sleep;

/// Initial flow control window and maximum frame size of HTTP/2.
const FIRST_WINDOW: usize = 65_535;
const MAX_FRAME: usize = 16_384;
/// Bytes of incomplete messages that the broker stores per connection.
const STORED_BYTES: usize = 1 << 20;
const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
/// Upper bound of the time until all responses arrive.
const LIMIT: Duration = Duration::from_secs(10);
/// Pause between two attempts. Rejecting a call costs as much as any call, and other tests cover
/// rate limits.
const SEND_INTERVAL: Duration = Duration::from_millis(80);

/// A call that exceeds a limit.
struct Bomb {
    name: &'static str,
    /// Returns the frames of the call on a stream.
    call: fn(u32) -> Vec<u8>,
    /// Number of simultaneous calls.
    many: u32,
}

const BOMBS: [Bomb; 6] = [
    Bomb {
        name: "headers of 15 KiB",
        call: |stream| {
            let block = [
                call_header_block(ACQUIRE),
                header("much", &"x".repeat(15_000)),
            ]
            .concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
        },
        many: 50,
    },
    Bomb {
        name: "many small headers",
        call: |stream| {
            let block = [call_header_block(ACQUIRE), header("x", "y").repeat(3_000)].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
        },
        many: 50,
    },
    Bomb {
        name: "headers that grow from 16 KiB to 48 MiB",
        call: |stream| {
            /// Index of the newest entry in the HPACK dynamic table.
            const AGAIN: u8 = 0xbe;
            let first = indexed_header("much", &"x".repeat(3_900));
            let block = [call_header_block(ACQUIRE), first, vec![AGAIN; 12_000]].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
        },
        many: 20,
    },
    Bomb {
        name: "messages that claim 4 GiB",
        call: |stream| {
            let claim = [0, 0xff, 0xff, 0xff, 0xff];
            [
                call_headers(stream, ACQUIRE, 0),
                frame(DATA, END_STREAM, stream, &claim),
            ]
            .concat()
        },
        many: 100,
    },
    Bomb {
        name: "messages that claim to be compressed",
        call: |stream| {
            let claim = [1, 0, 0, 0, 1, 0];
            [
                call_headers(stream, ACQUIRE, 0),
                frame(DATA, END_STREAM, stream, &claim),
            ]
            .concat()
        },
        many: 100,
    },
    Bomb {
        name: "messages of nonsense",
        call: |stream| {
            let nonsense = [message_prefix(10_000).as_slice(), &[0xff; 10_000]].concat();
            [
                call_headers(stream, ACQUIRE, 0),
                frame(DATA, END_STREAM, stream, &nonsense),
            ]
            .concat()
        },
        many: 100,
    },
];

impl Bomb {
    /// Asserts that the broker rejects each call and keeps working, or closes the connection.
    async fn run(&self, connection_options: &RawHttp2Options) -> AbuseRun {
        let raw = connection_options.open().await.expect("a place");
        let (started_at, mut sent) = (boottime(), 0);
        while sent < self.many && raw.send(&(self.call)(2 * sent + 1)).await {
            sent += 1;
        }
        let many = usize::try_from(self.many).expect("a count");
        let refused =
            |seen: &ReceivedFrames| seen.closed_at.is_some() || seen.headers + seen.resets >= many;
        let refused = raw.wait_until(LIMIT, refused).await;
        let refused = refused.unwrap_or_else(|| panic!("{}: {:?}", self.name, raw.received()));
        if refused.closed_at.is_none() {
            assert!(
                raw.is_responding(LIMIT).await,
                "{}: {:?}",
                self.name,
                raw.received()
            );
        }
        sleep(SEND_INTERVAL).await;
        AbuseRun {
            accepted: refused.headers.max(1),
            closed_after: boottime() - started_at,
            go_away: refused.go_away,
        }
    }
}

/// Runs alone: it measures memory of the broker, and calls of others beside oversized messages.
#[tokio::test]
async fn oversized_calls_are_rejected_one_by_one() {
    let mut fixture = AbuseFixture::start(BrokerOptions::default(), None).await;
    let connection_options = fixture.connection_options();
    for bomb in &BOMBS {
        fixture
            .repeat_abuse(bomb.name, async || bomb.run(&connection_options).await)
            .await;
    }
    fixture.finish().await;
}

/// Runs alone: it measures memory of the broker while messages stay unfinished.
#[tokio::test]
async fn messages_that_never_end_take_little_room() {
    const ALMOST: usize = 60_000;
    let mut fixture = AbuseFixture::start(BrokerOptions::default(), None).await;
    let connection_options = fixture.connection_options();
    let message = [message_prefix(ALMOST + 1).as_slice(), &vec![0; ALMOST]].concat();
    fixture
        .repeat_abuse("messages that never end", async || {
            let raw = connection_options.open().await.expect("a place");
            let started_at = boottime();
            let sent = begin_messages(&raw, &message).await;
            // The broker rejects the calls, and closes the connection if it continues to receive
            // data for rejected calls.
            let seen = raw.received();
            assert!(seen.headers > 0 || seen.go_away.is_some(), "{seen:?}");
            assert!(sent >= STORED_BYTES, "{sent} bytes are few: {seen:?}");
            AbuseRun {
                accepted: sent,
                closed_after: boottime() - started_at,
                go_away: seen.go_away,
            }
        })
        .await;
    fixture.finish().await;
}

/// Sends an incomplete message on many streams until the broker stops reading. Returns the number
/// of bytes sent.
async fn begin_messages(raw: &RawHttp2, message: &[u8]) -> usize {
    let mut sent = 0;
    for stream in (1..).step_by(2).take(scaled_count(1_000, 100)) {
        if !raw.send(&call_headers(stream, ACQUIRE, 0)).await {
            return sent;
        }
        for part in message.chunks(MAX_FRAME) {
            sent += part.len();
            let leave = raw
                .wait_until(LIMIT, |seen| seen.window_granted + FIRST_WINDOW >= sent)
                .await;
            if leave.is_none() || !raw.send(&frame(DATA, 0, stream, part)).await {
                return sent;
            }
        }
    }
    sent
}
