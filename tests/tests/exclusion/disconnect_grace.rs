//! The disconnect grace of a lease, after which the lock of a disconnected client is free.

use std::time::Duration;

use leasehold_server::{
    broker::lease_stream::{StreamCommand, StreamEvent},
    lock::{AcquireCall, LeaseOptions, LockKey, Ttl, expiry_ms},
};
use leasehold_tests::{
    broker::{
        delayed_store::DelayedStore,
        local_stream::{LocalStream, unlimited_broker},
    },
    redlock::broker::waiting_call,
    store_fixture::lock_key,
};
use tokio::time::{Instant, advance, sleep, sleep_until};

const TTL_MS: u64 = 10_000;
const GRACE_MS: u64 = 8_000;
/// Allowance for the timers of the broker.
const TICK: Duration = Duration::from_millis(10);

/// Returns a call whose lease has a disconnect grace.
fn graced_call(lock: &LockKey, grace_ms: u64) -> AcquireCall {
    AcquireCall {
        ttl: Ttl::from_stored(TTL_MS),
        options: LeaseOptions {
            disconnect_grace_ms: Some(grace_ms),
            ..LeaseOptions::default()
        },
        ..waiting_call(lock, Duration::from_secs(1))
    }
}

#[tokio::test(start_paused = true)]
async fn the_grace_begins_at_the_disconnect_also_after_an_earlier_silence() {
    let broker = unlimited_broker(DelayedStore::new());
    let lock = lock_key("default", "graced");
    let mut stream = LocalStream::open(&broker);
    stream.acquire(1, graced_call(&lock, GRACE_MS));
    stream.granted(1).await;
    // The client is silent until its lease is no longer valid, and is heard again before the lease
    // expires.
    for (sequence, silence_ms) in [(1, TTL_MS + 1_000), (2, 5_000)] {
        sleep(Duration::from_millis(silence_ms)).await;
        expect_renewed(&mut stream, sequence).await;
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

#[tokio::test(start_paused = true)]
async fn a_broker_that_was_stalled_reads_the_heartbeats_of_a_graced_lease_first() {
    let broker = unlimited_broker(DelayedStore::new());
    let lock = lock_key("default", "graced");
    let mut stream = LocalStream::open(&broker);
    stream.acquire(1, graced_call(&lock, 0));
    stream.granted(1).await;
    // The first stall delays the detection of the silence.
    advance(Duration::from_millis(TTL_MS + 500)).await;
    expect_renewed(&mut stream, 1).await;
    stream.acquire(2, graced_call(&lock_key("default", "long"), 1_000));
    stream.granted(2).await;
    // The second one begins during the grace, whose end it delays.
    sleep(Duration::from_millis(TTL_MS + 100)).await;
    let event = stream.event().await;
    assert!(
        matches!(event, Some(StreamEvent::Ended { .. })),
        "{event:?}"
    );
    advance(Duration::from_millis(1_400)).await;
    expect_renewed(&mut stream, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_live_client_is_not_silent_when_max_hold_shortens_its_validity() {
    let store = DelayedStore::new();
    // The validity of a late renewal ends with `max_hold`, sooner after its heartbeat.
    store.set_renewal_delay_ms(200);
    let broker = unlimited_broker(store);
    let lock = lock_key("default", "graced");
    let mut stream = LocalStream::open(&broker);
    let mut call = graced_call(&lock, 0);
    call.options.max_hold_ms = Some(TTL_MS + 2_000);
    stream.acquire(1, call);
    stream.granted(1).await;
    let granted_at = Instant::now();
    let at = |ms| granted_at + Duration::from_millis(ms);
    for (sequence, sent_ms) in [(1, 6_000), (2, TTL_MS + 1_500)] {
        sleep_until(at(sent_ms)).await;
        stream.send(StreamCommand::Heartbeat { sequence });
        while !matches!(stream.event().await, Some(StreamEvent::Acknowledged { .. })) {}
    }
    // The client relies on the first renewal until 11.8 s of a clock that may be slower by a fifth.
    // The store keeps the lease for that time.
    let expires_ms = 6_200 + expiry_ms(5_800);
    for (ms, is_held) in [
        (TTL_MS + 2_500, true),
        (expires_ms - 1, true),
        (expires_ms, false),
    ] {
        sleep_until(at(ms)).await;
        let state = broker.get(&lock).await.expect("it answers");
        let holder_count = state.map_or(0, |state| state.holder_count);
        assert_eq!(holder_count > 0, is_held, "{ms} ms after the grant");
    }
}

/// Sends a heartbeat, and asserts that the next event is its acknowledgement.
async fn expect_renewed(stream: &mut LocalStream, sequence: i64) {
    stream.send(StreamCommand::Heartbeat { sequence });
    let event = stream.event().await;
    let is_renewed = matches!(event, Some(StreamEvent::Acknowledged { .. }));
    assert!(is_renewed, "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_end_has_begun_is_not_renewed() {
    let store = DelayedStore::new();
    let broker = unlimited_broker(store.clone());
    let lock = lock_key("default", "graced");
    let mut stream = LocalStream::open(&broker);
    stream.acquire(1, graced_call(&lock, 2_000));
    stream.granted(1).await;
    // The client is silent until the grace has passed, and is heard again while the broker does not
    // know whether its release of the lease was executed. The broker repeats the release.
    store.lose_one_release().await;
    stream.send(StreamCommand::Heartbeat { sequence: 1 });
    let event = stream.event().await;
    let is_ended = matches!(event, Some(StreamEvent::Ended { .. }));
    assert!(is_ended, "{event:?}");
}
