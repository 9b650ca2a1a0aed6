//! Many unauthenticated connections with a small load each, which cost little memory in total.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::ListLocksRequest;
use leasehold_tests::{
    access::fixture::{ALLOW_ALL_POLICY, AccessControlFixture},
    net::raw_http2::{
        RawHttp2, RawHttp2Options,
        frames::{DATA, call_headers, frame, message_prefix},
    },
    scale::{print_figures, scaled_count},
};

const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
const OPEN: &str = "/leasehold.v1.AdminService/OpenLock";
/// Maximum growth of the broker's memory for all connections.
const GROWTH_MAX_KIB: u64 = 64 << 10;
/// Number of calls per connection.
const CALLS: u32 = 1_000;
/// Number of streams per connection with an incomplete message, and the bytes of 64 KiB that they
/// send.
const PIECES: u32 = 60;
const PIECE: usize = 16_000;
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Opens a connection with calls without messages, and waits until all are rejected.
async fn open_calls_without_messages(to: SocketAddr, path: &str) -> RawHttp2 {
    let raw = RawHttp2Options::new(to).open().await.expect("a place");
    let heads: Vec<_> = (0..CALLS)
        .map(|n| call_headers(2 * n + 1, path, 0))
        .collect();
    raw.send(&heads.concat()).await;
    let all = usize::try_from(CALLS).expect("a few");
    let is_done = |seen: &leasehold_tests::net::raw_http2::ReceivedFrames| {
        seen.headers.max(seen.resets) >= all
    };
    let done = raw.wait_until(TIME_LIMIT, is_done).await;
    assert!(
        done.is_some() || raw.received().closed_at.is_some(),
        "{:?}",
        raw.received()
    );
    raw
}

/// Opens a connection with incomplete messages.
async fn open_incomplete_messages(to: SocketAddr, path: &str) -> RawHttp2 {
    let raw = RawHttp2Options::new(to).open().await.expect("a place");
    for number in 0..PIECES {
        let stream = 2 * number + 1;
        let piece = [message_prefix(65_000).as_slice(), &[0; PIECE]].concat();
        raw.send(&call_headers(stream, path, 0)).await;
        raw.send(&frame(DATA, 0, stream, &piece)).await;
    }
    let _cut_or_not = raw.is_responding(TIME_LIMIT).await;
    raw
}

#[tokio::test]
async fn calls_of_strangers_without_their_messages_take_little_memory() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("alice", "alice")]).await;
    let resident = || fixture.broker.process().resident_kib();
    let mut looks = fixture.caller("alice").inspection;
    looks
        .list_locks(ListLocksRequest::default())
        .await
        .expect("a list");
    let before = resident();
    let (mut open, mut most) = (Vec::new(), 0);
    for _ in 0..scaled_count(64, 16) {
        for (listener, path) in [
            (fixture.broker.addr(), ACQUIRE),
            (fixture.broker.admin(), OPEN),
        ] {
            open.push(open_calls_without_messages(listener, path).await);
            open.push(open_incomplete_messages(listener, path).await);
            most = most.max(resident());
        }
    }
    let grown = most.saturating_sub(before);
    print_figures(&format!(
        "strangers: {} connections cost {} MiB",
        open.len(),
        grown >> 10
    ));
    assert!(grown <= GROWTH_MAX_KIB, "{grown} KiB more");
    let listed = looks.list_locks(ListLocksRequest::default()).await;
    listed.expect("others are served");
}
