//! Many connections, each of which does little harm: all of them together cost little memory, and nobody else
//! notices.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{
    AttachLease, GetLockRequest, Grant, HoldRequest, Lease, hold_request::Message as Request,
};
use leasehold_tests::{
    abuse_site::{Attempt, Site},
    broker_tls::is_closed,
    callers::Doors,
    clock::boottime,
    raw_http2::{
        Opening, RawHttp2, Seen,
        frames::{
            DATA, END_STREAM, HEAD, INITIAL_WINDOW_SIZE, announced, call_with, frame, message,
            window_update,
        },
    },
    scale::{count, duration, figures, scale},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{sleep, timeout},
};

const LOOK: &str = "/leasehold.v1.InspectionService/GetLock";
const HOLD: &str = "/leasehold.v1.LockService/Hold";
const HEALTH: &str = "/grpc.health.v1.Health/Watch";
/// What there is to call on each listener.
const API: &[&str] = &[
    "/leasehold.v1.LockService/Acquire",
    "/leasehold.v1.LockService/AcquireAll",
    "/leasehold.v1.LockService/Release",
    "/leasehold.v1.LockService/Renew",
    "/leasehold.v1.LockService/CheckFencingToken",
    HOLD,
    LOOK,
    "/leasehold.v1.InspectionService/ListLocks",
    "/leasehold.v1.InspectionService/WatchLocks",
    "/grpc.health.v1.Health/Check",
    HEALTH,
    "/leasehold.v1.NoService/Nothing",
];
const ADMIN: &[&str] = &[
    "/leasehold.v1.AdminService/SetLockLimit",
    "/leasehold.v1.AdminService/ForceReleaseLease",
    "/grpc.health.v1.Health/Check",
    HEALTH,
];
/// A caller that may do everything, and one that may do nothing.
const WORKER: &str = "worker-secret";
const USELESS: &str = "useless-secret";
const RULES: &str = r#"
    [[rule]]
    callers = ["token:worker"]
    verbs = ["acquire", "observe", "list", "force_release", "admin"]
"#;
/// Addresses of abusers: each has a part of what all connections may keep.
const ADDRESSES: u8 = 8;
/// Bytes that may be sent on a connection at once.
const FIRST_WINDOW: usize = 65_535;
const MAX_FRAME: usize = 16_384;
/// The least that is not taken for a frame that asks for nothing.
const SMALL_FRAME: usize = 5;
/// Bytes that may be sent on a stream at once.
const STREAM_WINDOW: usize = 64 << 10;
/// How long an abuse goes on at least, for the calls of bystanders.
const DURING: Duration = Duration::from_secs(3);
const DURING_LEAST: Duration = Duration::from_millis(1_500);
/// How soon an abuser is cut, or slowed down.
const SLOWED: Duration = Duration::from_secs(15);

/// Who abuses which listener.
#[derive(Clone, Copy)]
struct Abuser {
    to: SocketAddr,
    /// Calls to each of these, in turn.
    paths: &'static [&'static str],
    /// A credential without a rule; `None`: none at all.
    token: Option<&'static str>,
}

/// An address of this machine that is no bystander's. What a kind of abuse keeps is gone before the next one.
fn opening(to: SocketAddr, number: usize) -> Opening {
    let host = u8::try_from(number % usize::from(ADDRESSES)).expect("a few");
    Opening {
        from: [127, 0, 0, 2 + host].into(),
        is_reset_at_end: true,
        ..Opening::to(to)
    }
}

impl Abuser {
    fn call(&self, stream: u32) -> Vec<u8> {
        let token = self.token.unwrap_or("wrong");
        let path = self.paths[stream as usize / 2 % self.paths.len()];
        call_with(stream, path, token, 0)
    }

    /// Opens calls whose messages do not come.
    async fn heads(self, number: usize) -> Option<RawHttp2> {
        let raw = opening(self.to, number).open().await.ok()?;
        for calls in 0..10 {
            let streams = (100 * calls..100 * (calls + 1)).map(|number| 2 * number + 1);
            let heads: Vec<_> = streams.map(|stream| self.call(stream)).collect();
            if !sent(&raw, &heads.concat()).await {
                break;
            }
        }
        Some(raw)
    }

    /// Opens calls with an empty message, which the broker may leave open.
    async fn streams(self, number: usize) -> Option<RawHttp2> {
        let raw = opening(self.to, number).open().await.ok()?;
        for calls in 0..10 {
            let streams = (100 * calls..100 * (calls + 1)).map(|number| 2 * number + 1);
            let calls = streams.map(|stream| {
                let empty = frame(DATA, END_STREAM, stream, &announced(0));
                // The end of its messages would end a lease stream.
                let empty = match self.paths {
                    [HOLD] => frame(DATA, 0, stream, &announced(0)),
                    _ => empty,
                };
                [self.call(stream), empty].concat()
            });
            let calls: Vec<_> = calls.collect();
            if !sent(&raw, &calls.concat()).await {
                break;
            }
        }
        Some(raw)
    }

    /// Sends messages without their last bytes, or without the end of the call.
    async fn pieces(self, number: usize) -> Option<RawHttp2> {
        const STREAMS: u32 = 63;
        const PIECE: usize = 65_000;
        let raw = opening(self.to, number).open().await.ok()?;
        let missing = if number.is_multiple_of(2) { 9 } else { 0 };
        let piece = [announced(PIECE + missing).as_slice(), &vec![7; PIECE]].concat();
        let mut data = 0;
        for number in 0..STREAMS {
            let stream = 2 * number + 1;
            if !sent(&raw, &self.call(stream)).await {
                break;
            }
            for part in piece.chunks(MAX_FRAME) {
                data += part.len();
                let may = |seen: &Seen| seen.leave + FIRST_WINDOW >= data || seen.resets > 0;
                let _ = raw.until(Duration::from_millis(200), may).await;
                if !may(&raw.seen()) || !sent(&raw, &frame(DATA, 0, stream, part)).await {
                    return Some(raw);
                }
            }
        }
        Some(raw)
    }

    /// Has many messages of lease streams refused, as many as the broker takes at once, and reads no refusal.
    async fn unread(self, number: usize, frame_length: usize) -> Option<RawHttp2> {
        const STREAMS: u32 = 15;
        let shut = Opening {
            settings: vec![(INITIAL_WINDOW_SIZE, 0)],
            ..opening(self.to, number)
        };
        let raw = shut.open().await.ok()?;
        let bad = wrong_attach();
        let bad = bad.repeat(STREAM_WINDOW / bad.len());
        let all = bad.len() * STREAMS as usize;
        let _ = raw.until(DURING, |seen| seen.leave >= all).await;
        for number in 0..STREAMS {
            let stream = 2 * number + 1;
            let begun = sent(&raw, &self.call(stream)).await;
            let frames = bad.chunks(frame_length);
            let frames: Vec<_> = frames.map(|part| frame(DATA, 0, stream, part)).collect();
            if !begun || !sent(&raw, &frames.concat()).await {
                return Some(raw);
            }
        }
        Some(raw)
    }
}

/// Whether the broker has taken that; one that does not read any more is slowed down already.
async fn sent(raw: &RawHttp2, bytes: &[u8]) -> bool {
    timeout(DURING, raw.send(bytes)).await.unwrap_or(false)
}

/// A message with many faults.
fn wrong_attach() -> Vec<u8> {
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
    // A frame's head is not wanted here.
    message(1, &request, 0).split_off(HEAD)
}

/// Opens all connections, holds them for as long as bystanders are measured, and counts those that were cut.
async fn hold(
    site: &mut Site,
    name: &str,
    many: usize,
    abuse: impl AsyncFn(usize) -> Option<RawHttp2>,
) {
    site.settles().await;
    let began = boottime();
    let open = join_all((0..many).map(|number| abuse(number))).await;
    let open: Vec<_> = open.into_iter().flatten().collect();
    sleep(duration(DURING, DURING_LEAST)).await;
    let cut = open.iter().filter(|raw| raw.seen().closed.is_some());
    figures(&format!(
        "abuse: {name}: {} of {} cut",
        cut.count(),
        open.len()
    ));
    let attempt = Attempt {
        taken: many,
        cut_after: boottime() - began,
        go_away: None,
    };
    site.suffered(name, &[attempt]).await;
}

/// Makes one call after the other on each of as many connections as an abuser's, as busy callers do. They look at a lock
/// that a bystander holds.
async fn honest(to: SocketAddr, many: usize) {
    let began = boottime();
    let looked = GetLockRequest {
        name: "held/0/0".to_owned(),
        ..GetLockRequest::default()
    };
    let callers = (0..many).map(async |number| {
        let raw = opening(to, number).open().await.expect("a place");
        let mut calls = 0;
        while boottime() - began < duration(DURING, DURING_LEAST) {
            let stream = 2 * calls + 1;
            let call = call_with(stream, LOOK, WORKER, 0);
            let call = [call, message(stream, &looked, END_STREAM)].concat();
            assert!(raw.send(&call).await, "{:?}", raw.seen());
            calls += 1;
            // Each answer has a beginning and an end.
            let answered = |seen: &Seen| seen.heads == 2 * calls as usize;
            let seen = raw.until(DURING, answered).await;
            assert!(seen.is_some(), "{:?}", raw.seen());
        }
        calls
    });
    let calls: u32 = join_all(callers).await.into_iter().sum();
    figures(&format!(
        "abuse: honest: {calls} calls of {many} connections"
    ));
}

/// Sends the head of a request in HTTP/1.1, whose body does not come.
async fn post(to: SocketAddr, number: usize) -> TcpStream {
    let mut tcp = opening(to, number).tcp().await.expect("a backlog");
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
    let doors = Doors::new(RULES, &[("worker", WORKER), ("useless", USELESS)]);
    let mut options = doors.options(String::new());
    let rate = ("LEASEHOLD__QUOTAS__ACQUIRES_PER_SECOND", "100000");
    options.env.push((rate.0.to_owned(), rate.1.to_owned()));
    let mut site = Site::start_guarded(options, WORKER).await;
    let (api, admin) = (site.broker.addr(), site.broker.admin());
    let many = count(64, 32);
    site.works(honest(api, many)).await;
    for token in [None, Some(USELESS)] {
        for (to, paths) in [(api, API), (admin, ADMIN)] {
            // Calls of strangers to both listeners go the same way, and so do those of callers.
            if scale() < 1.0 && token.is_some() != (to == api) {
                continue;
            }
            let abuser = Abuser { to, paths, token };
            let who = token.map_or("strangers", |_| "callers without rules");
            let which = if to == api { "API" } else { "admin" };
            let who = format!("{who}, {which}");
            let name = format!("{who}: calls without a message");
            hold(&mut site, &name, many, async |number| {
                abuser.heads(number).await
            })
            .await;
            let name = format!("{who}: messages without an end");
            hold(&mut site, &name, many, async |number| {
                abuser.pieces(number).await
            })
            .await;
            let name = format!("{who}: empty messages");
            hold(&mut site, &name, many, async |number| {
                abuser.streams(number).await
            })
            .await;
            let health = Abuser {
                paths: &[HEALTH],
                ..abuser
            };
            let name = format!("{who}: watches of health");
            hold(&mut site, &name, many, async |number| {
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
    hold(&mut site, name, many, async |number| {
        abuser.streams(number).await
    })
    .await;
    hold(&mut site, "unread refusals", many, async |number| {
        abuser.unread(number, MAX_FRAME).await
    })
    .await;
    let name = "unread refusals of messages in small frames";
    hold(&mut site, name, many, async |number| {
        abuser.unread(number, SMALL_FRAME).await
    })
    .await;
    hold(
        &mut site,
        "refusals that are read slowly",
        many,
        async |number| {
            let raw = abuser.unread(number, MAX_FRAME).await?;
            for stream in [1, 3, 5, 7] {
                let more = [window_update(0, 26 << 10), window_update(stream, 26 << 10)];
                let _ = sent(&raw, &more.concat()).await;
            }
            Some(raw)
        },
    )
    .await;
    let idle = count(1_000, 200);
    hold(&mut site, "idle connections", idle, async |number| {
        opening(api, number).open().await.ok()
    })
    .await;
    site.settles().await;
    let posts = join_all((0..idle).map(|number| post(admin, number))).await;
    let cut = join_all(posts.into_iter().map(|tcp| is_closed(tcp, SLOWED))).await;
    assert_eq!(cut, vec![true; idle], "posts without a body");
    sleep(duration(DURING, DURING_LEAST)).await;
    site.suffered(
        "posts without a body",
        &[Attempt {
            taken: idle,
            ..Attempt::default()
        }],
    )
    .await;
    site.end().await;
}
