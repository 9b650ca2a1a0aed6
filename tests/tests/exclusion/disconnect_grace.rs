//! The disconnect grace of a lease, after which the lock of a disconnected client is free.

use std::time::Duration;

use leasehold_server::{
    broker::lease_stream::{StreamCommand, StreamEvent},
    lock::{AcquireCall, LeaseOptions, Ttl},
};
use leasehold_tests::{
    broker::{
        delayed_store::DelayedStore,
        local_stream::{LocalStream, unlimited_broker},
    },
    redlock::broker::waiting_call,
    store_fixture::lock_key,
};
use tokio::time::{Instant, sleep, sleep_until};

const TTL_MS: u64 = 10_000;
const GRACE_MS: u64 = 8_000;
/// Allowance for the timers of the broker.
const TICK: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn the_grace_begins_at_the_disconnect_also_after_an_earlier_silence() {
    let broker = unlimited_broker(DelayedStore::new());
    let lock = lock_key("default", "graced");
    let mut stream = LocalStream::open(&broker);
    let call = AcquireCall {
        ttl: Ttl::from_stored(TTL_MS),
        options: LeaseOptions {
            disconnect_grace_ms: Some(GRACE_MS),
            ..LeaseOptions::default()
        },
        ..waiting_call(&lock, Duration::from_secs(1))
    };
    stream.acquire(1, call);
    stream.granted(1).await;
    // The client is silent until its lease is no longer valid, and is heard again before the lease
    // expires.
    for (sequence, silence_ms) in [(1, TTL_MS + 1_000), (2, 5_000)] {
        sleep(Duration::from_millis(silence_ms)).await;
        stream.send(StreamCommand::Heartbeat { sequence });
        let event = stream.event().await;
        let is_renewed = matches!(event, Some(StreamEvent::Acknowledged { .. }));
        assert!(is_renewed, "{event:?}");
    }
    let disconnected_at = Instant::now();
    drop(stream);
    let grace_ends_at = disconnected_at + Duration::from_millis(GRACE_MS);
    for (at, is_held) in [(grace_ends_at - TICK, true), (grace_ends_at + TICK, false)] {
        sleep_until(at).await;
        let state = broker.get(&lock).await.expect("it answers");
        let holder_count = state.map_or(0, |state| state.holder_count);
        assert_eq!(holder_count > 0, is_held, "{:?}", at - disconnected_at);
    }
}
