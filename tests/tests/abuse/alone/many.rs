//! Many connections with a small load each. Their total memory stays small, and control clients are
//! not affected.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{
    AttachLease, GetLockRequest, Grant, HoldRequest, Lease, hold_request::Message as Request,
};
use leasehold_tests::{
    access::files_and_callers::AccessFiles,
    broker::{
        abuse_fixture::{AbuseFixture, AbuseRun},
        tls::closes_within,
    },
    clock::boottime,
    net::raw_http2::{
        RawHttp2, RawHttp2Options, ReceivedFrames,
        frames::{
            DATA, END_STREAM, FRAME_HEADER_BYTES, INITIAL_WINDOW_SIZE, call_headers_with_token,
            frame, message, message_prefix, window_update,
        },
    },
    scale::{print_figures, scale, scaled_count, scaled_duration},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{sleep, timeout},
};

const GET_LOCK: &str = "/leasehold.v1.InspectionService/GetLock";
const HOLD: &str = "/leasehold.v1.LockService/Hold";
const HEALTH: &str = "/grpc.health.v1.Health/Watch";
/// Methods of each listener.
const API: &[&str] = &[
    "/leasehold.v1.LockService/Acquire",
    "/leasehold.v1.LockService/AcquireAll",
    "/leasehold.v1.LockService/Release",
    "/leasehold.v1.LockService/Renew",
    "/leasehold.v1.LockService/CheckFencingToken",
    HOLD,
    GET_LOCK,
    "/leasehold.v1.InspectionService/ListLocks",
    "/leasehold.v1.InspectionService/WatchLocks",
    "/grpc.health.v1.Health/Check",
    HEALTH,
    "/leasehold.v1.NoService/Nothing",
];
const ADMIN: &[&str] = &[
    "/leasehold.v1.AdminService/OpenLock",
    "/leasehold.v1.AdminService/ForceReleaseLease",
    "/grpc.health.v1.Health/Check",
    HEALTH,
];
/// Token of a caller that may do everything, and of a caller without rights.
const WORKER: &str = "worker-secret";
const USELESS: &str = "useless-secret";
const RULES: &str = r#"
    [[rule]]
    callers = ["token:worker"]
    verbs = ["acquire", "observe", "list", "force_release", "admin"]
"#;
/// Number of client addresses of abusers. Each address has a part of the memory budget of all
/// connections.
const ADDRESSES: u8 = 8;
/// Bytes of the initial window of a connection, and maximum size of a frame.
const FIRST_WINDOW: usize = 65_535;
const MAX_FRAME: usize = 16_384;
/// Size of the smallest frame that the broker does not count as a frame without work.
const SMALL_FRAME: usize = 5;
/// Bytes of the initial window of a stream.
const STREAM_WINDOW: usize = 64 << 10;
/// Time for which an abuse continues, so that enough calls of control clients are measured.
const DURING: Duration = Duration::from_secs(3);
const DURING_MIN: Duration = Duration::from_millis(1_500);
/// Time within which the broker cuts off or slows down an abuser.
const SLOWED: Duration = Duration::from_secs(15);

/// Target and credential of an abuser.
#[derive(Clone, Copy)]
struct Abuser {
    to: SocketAddr,
    /// Methods of its calls, in round-robin order.
    paths: &'static [&'static str],
    /// Credential of a caller without rights, or `None` for an invalid one.
    token: Option<&'static str>,
}

/// Returns the parameters of a connection from an address that no control client uses. A reset at
/// the end frees the resources of one abuse before the next one.
fn opening(to: SocketAddr, number: usize) -> RawHttp2Options {
    let host = u8::try_from(number % usize::from(ADDRESSES)).expect("a few");
    RawHttp2Options {
        local_ip: [127, 0, 0, 2 + host].into(),
        is_reset_at_end: true,
        ..RawHttp2Options::new(to)
    }
}

impl Abuser {
    fn call(&self, stream: u32) -> Vec<u8> {
        let token = self.token.unwrap_or("wrong");
        let path = self.paths[stream as usize / 2 % self.paths.len()];
        call_headers_with_token(stream, path, token, 0)
    }

    /// Opens calls without sending their messages.
    async fn open_calls_without_messages(self, number: usize) -> Option<RawHttp2> {
        let raw = opening(self.to, number).open().await.ok()?;
        for calls in 0..10 {
            let streams = (100 * calls..100 * (calls + 1)).map(|number| 2 * number + 1);
            let heads: Vec<_> = streams.map(|stream| self.call(stream)).collect();
            if !send_all(&raw, &heads.concat()).await {
                break;
            }
        }
        Some(raw)
    }

    /// Opens calls with an empty message, which the broker may keep open.
    async fn streams(self, number: usize) -> Option<RawHttp2> {
        let raw = opening(self.to, number).open().await.ok()?;
        for calls in 0..10 {
            let streams = (100 * calls..100 * (calls + 1)).map(|number| 2 * number + 1);
            let calls = streams.map(|stream| {
                let empty = frame(DATA, END_STREAM, stream, &message_prefix(0));
                // END_STREAM would close a lease stream.
                let empty = match self.paths {
                    [HOLD] => frame(DATA, 0, stream, &message_prefix(0)),
                    _ => empty,
                };
                [self.call(stream), empty].concat()
            });
            let calls: Vec<_> = calls.collect();
            if !send_all(&raw, &calls.concat()).await {
                break;
            }
        }
        Some(raw)
    }

    /// Sends messages without their last bytes, or calls without END_STREAM.
    async fn open_incomplete_messages(self, number: usize) -> Option<RawHttp2> {
        const STREAMS: u32 = 63;
        const PIECE: usize = 65_000;
        let raw = opening(self.to, number).open().await.ok()?;
        let missing = if number.is_multiple_of(2) { 9 } else { 0 };
        let piece = [message_prefix(PIECE + missing).as_slice(), &vec![7; PIECE]].concat();
        let mut data = 0;
        for number in 0..STREAMS {
            let stream = 2 * number + 1;
            if !send_all(&raw, &self.call(stream)).await {
                break;
            }
            for part in piece.chunks(MAX_FRAME) {
                data += part.len();
                let may = |seen: &ReceivedFrames| {
                    seen.window_granted + FIRST_WINDOW >= data || seen.resets > 0
                };
                let _ = raw.wait_until(Duration::from_millis(200), may).await;
                if !may(&raw.received()) || !send_all(&raw, &frame(DATA, 0, stream, part)).await {
                    return Some(raw);
                }
            }
        }
        Some(raw)
    }

    /// Sends as many invalid messages on lease streams as the broker accepts at once, and reads no
    /// response.
    async fn unread(self, number: usize, frame_length: usize) -> Option<RawHttp2> {
        const STREAMS: u32 = 15;
        let shut = RawHttp2Options {
            settings: vec![(INITIAL_WINDOW_SIZE, 0)],
            ..opening(self.to, number)
        };
        let raw = shut.open().await.ok()?;
        let bad = invalid_attach();
        let bad = bad.repeat(STREAM_WINDOW / bad.len());
        let all = bad.len() * STREAMS as usize;
        let _ = raw
            .wait_until(DURING, |seen| seen.window_granted >= all)
            .await;
        for number in 0..STREAMS {
            let stream = 2 * number + 1;
            let sent_calls = send_all(&raw, &self.call(stream)).await;
            let frames = bad.chunks(frame_length);
            let frames: Vec<_> = frames.map(|part| frame(DATA, 0, stream, part)).collect();
            if !sent_calls || !send_all(&raw, &frames.concat()).await {
                return Some(raw);
            }
        }
        Some(raw)
    }
}

/// Returns true if the broker has read the bytes. A broker that has stopped reading has already
/// slowed down the abuser.
async fn send_all(raw: &RawHttp2, bytes: &[u8]) -> bool {
    timeout(DURING, raw.send(bytes)).await.unwrap_or(false)
}

/// Returns a gRPC message with many invalid fields.
fn invalid_attach() -> Vec<u8> {
    let lease = Lease {
        lease_token: "x".to_owned(),
        grants: vec![
            Grant {
                fencing_token: -1,
                ..Grant::default()
            };
            64
        ],
        ..Lease::default()
    };
    let attach = AttachLease {
        call_id: 1,
        lease: Some(lease),
        attach_number: -1,
    };
    let request = HoldRequest {
        message: Some(Request::Attach(attach)),
    };
    // The frame header is removed.
    message(1, &request, 0).split_off(FRAME_HEADER_BYTES)
}

/// Opens all connections, keeps them open while control clients are measured, and counts the
/// connections that were cut.
async fn hold(
    fixture: &mut AbuseFixture,
    name: &str,
    many: usize,
    abuse: impl AsyncFn(usize) -> Option<RawHttp2>,
) {
    fixture.wait_until_memory_freed().await;
    let started_at = boottime();
    let open = join_all((0..many).map(|number| abuse(number))).await;
    let open: Vec<_> = open.into_iter().flatten().collect();
    sleep(scaled_duration(DURING, DURING_MIN)).await;
    let cut = open.iter().filter(|raw| raw.received().closed_at.is_some());
    print_figures(&format!(
        "abuse: {name}: {} of {} cut",
        cut.count(),
        open.len()
    ));
    let attempt = AbuseRun {
        accepted: many,
        closed_after: boottime() - started_at,
        go_away: None,
    };
    fixture.check_abuse(name, &[attempt]).await;
}

/// Makes sequential calls on as many connections as an abuser uses, like busy callers do. The calls
/// read a lock that a control client holds.
async fn call_in_sequence(to: SocketAddr, many: usize) {
    let started_at = boottime();
    let request = GetLockRequest {
        name: "held/0/0".to_owned(),
        ..GetLockRequest::default()
    };
    let callers = (0..many).map(async |number| {
        let raw = opening(to, number).open().await.expect("a connection");
        // The responses of a fast broker exceed the initial window.
        assert!(raw.send(&window_update(0, 1 << 30)).await);
        let mut calls = 0;
        while boottime() - started_at < scaled_duration(DURING, DURING_MIN) {
            let stream = 2 * calls + 1;
            let call = call_headers_with_token(stream, GET_LOCK, WORKER, 0);
            let call = [call, message(stream, &request, END_STREAM)].concat();
            assert!(raw.send(&call).await, "{:?}", raw.received());
            calls += 1;
            // Each response has HEADERS and trailers.
            let answered = |seen: &ReceivedFrames| seen.headers == 2 * calls as usize;
            let seen = raw.wait_until(DURING, answered).await;
            assert!(seen.is_some(), "{:?}", raw.received());
        }
        calls
    });
    let calls: u32 = join_all(callers).await.into_iter().sum();
    print_figures(&format!(
        "abuse: honest: {calls} calls of {many} connections"
    ));
}

/// Sends the header of an HTTP/1.1 request without its body.
async fn post(to: SocketAddr, number: usize) -> TcpStream {
    let mut tcp = opening(to, number).connect_tcp().await.expect("a backlog");
    let head = format!(
        "POST /log-filter HTTP/1.1\r\nhost: {to}\r\nauthorization: Bearer {USELESS}\r\n\
         content-length: 10\r\n\r\n"
    );
    let _ = tcp.write_all(head.as_bytes()).await;
    tcp
}

/// Runs alone: it measures memory of the broker, and calls of others beside many connections.
#[tokio::test]
async fn many_connections_with_little_each_cost_little_in_all() {
    let access_files = AccessFiles::new(RULES, &[("worker", WORKER), ("useless", USELESS)]);
    let mut options = access_files.options(String::new());
    let rate = ("LEASEHOLD__QUOTAS__ACQUIRES_PER_SECOND", "100000");
    options.env.push((rate.0.to_owned(), rate.1.to_owned()));
    let mut fixture = AbuseFixture::start_with_token(options, WORKER).await;
    let (api, admin) = (fixture.broker.addr(), fixture.broker.admin());
    let many = scaled_count(64, 32);
    fixture.measure_reference(call_in_sequence(api, many)).await;
    for token in [None, Some(USELESS)] {
        for (to, paths) in [(api, API), (admin, ADMIN)] {
            // Unauthenticated calls take the same code path on both listeners, and so do
            // authenticated calls.
            if scale() < 1.0 && token.is_some() != (to == api) {
                continue;
            }
            let abuser = Abuser { to, paths, token };
            let who = token.map_or("strangers", |_| "callers without rules");
            let which = if to == api { "API" } else { "admin" };
            let who = format!("{who}, {which}");
            let name = format!("{who}: calls without a message");
            hold(&mut fixture, &name, many, async |number| {
                abuser.open_calls_without_messages(number).await
            })
            .await;
            let name = format!("{who}: messages without an end");
            hold(&mut fixture, &name, many, async |number| {
                abuser.open_incomplete_messages(number).await
            })
            .await;
            let name = format!("{who}: empty messages");
            hold(&mut fixture, &name, many, async |number| {
                abuser.streams(number).await
            })
            .await;
            let health = Abuser {
                paths: &[HEALTH],
                ..abuser
            };
            let name = format!("{who}: watches of health");
            hold(&mut fixture, &name, many, async |number| {
                health.streams(number).await
            })
            .await;
        }
    }
    let abuser = Abuser {
        to: api,
        paths: &[HOLD],
        token: Some(USELESS),
    };
    let name = "lease streams without leases";
    hold(&mut fixture, name, many, async |number| {
        abuser.streams(number).await
    })
    .await;
    hold(&mut fixture, "unread refusals", many, async |number| {
        abuser.unread(number, MAX_FRAME).await
    })
    .await;
    let name = "unread refusals of messages in small frames";
    hold(&mut fixture, name, many, async |number| {
        abuser.unread(number, SMALL_FRAME).await
    })
    .await;
    hold(
        &mut fixture,
        "refusals that are read slowly",
        many,
        async |number| {
            let raw = abuser.unread(number, MAX_FRAME).await?;
            for stream in [1, 3, 5, 7] {
                let more = [window_update(0, 26 << 10), window_update(stream, 26 << 10)];
                let _ = send_all(&raw, &more.concat()).await;
            }
            Some(raw)
        },
    )
    .await;
    let idle = scaled_count(1_000, 200);
    hold(&mut fixture, "idle connections", idle, async |number| {
        opening(api, number).open().await.ok()
    })
    .await;
    fixture.wait_until_memory_freed().await;
    let posts = join_all((0..idle).map(|number| post(admin, number))).await;
    let cut = join_all(posts.into_iter().map(|tcp| closes_within(tcp, SLOWED))).await;
    assert_eq!(cut, vec![true; idle], "posts without a body");
    sleep(scaled_duration(DURING, DURING_MIN)).await;
    fixture
        .check_abuse(
            "posts without a body",
            &[AbuseRun {
                accepted: idle,
                ..AbuseRun::default()
            }],
        )
        .await;
    fixture.finish().await;
}
