//! Clients that send requests without reading responses. Their buffered responses stay small, and
//! the clients are cut off.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{
    HoldAcquire, HoldRequest, ListLocksRequest, WatchLocksRequest, hold_request::Message as Request,
};
use leasehold_tests::{
    broker::{
        abuse_fixture::{AbuseFixture, AbuseRun},
        process::BrokerOptions,
    },
    client::unary::{AcquireCall, Client},
    clock::boottime,
    net::raw_http2::{
        RawHttp2, RawHttp2Options,
        frames::{
            DATA, END_STREAM, INITIAL_WINDOW_SIZE, call_headers, frame, message, message_prefix,
            ping, window_update,
        },
    },
    scale::print_figures,
};
use prost::Message;
use tokio::time::sleep;

const HOLD: &str = "/leasehold.v1.LockService/Hold";
const LIST: &str = "/leasehold.v1.InspectionService/ListLocks";
const WATCH: &str = "/leasehold.v1.InspectionService/WatchLocks";
const TTL: Duration = Duration::from_secs(300);
/// Number of locks, and length of their names, so that a page of all locks has the maximum size of
/// a reply.
const LOCKS: usize = 900;
const NAME: usize = 240;
/// Upper bound of the time until the calls are processed.
const ANSWERED: Duration = Duration::from_secs(60);
/// Interval of the PING frames with which a client that does not read stays alive.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Time within which a client that does not read is cut off.
const CUT: Duration = Duration::from_secs(30);

/// Opens a connection with `calls` calls that have one message each, and reads no response.
async fn open_unread_calls(
    connection_options: &RawHttp2Options,
    path: &str,
    request: &impl Message,
    calls: u32,
) -> RawHttp2 {
    let raw = connection_options.open().await.expect("a place");
    for number in 0..calls {
        let stream = 2 * number + 1;
        let sent = [
            call_headers(stream, path, 0),
            message(stream, request, END_STREAM),
        ]
        .concat();
        assert!(raw.send(&sent).await, "cut early: {:?}", raw.received());
    }
    raw
}

async fn is_cut(raw: &RawHttp2, taken: usize) -> AbuseRun {
    let started_at = boottime();
    let seen = raw.wait_until_closed(CUT).await;
    let seen = seen.unwrap_or_else(|| panic!("not cut: {:?}", raw.received()));
    AbuseRun {
        accepted: taken,
        closed_after: boottime() - started_at,
        go_away: seen.go_away,
    }
}

async fn fixture() -> AbuseFixture {
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
    let fixture = AbuseFixture::start(options, None).await;
    let client = Client::new("long", &[fixture.broker.addr()], 0);
    let taken = (0..LOCKS).map(async |number| {
        let name = format!("{number:0NAME$}");
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        client.acquire_at(0, &call).await
    });
    for held in join_all(taken).await {
        held.expect("it is free");
    }
    fixture
}

fn lists() -> ListLocksRequest {
    ListLocksRequest {
        page_size: 1_000,
        ..ListLocksRequest::default()
    }
}

/// Sends a thousand list calls, of which the broker processes a few while the others wait.
async fn unread_lists(shut: &RawHttp2Options) -> AbuseRun {
    let raw = open_unread_calls(shut, LIST, &lists(), 1_000).await;
    let answered = raw.wait_until(ANSWERED, |seen| seen.headers >= 8).await;
    assert!(answered.is_some(), "{:?}", raw.received());
    is_cut(&raw, 1_000).await
}

/// Opens watches on a broker with many changes.
async fn unread_watches(shut: &RawHttp2Options) -> AbuseRun {
    let raw = open_unread_calls(shut, WATCH, &WatchLocksRequest::default(), 100).await;
    let answered = raw.wait_until(ANSWERED, |seen| seen.headers >= 100).await;
    assert!(answered.is_some(), "{:?}", raw.received());
    is_cut(&raw, 100).await
}

/// Opens lease streams on which every message is rejected.
async fn unread_refusals(shut: &RawHttp2Options) -> AbuseRun {
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
        message_prefix(bad.encoded_len()).as_slice(),
        &bad.encode_to_vec(),
    ]
    .concat();
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        assert!(raw.send(&call_headers(stream, HOLD, 0)).await);
        assert!(raw.send(&frame(DATA, 0, stream, &bad.repeat(EACH))).await);
    }
    assert!(raw.is_responding(ANSWERED).await, "{:?}", raw.received());
    is_cut(&raw, EACH * STREAMS as usize).await
}

/// Opens maximum flow control windows, but reads nothing from the socket.
async fn unread_bytes(wide: &RawHttp2Options) -> AbuseRun {
    /// Number of calls with responses that exceed the buffers of the system.
    const CALLS: u32 = 100;
    let raw = wide.open().await.expect("a place");
    let most = i32::MAX.cast_unsigned() - 65_535;
    assert!(raw.send(&window_update(0, most)).await);
    for number in 0..CALLS {
        let stream = 2 * number + 1;
        let list = message(stream, &lists(), END_STREAM);
        assert!(
            raw.send(&[call_headers(stream, LIST, 0), list].concat())
                .await
        );
    }
    let started_at = boottime();
    while raw.send(&ping()).await {
        assert!(boottime() - started_at < CUT, "not cut");
        sleep(ASK_EVERY).await;
    }
    AbuseRun {
        accepted: CALLS as usize,
        closed_after: boottime() - started_at,
        go_away: None,
    }
}

/// Runs alone: it measures memory of the broker for replies that nobody reads.
#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_and_uses_little_memory() {
    let mut fixture = fixture().await;
    let shut = RawHttp2Options {
        settings: vec![(INITIAL_WINDOW_SIZE, 0)],
        ..fixture.connection_options()
    };
    let wide = RawHttp2Options {
        settings: vec![(INITIAL_WINDOW_SIZE, i32::MAX.cast_unsigned())],
        reads: false,
        ..fixture.connection_options()
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
        let cut = attempt.closed_after.as_millis();
        print_figures(&format!("abuse: unread {what}: cut after {cut} ms"));
    }
    let all = [lists, watches, refusals, bytes];
    fixture.check_abuse("nothing is read", &all).await;
    fixture.finish().await;
}
