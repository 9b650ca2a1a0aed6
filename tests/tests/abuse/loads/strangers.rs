//! Many connections without a credential, each with a little: together they take little.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::ListLocksRequest;
use leasehold_tests::{
    guarded::{EVERYTHING, Guarded},
    raw_http2::{
        Opening, RawHttp2,
        frames::{DATA, announced, call, frame},
    },
    scale::{count, figures},
};

const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
const SET_LIMIT: &str = "/leasehold.v1.AdminService/SetLockLimit";
/// What all of them may cost.
const GROWTH_MAX_KIB: u64 = 64 << 10;
/// Calls of a connection.
const CALLS: u32 = 1_000;
/// Streams of a connection that begin a message, and how much of 64 KiB they send.
const PIECES: u32 = 60;
const PIECE: usize = 16_000;
const SOON: Duration = Duration::from_secs(60);

/// A connection with heads of calls, all of which have been answered or reset.
async fn heads(to: SocketAddr, path: &str) -> RawHttp2 {
    let raw = Opening::to(to).open().await.expect("a place");
    let heads: Vec<_> = (0..CALLS).map(|n| call(2 * n + 1, path, 0)).collect();
    raw.send(&heads.concat()).await;
    let all = usize::try_from(CALLS).expect("a few");
    let is_done = |seen: &leasehold_tests::raw_http2::Seen| seen.heads.max(seen.resets) >= all;
    let done = raw.until(SOON, is_done).await;
    assert!(
        done.is_some() || raw.seen().closed.is_some(),
        "{:?}",
        raw.seen()
    );
    raw
}

/// A connection with messages that do not end.
async fn pieces(to: SocketAddr, path: &str) -> RawHttp2 {
    let raw = Opening::to(to).open().await.expect("a place");
    for number in 0..PIECES {
        let stream = 2 * number + 1;
        let piece = [announced(65_000).as_slice(), &[0; PIECE]].concat();
        raw.send(&call(stream, path, 0)).await;
        raw.send(&frame(DATA, 0, stream, &piece)).await;
    }
    let _cut_or_not = raw.lives(SOON).await;
    raw
}

#[tokio::test]
async fn calls_of_strangers_without_their_messages_take_little_memory() {
    let site = Guarded::start(EVERYTHING, &[("alice", "alice")]).await;
    let resident = || site.broker.process().resident_kib();
    let mut looks = site.caller("alice").looks;
    looks
        .list_locks(ListLocksRequest::default())
        .await
        .expect("a list");
    let before = resident();
    let (mut open, mut most) = (Vec::new(), 0);
    for _ in 0..count(64, 16) {
        for (listener, path) in [
            (site.broker.addr(), ACQUIRE),
            (site.broker.admin(), SET_LIMIT),
        ] {
            open.push(heads(listener, path).await);
            open.push(pieces(listener, path).await);
            most = most.max(resident());
        }
    }
    let grown = most.saturating_sub(before);
    figures(&format!(
        "strangers: {} connections cost {} MiB",
        open.len(),
        grown >> 10
    ));
    assert!(grown <= GROWTH_MAX_KIB, "{grown} KiB more");
    let listed = looks.list_locks(ListLocksRequest::default()).await;
    listed.expect("others are served");
}
