//! Waits on a lease stream, and the effect of missing heartbeats and breaks on waits and leases.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, LeaseEndReason, hold_response::Message as Response};
use leasehold_tests::{
    broker::{deployment::Deployment, in_process::InProcessBroker},
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
/// Maximum delay of a grant after the lock has become free.
const SLACK: Duration = Duration::from_millis(200);

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::from_secs(60))
}

#[tokio::test]
async fn a_waiter_receives_its_queue_position_and_the_holder() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let holder = Client::new("holder", &addrs, 0);
    let long = AcquireCall::new("a", 30 * TTL, Duration::ZERO);
    let held = holder.acquire_at(0, &long).await.expect("it is free");
    let mut streams = Vec::new();
    for at in [0, 1, 0, 1] {
        let mut stream = StreamClient::open(addrs[at]).await;
        let call = stream.acquire(&waiting_call("a"), 1).await;
        let queued = stream.next_queue_position(call).await;
        let length = i32::try_from(streams.len() + 1).expect("four");
        assert_eq!((queued.position, queued.queue_length), (length, length));
        let [shown] = queued.holders.as_slice() else {
            panic!("one holder: {queued:?}");
        };
        assert_eq!(shown.lease_id, held.lease.lease_id);
        assert_eq!(shown.owner.as_ref().expect("an owner").id, "holder");
        let interval = queued.heartbeat_interval.expect("an interval");
        let interval = Duration::try_from(interval).expect("positive");
        assert_eq!(interval, Duration::from_millis(666));
        streams.push((stream, call));
    }
    let (second, call) = &mut streams[1];
    second.cancel(*call).await;
    let refused = second.expect_refused(*call).await;
    assert_eq!(refused.reason(), ErrorReason::Cancelled);
    streams.remove(1);
    for (stream, _) in &mut streams {
        stream.heartbeat().await;
    }
    for (index, (stream, call)) in (1..).zip(&mut streams).skip(1) {
        let queued = stream.next_queue_position(*call).await;
        assert_eq!((queued.position, queued.queue_length), (index, 3));
    }
    holder.release_at(0, &held).await.expect("the holder");
    let (mut first, call) = streams.remove(0);
    first.expect_granted(call).await;
    for (index, (stream, call)) in (1..).zip(&mut streams) {
        let queued = stream.next_queue_position(*call).await;
        assert_eq!((queued.position, queued.queue_length), (index, 2));
    }
}

#[tokio::test]
async fn a_grant_counts_from_the_newest_heartbeat_before_its_command() {
    let deployment = Deployment::start(1).await;
    let mut stream = StreamClient::open(deployment.addrs()[0]).await;
    let sequence = stream.heartbeat().await;
    stream.wait_until_read().await;
    let redis = deployment.redis.process();
    redis.pause().await;
    let call = stream.acquire(&immediate_call("a"), 1).await;
    stream.wait_until_read().await;
    for _ in 0..3 {
        stream.heartbeat().await;
    }
    stream.wait_until_read().await;
    redis.resume();
    let Response::Granted(granted) = stream.next_event().await else {
        panic!("no grant");
    };
    assert_eq!((granted.call_id, granted.as_of_sequence), (call, sequence));
}

#[tokio::test]
async fn a_renewal_counts_from_the_heartbeat_before_its_command() {
    let deployment = Deployment::start(1).await;
    let mut stream = StreamClient::open(deployment.addrs()[0]).await;
    let call = stream.acquire(&immediate_call("a"), 1).await;
    stream.expect_granted(call).await;
    let redis = deployment.redis.process();
    redis.pause().await;
    let sequence = stream.heartbeat().await;
    stream.wait_until_read().await;
    for _ in 0..3 {
        stream.heartbeat().await;
    }
    stream.wait_until_read().await;
    redis.resume();
    let acknowledged = stream.wait_for(|message| match message {
        Response::Ack(ack) if !ack.leases.is_empty() => Some(ack.sequence),
        _ => None,
    });
    assert_eq!(acknowledged.await, sequence);
}

/// Releases the lock while the heartbeats of its waiter continue. Returns the heartbeat from which
/// the waiter's grant counts, and the heartbeats before and after the release.
async fn handed_off_after(silence: Duration) -> (i64, [i64; 2]) {
    let deployment = Deployment::start(1).await;
    let mut holder = StreamClient::open(deployment.addrs()[0]).await;
    let long = AcquireCall::new("a", 30 * TTL, Duration::ZERO);
    let call = holder.acquire(&long, 1).await;
    let held = holder.expect_granted(call).await;
    let mut waiter = StreamClient::open(deployment.addrs()[0]).await;
    let call = waiter.acquire(&waiting_call("a"), 1).await;
    waiter.next_queue_position(call).await;
    let before = waiter.heartbeat().await;
    waiter.wait_until_read().await;
    sleep(silence).await;
    let redis = deployment.redis.process();
    redis.pause().await;
    holder.release(&held.lease_id).await;
    holder.wait_until_read().await;
    let after = waiter.heartbeat().await;
    waiter.wait_until_read().await;
    redis.resume();
    let as_of = waiter.wait_for(|message| match message {
        Response::Granted(granted) => Some(granted.as_of_sequence),
        _ => None,
    });
    (as_of.await, [before, after])
}

#[tokio::test]
async fn a_hand_off_counts_from_no_heartbeat_that_came_after_the_release() {
    let (as_of, [before, _]) = handed_off_after(Duration::ZERO).await;
    assert_eq!(as_of, before);
}

#[tokio::test]
async fn a_hand_off_is_claimed_when_half_of_its_validity_would_be_over() {
    let (as_of, [_, after]) = handed_off_after(TTL / 2).await;
    assert_eq!(as_of, after);
}

#[tokio::test]
async fn a_hand_off_counts_from_the_newest_heartbeat_also_at_the_releasing_broker() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("holder", &[broker.api], 0);
    let held = client
        .acquire(&immediate_call("a"))
        .await
        .expect("it is free");
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire(&waiting_call("a"), 1).await;
    client.wait_for_queue_length_at(0, "a", 1).await;
    let sequence = stream.heartbeat().await;
    stream.wait_until_read().await;
    client.release(&held).await.expect("the holder");
    let Response::Granted(granted) = stream.next_event().await else {
        panic!("no grant");
    };
    assert_eq!((granted.call_id, granted.as_of_sequence), (call, sequence));
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_wait_for_several_locks_keeps_those_that_it_has() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("holder", &[broker.api], 0);
    let long = AcquireCall::new("b", 30 * TTL, Duration::ZERO);
    let held = client.acquire_at(0, &long).await.expect("it is free");
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire_all(&["a", "b"], &waiting_call("")).await;
    client.wait_for_queue_length_at(0, "b", 1).await;
    let before = client.get_lock_at(0, "a").await.expect("it is held");
    // The loop lasts longer than the store holds the first lock without heartbeats.
    for _ in 0..8 {
        sleep(TTL / 4).await;
        stream.heartbeat().await;
    }
    client.release_at(0, &held).await.expect("the holder");
    let lease = stream.expect_granted(call).await;
    let tokens: Vec<_> = lease
        .grants
        .iter()
        .map(|grant| grant.fencing_token)
        .collect();
    assert_eq!(before.holders[0].fencing_token, tokens[0]);
    assert!(tokens[1] > tokens[0], "{tokens:?}");
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_waiter_that_is_silent_for_six_seconds_is_not_granted() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("holder", &[broker.api], 0);
    let long = AcquireCall::new("a", 30 * TTL, Duration::ZERO);
    client.acquire(&long).await.expect("it is free");
    let mut stream = StreamClient::open(broker.api).await;
    let asked_at = boottime();
    let call = stream.acquire(&waiting_call("a"), 1).await;
    let refused = stream.expect_refused(call).await;
    assert_eq!(refused.reason(), ErrorReason::Cancelled);
    let silent = boottime() - asked_at;
    let six = Duration::from_secs(6);
    assert!((six..six + 2 * SLACK).contains(&silent), "{silent:?}");
    client.wait_for_queue_length_at(0, "a", 0).await;
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_disconnect_grace_frees_soon_after_a_break_also_on_another_broker() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let client = Client::new("next", &addrs, 1);
    for moves in [false, true] {
        let lock = format!("moves-{moves}");
        let mut stream = StreamClient::open(addrs[0]).await;
        let call = stream
            .acquire(&immediate_call(&lock).with_disconnect_grace(0), 1)
            .await;
        let lease = stream.expect_granted(call).await;
        if moves {
            let mut new = StreamClient::open(addrs[1]).await;
            new.attach(&lease, 2).await;
            let Response::Attached(_) = new.next_event().await else {
                panic!("not attached");
            };
            drop(stream);
            stream = new;
            let sequence = stream.heartbeat().await;
            assert_eq!(
                stream.wait_for_ack(sequence).await,
                1,
                "the old stream's end"
            );
        }
        let next = client.start_acquire_at(1, &waiting_call(&lock));
        client.wait_for_queue_length_at(1, &lock, 1).await;
        let broken = boottime();
        drop(stream);
        next.await.expect("no panic").expect("its turn");
        let after = boottime() - broken;
        assert!(after < SLACK, "{after:?}");
    }
}

#[tokio::test]
async fn a_silent_holder_with_a_disconnect_grace_loses_its_lock_after_its_validity() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("next", &[broker.api], 0);
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream
        .acquire(&immediate_call("a").with_disconnect_grace(100), 1)
        .await;
    stream.expect_granted(call).await;
    sleep(TTL / 4).await;
    let sequence = stream.heartbeat().await;
    let notified_at = boottime();
    stream.wait_for_ack(sequence).await;
    client.acquire(&waiting_call("a")).await.expect("its turn");
    let after = boottime() - notified_at;
    let free = TTL + Duration::from_millis(100);
    assert!((free..free + SLACK).contains(&after), "{after:?}");
    let Response::Ended(ended) = stream.next_event().await else {
        panic!("not notified");
    };
    assert_eq!(ended.reason(), LeaseEndReason::Expired);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_holder_is_asked_to_finish_when_max_hold_cuts_its_validity() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let granted = boottime();
    let call = stream
        .acquire(&immediate_call("a").with_max_hold(2 * TTL), 1)
        .await;
    let lease = stream.expect_granted(call).await;
    let requested = loop {
        stream.heartbeat().await;
        match stream.next_message().await {
            Response::ReleaseRequested(requested) => break requested,
            Response::Ack(_) => sleep(TTL / 8).await,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(requested.lease_id, lease.lease_id);
    let grace = Duration::try_from(requested.grace.expect("a grace")).expect("positive");
    let end = boottime() + grace - granted;
    assert!(end <= 2 * TTL + SLACK && end >= 2 * TTL - SLACK, "{end:?}");
    sleep(grace).await;
    stream.heartbeat().await;
    let Response::Ended(ended) = stream.next_event().await else {
        panic!("not notified");
    };
    assert_eq!(ended.reason(), LeaseEndReason::MaxHold);
    drop(stream);
    broker.stop().await;
}
