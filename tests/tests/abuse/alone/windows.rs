//! Clients that ask and do not read: what waits for them stays small, and they are cut.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{
    HoldAcquire, HoldRequest, ListLocksRequest, WatchLocksRequest, hold_request::Message as Request,
};
use leasehold_tests::{
    abuse_site::{Attempt, Site},
    broker_process::BrokerOptions,
    client::{AcquireCall, Client},
    clock::boottime,
    raw_http2::{
        Opening, RawHttp2,
        frames::{
            DATA, END_STREAM, INITIAL_WINDOW_SIZE, announced, call, frame, message, ping,
            window_update,
        },
    },
    scale::figures,
};
use prost::Message;
use tokio::time::sleep;

const HOLD: &str = "/leasehold.v1.LockService/Hold";
const LIST: &str = "/leasehold.v1.InspectionService/ListLocks";
const WATCH: &str = "/leasehold.v1.InspectionService/WatchLocks";
const TTL: Duration = Duration::from_secs(300);
/// Locks with names so long that a page of them is as large as replies may be.
const LOCKS: usize = 900;
const NAME: usize = 240;
/// How soon the calls are answered.
const ANSWERED: Duration = Duration::from_secs(60);
/// How often one that reads nothing shows by a frame that it still is there.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How soon a client that reads nothing is cut.
const CUT: Duration = Duration::from_secs(30);

/// A connection with so many calls, each with one message, that nobody reads the answers of.
async fn asks(opening: &Opening, path: &str, request: &impl Message, calls: u32) -> RawHttp2 {
    let raw = opening.open().await.expect("a place");
    for number in 0..calls {
        let stream = 2 * number + 1;
        let sent = [call(stream, path, 0), message(stream, request, END_STREAM)].concat();
        assert!(raw.send(&sent).await, "cut early: {:?}", raw.seen());
    }
    raw
}

async fn is_cut(raw: &RawHttp2, taken: usize) -> Attempt {
    let began = boottime();
    let seen = raw.closed(CUT).await;
    let seen = seen.unwrap_or_else(|| panic!("not cut: {:?}", raw.seen()));
    Attempt {
        taken,
        cut_after: boottime() - began,
        go_away: seen.go_away,
    }
}

async fn site() -> Site {
    let mut options = BrokerOptions::default();
    for (key, value) in [
        ("LIMITS__TTL_MAX", "600s"),
        ("HTTP2__KEEPALIVE_INTERVAL", "2s"),
        ("HTTP2__KEEPALIVE_TIMEOUT", "2s"),
    ] {
        options
            .env
            .push((format!("LEASEHOLD__{key}"), value.to_owned()));
    }
    let site = Site::start(options, None).await;
    let client = Client::new("long", &[site.broker.addr()], 0);
    let taken = (0..LOCKS).map(async |number| {
        let name = format!("{number:0NAME$}");
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        client.acquire_at(0, &call).await
    });
    for held in join_all(taken).await {
        held.expect("it is free");
    }
    site
}

fn lists() -> ListLocksRequest {
    ListLocksRequest {
        page_size: 1_000,
        ..ListLocksRequest::default()
    }
}

/// A thousand lists, of which a few are made and the others wait.
async fn unread_lists(shut: &Opening) -> Attempt {
    let raw = asks(shut, LIST, &lists(), 1_000).await;
    let begun = raw.until(ANSWERED, |seen| seen.heads >= 8).await;
    assert!(begun.is_some(), "{:?}", raw.seen());
    is_cut(&raw, 1_000).await
}

/// Watches of a broker on which much happens.
async fn unread_watches(shut: &Opening) -> Attempt {
    let raw = asks(shut, WATCH, &WatchLocksRequest::default(), 100).await;
    let begun = raw.until(ANSWERED, |seen| seen.heads >= 100).await;
    assert!(begun.is_some(), "{:?}", raw.seen());
    is_cut(&raw, 100).await
}

/// Lease streams on which each message is refused.
async fn unread_refusals(shut: &Opening) -> Attempt {
    const STREAMS: u32 = 15;
    const EACH: usize = 1_000;
    let raw = shut.open().await.expect("a place");
    let bad = HoldAcquire {
        call_id: 1,
        ..HoldAcquire::default()
    };
    let bad = HoldRequest {
        message: Some(Request::Acquire(bad)),
    };
    let bad = [
        announced(bad.encoded_len()).as_slice(),
        &bad.encode_to_vec(),
    ]
    .concat();
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        assert!(raw.send(&call(stream, HOLD, 0)).await);
        assert!(raw.send(&frame(DATA, 0, stream, &bad.repeat(EACH))).await);
    }
    assert!(raw.lives(ANSWERED).await, "{:?}", raw.seen());
    is_cut(&raw, EACH * STREAMS as usize).await
}

/// Windows as wide as they can be, and nothing is taken from the socket.
async fn unread_bytes(wide: &Opening) -> Attempt {
    /// More than the system's buffers hold.
    const CALLS: u32 = 100;
    let raw = wide.open().await.expect("a place");
    let most = i32::MAX.cast_unsigned() - 65_535;
    assert!(raw.send(&window_update(0, most)).await);
    for number in 0..CALLS {
        let stream = 2 * number + 1;
        let list = message(stream, &lists(), END_STREAM);
        assert!(raw.send(&[call(stream, LIST, 0), list].concat()).await);
    }
    let began = boottime();
    while raw.send(&ping()).await {
        assert!(boottime() - began < CUT, "not cut");
        sleep(ASK_EVERY).await;
    }
    Attempt {
        taken: CALLS as usize,
        cut_after: boottime() - began,
        go_away: None,
    }
}

/// Runs alone: it measures memory of the broker for replies that nobody reads.
#[tokio::test]
async fn who_does_not_read_is_cut_and_costs_little() {
    let mut site = site().await;
    let shut = Opening {
        settings: vec![(INITIAL_WINDOW_SIZE, 0)],
        ..site.opening()
    };
    let wide = Opening {
        settings: vec![(INITIAL_WINDOW_SIZE, i32::MAX.cast_unsigned())],
        reads: false,
        ..site.opening()
    };
    let (lists, watches, refusals, bytes) = tokio::join!(
        unread_lists(&shut),
        unread_watches(&shut),
        unread_refusals(&shut),
        unread_bytes(&wide),
    );
    for (what, attempt) in [
        ("lists", &lists),
        ("watches", &watches),
        ("refusals", &refusals),
        ("bytes", &bytes),
    ] {
        let cut = attempt.cut_after.as_millis();
        figures(&format!("abuse: unread {what}: cut after {cut} ms"));
    }
    let all = [lists, watches, refusals, bytes];
    site.suffered("nothing is read", &all).await;
    site.end().await;
}
