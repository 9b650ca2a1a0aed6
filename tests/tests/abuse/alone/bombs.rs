//! Calls that are larger than they may be, or that claim to be, or never end.

use std::time::Duration;

use leasehold_tests::{
    abuse_site::{Attempt, Site},
    broker_process::BrokerOptions,
    clock::boottime,
    raw_http2::{
        Opening, RawHttp2, Seen,
        frames::{
            DATA, END_HEADERS, END_STREAM, HEADERS, announced, call, call_block, frame, header,
            remembered,
        },
    },
    scale::count,
};
use tokio::time::sleep;

/// What may be sent before the broker says more, and in one frame.
const FIRST_WINDOW: usize = 65_535;
const MAX_FRAME: usize = 16_384;
/// What the broker keeps of incomplete messages of a connection.
const KEPT: usize = 1 << 20;
const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
/// How soon the broker has answered.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two goes: refusing costs what any call costs, and calls are limited elsewhere.
const PACE: Duration = Duration::from_millis(80);

/// A call that is too much.
struct Bomb {
    name: &'static str,
    /// It, on a stream.
    call: fn(u32) -> Vec<u8>,
    /// How many go off at once.
    many: u32,
}

const BOMBS: [Bomb; 6] = [
    Bomb {
        name: "headers of 15 KiB",
        call: |stream| {
            let block = [call_block(ACQUIRE), header("much", &"x".repeat(15_000))].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
        },
        many: 50,
    },
    Bomb {
        name: "many small headers",
        call: |stream| {
            let block = [call_block(ACQUIRE), header("x", "y").repeat(3_000)].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
        },
        many: 50,
    },
    Bomb {
        name: "headers that grow from 16 KiB to 48 MiB",
        call: |stream| {
            /// The newest header that was to be remembered.
            const AGAIN: u8 = 0xbe;
            let first = remembered("much", &"x".repeat(3_900));
            let block = [call_block(ACQUIRE), first, vec![AGAIN; 12_000]].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
        },
        many: 20,
    },
    Bomb {
        name: "messages that claim 4 GiB",
        call: |stream| {
            let claim = [0, 0xff, 0xff, 0xff, 0xff];
            [
                call(stream, ACQUIRE, 0),
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
                call(stream, ACQUIRE, 0),
                frame(DATA, END_STREAM, stream, &claim),
            ]
            .concat()
        },
        many: 100,
    },
    Bomb {
        name: "messages of nonsense",
        call: |stream| {
            let nonsense = [announced(10_000).as_slice(), &[0xff; 10_000]].concat();
            [
                call(stream, ACQUIRE, 0),
                frame(DATA, END_STREAM, stream, &nonsense),
            ]
            .concat()
        },
        many: 100,
    },
];

impl Bomb {
    /// Each is answered without another effect, or the connection is ended.
    async fn goes_off(&self, opening: &Opening) -> Attempt {
        let raw = opening.open().await.expect("a place");
        let (began, mut sent) = (boottime(), 0);
        while sent < self.many && raw.send(&(self.call)(2 * sent + 1)).await {
            sent += 1;
        }
        let many = usize::try_from(self.many).expect("a count");
        let refused = |seen: &Seen| seen.closed.is_some() || seen.heads + seen.resets >= many;
        let refused = raw.until(LIMIT, refused).await;
        let refused = refused.unwrap_or_else(|| panic!("{}: {:?}", self.name, raw.seen()));
        if refused.closed.is_none() {
            assert!(raw.lives(LIMIT).await, "{}: {:?}", self.name, raw.seen());
        }
        sleep(PACE).await;
        Attempt {
            taken: refused.heads.max(1),
            cut_after: boottime() - began,
            go_away: refused.go_away,
        }
    }
}

/// Runs alone: it measures memory of the broker, and calls of others beside oversized messages.
#[tokio::test]
async fn bombs_are_refused_one_by_one() {
    let mut site = Site::start(BrokerOptions::default(), None).await;
    let opening = site.opening();
    for bomb in &BOMBS {
        site.suffers(bomb.name, async || bomb.goes_off(&opening).await)
            .await;
    }
    site.end().await;
}

/// Runs alone: it measures memory of the broker while messages stay unfinished.
#[tokio::test]
async fn messages_that_never_end_take_little_room() {
    const ALMOST: usize = 60_000;
    let mut site = Site::start(BrokerOptions::default(), None).await;
    let opening = site.opening();
    let message = [announced(ALMOST + 1).as_slice(), &vec![0; ALMOST]].concat();
    site.suffers("messages that never end", async || {
        let raw = opening.open().await.expect("a place");
        let began = boottime();
        let sent = begin_messages(&raw, &message).await;
        // Calls are refused, and whoever sends on for them all the same is cut.
        let seen = raw.seen();
        assert!(seen.heads > 0 || seen.go_away.is_some(), "{seen:?}");
        assert!(sent >= KEPT, "{sent} bytes are few: {seen:?}");
        Attempt {
            taken: sent,
            cut_after: boottime() - began,
            go_away: seen.go_away,
        }
    })
    .await;
    site.end().await;
}

/// Sends what there is of a message on many streams, or until the broker reads no more. Returns how many bytes.
async fn begin_messages(raw: &RawHttp2, message: &[u8]) -> usize {
    let mut sent = 0;
    for stream in (1..).step_by(2).take(count(1_000, 100)) {
        if !raw.send(&call(stream, ACQUIRE, 0)).await {
            return sent;
        }
        for part in message.chunks(MAX_FRAME) {
            sent += part.len();
            let leave = raw
                .until(LIMIT, |seen| seen.leave + FIRST_WINDOW >= sent)
                .await;
            if leave.is_none() || !raw.send(&frame(DATA, 0, stream, part)).await {
                return sent;
            }
        }
    }
    sent
}
