//! Behaviour of a single lease stream. A lock is held while its stream exists.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::time::Duration;

use leasehold_proto::v1::{
    ErrorReason, Heartbeat, HoldAcquire, LeaseEndReason, hold_request::Message as Request,
    hold_response::Message as Response,
};
use leasehold_tests::{
    broker::{deployment::Deployment, in_process::InProcessBroker, process::KEY_PREFIX},
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client, HeldLease},
    },
    clock::boottime,
    redis::command_counts::CommandCounts,
    status::error_reason,
};
use tokio::time::sleep;
use tonic::Code;

const TTL: Duration = Duration::from_secs(1);
/// Expiry in the store for this TTL.
const EXPIRY: Duration = Duration::from_millis(1_450);

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn long(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, 60 * TTL, Duration::ZERO)
}

fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::from_secs(60))
}

#[tokio::test]
async fn heartbeats_keep_a_lease_and_a_release_ends_it() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire(&immediate_call("a"), 1).await;
    let lease = stream.expect_granted(call).await;
    let client = Client::new("other", &[broker.api], 0);
    for _ in 0..10 {
        sleep(TTL / 4).await;
        let sequence = stream.heartbeat().await;
        assert_eq!(stream.wait_for_ack(sequence).await, 1);
    }
    let held = client.get_lock_at(0, "a").await.expect("it is held");
    assert_eq!(held.holders[0].lease_id, lease.lease_id);
    let call = stream.release(&lease.lease_id).await;
    let Response::Released(released) = stream.next_event().await else {
        panic!("no answer to the release");
    };
    assert_eq!((released.call_id, released.already_released), (call, false));
    client
        .acquire(&immediate_call("a"))
        .await
        .expect("it is free");
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_heartbeat_renews_many_leases_with_few_scripts() {
    const LEASES: usize = 200;
    /// Upper bound: four renewals of at most 64 locks each, and the periodic scripts of the broker.
    const SCRIPTS_MAX: u64 = 8;
    let deployment = Deployment::start(1).await;
    let mut stream = StreamClient::open(deployment.addrs()[0]).await;
    for number in 0..LEASES {
        let call = stream.acquire(&long(&number.to_string()), 1).await;
        stream.expect_granted(call).await;
    }
    let mut redis = deployment.redis.connect().await;
    let before = CommandCounts::read(&mut redis).await;
    let sequence = stream.heartbeat().await;
    let mut renewed = 0;
    while renewed < LEASES {
        renewed += stream.wait_for_ack(sequence).await;
    }
    let after = CommandCounts::read(&mut redis).await;
    let scripts = after.get("evalsha") - before.get("evalsha");
    assert!(scripts <= SCRIPTS_MAX, "{scripts}");
}

#[tokio::test]
async fn a_broken_stream_renews_no_more() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire(&immediate_call("a"), 1).await;
    stream.expect_granted(call).await;
    let sequence = stream.heartbeat().await;
    stream.wait_for_ack(sequence).await;
    let renewed = boottime();
    drop(stream);
    let client = Client::new("next", &[broker.api], 0);
    client
        .acquire(&waiting_call("a"))
        .await
        .expect("it is free at E");
    let waited = boottime() - renewed;
    assert!(waited > EXPIRY - Duration::from_millis(100), "{waited:?}");
    assert!(waited < EXPIRY + Duration::from_millis(300), "{waited:?}");
    broker.stop().await;
}

#[tokio::test]
async fn close_frees_at_once_and_ends_the_stream() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    for name in ["a", "b"] {
        let call = stream.acquire(&long(name), 1).await;
        stream.expect_granted(call).await;
    }
    stream.close().await;
    assert!(stream.ends_after_half_close().await, "in good order");
    let client = Client::new("next", &[broker.api], 0);
    for name in ["a", "b"] {
        client
            .acquire(&immediate_call(name))
            .await
            .expect("it is free");
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_waiter_is_granted_when_the_holder_releases() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let client = Client::new("holder", &addrs, 0);
    let held = client.acquire_at(0, &long("a")).await.expect("it is free");
    for at in [0, 1] {
        let mut stream = StreamClient::open(addrs[at]).await;
        let sequence = stream.heartbeat().await;
        let call = stream.acquire(&waiting_call("a"), 1).await;
        client.wait_for_queue_length_at(0, "a", 1).await;
        if at == 0 {
            stream.cancel(call).await;
            let refused = stream.expect_refused(call).await;
            assert_eq!(refused.reason(), ErrorReason::Cancelled);
            client.wait_for_queue_length_at(0, "a", 0).await;
            continue;
        }
        client.release_at(0, &held).await.expect("the holder");
        let Response::Granted(granted) = stream.next_event().await else {
            panic!("no grant");
        };
        assert_eq!((granted.call_id, granted.as_of_sequence), (call, sequence));
    }
}

#[tokio::test]
async fn a_lease_moves_to_another_broker_and_the_old_stream_is_notified() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let mut old = StreamClient::open(addrs[0]).await;
    let call = old.acquire(&immediate_call("a"), 1).await;
    let lease = old.expect_granted(call).await;
    let mut new = StreamClient::open(addrs[1]).await;
    let call = new.attach(&lease, 2).await;
    let Response::Attached(attached) = new.next_event().await else {
        panic!("not attached");
    };
    assert_eq!(
        (attached.call_id, &attached.lease_id),
        (call, &lease.lease_id)
    );
    let Response::Ended(ended) = old.next_event().await else {
        panic!("not notified");
    };
    assert_eq!(ended.reason(), LeaseEndReason::Moved);
    let late = old.attach(&lease, 1).await;
    assert_eq!(
        old.expect_refused(late).await.reason(),
        ErrorReason::StaleAttach
    );
    drop(old);
    for _ in 0..8 {
        sleep(TTL / 4).await;
        let sequence = new.heartbeat().await;
        assert_eq!(new.wait_for_ack(sequence).await, 1);
    }
    let client = Client::new("other", &addrs, 0);
    let held = client.get_lock_at(0, "a").await.expect("it is held");
    let token = lease.grants[0].fencing_token;
    assert_eq!(held.holders[0].fencing_token, token);
}

#[tokio::test]
async fn a_lease_on_a_stream_is_changed_only_there() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire_all(&["a", "b"], &immediate_call("")).await;
    let lease = stream.expect_granted(call).await;
    let client = Client::new("other", &[broker.api], 0);
    let part = client.release_lock_at(0, &lease, "a").await;
    let refused = part.expect_err("it is on a stream");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StaleAttach));
    let under = client
        .acquire_under_at(0, &immediate_call("c"), &lease)
        .await;
    let refused = under.expect_err("it is on a stream");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StaleAttach));
    let free = client.get_lock("c").await.expect("GetLock works");
    assert_eq!(free, None, "it was rolled back");
    let sequence = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(sequence).await, 1);
    let sent_at = boottime();
    let held = HeldLease { lease, sent_at };
    client.release_at(0, &held).await.expect("the whole lease");
    stream.heartbeat().await;
    let Response::Ended(ended) = stream.next_event().await else {
        panic!("not notified");
    };
    assert_eq!(ended.reason(), LeaseEndReason::Released);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn the_end_of_a_lease_is_notified_with_its_reason() {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let mut stream = StreamClient::open(addr).await;
    let call = stream.acquire(&immediate_call("lost"), 1).await;
    stream.expect_granted(call).await;
    let mut redis = deployment.redis.connect().await;
    let record = format!("{KEY_PREFIX}{{default:lost}}");
    assert_eq!(redis.must(&["DEL", &record]).await.integer(), 1);
    stream.heartbeat().await;
    let Response::Ended(ended) = stream.next_event().await else {
        panic!("not notified");
    };
    assert_eq!(ended.reason(), LeaseEndReason::StoreLost);
    let call = stream.acquire(&immediate_call("late"), 1).await;
    stream.expect_granted(call).await;
    sleep(EXPIRY).await;
    stream.heartbeat().await;
    let Response::Ended(ended) = stream.next_event().await else {
        panic!("not notified");
    };
    assert_eq!(ended.reason(), LeaseEndReason::Expired);
}

#[tokio::test]
async fn bad_input_is_refused_and_the_other_leases_live_on() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire(&immediate_call("a"), 1).await;
    let lease = stream.expect_granted(call).await;
    let mut anonymous = immediate_call("b");
    anonymous.request_id.clear();
    let call = stream.acquire(&anonymous, 1).await;
    let refused = stream.expect_refused(call).await;
    assert_eq!(refused.reason(), ErrorReason::InvalidField);
    assert_eq!(refused.code, i32::from(Code::InvalidArgument));
    assert!(
        refused.message.contains("request_id is required"),
        "{refused:?}"
    );
    let call = stream.acquire(&immediate_call("b"), 0).await;
    assert_eq!(
        stream.expect_refused(call).await.reason(),
        ErrorReason::InvalidField
    );
    let call = stream.release("aaaaaaaaaaaaaaaaaaaaaaaaaa").await;
    assert_eq!(
        stream.expect_refused(call).await.reason(),
        ErrorReason::LeaseNotFound
    );
    let call = stream.acquire(&immediate_call("a"), 1).await;
    let refused = stream.expect_refused(call).await;
    assert_eq!(refused.reason(), ErrorReason::LockHeld);
    assert!(!refused.details.is_empty(), "who holds it");
    let mut forged = lease.clone();
    forged.lease_token = "forged".to_owned();
    let call = stream.attach(&forged, 5).await;
    assert_eq!(
        stream.expect_refused(call).await.reason(),
        ErrorReason::NotHolder
    );
    let sequence = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(sequence).await, 1);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_call_id_in_use_an_expired_lease_and_a_sequence_going_back_change_nothing() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("holder", &[broker.api], 0);
    let held = client.acquire(&long("a")).await.expect("it is free");
    let late = client
        .acquire(&immediate_call("late"))
        .await
        .expect("it is free");
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire(&immediate_call("b"), 1).await;
    stream.expect_granted(call).await;
    let waits = stream.acquire(&waiting_call("a"), 1).await;
    let request = client.acquire_request(&immediate_call("c"));
    let twice = HoldAcquire {
        call_id: waits,
        request: Some(request),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    stream.send(Request::Acquire(twice)).await;
    let refused = stream.expect_refused(waits).await;
    assert_eq!(refused.reason(), ErrorReason::CallIdReused);
    for _ in 0..6 {
        sleep(TTL / 4).await;
        let sequence = stream.heartbeat().await;
        assert_eq!(stream.wait_for_ack(sequence).await, 1);
    }
    for sequence in [1, 0, -1] {
        stream
            .send(Request::Heartbeat(Heartbeat { sequence }))
            .await;
    }
    let call = stream.attach(&late.lease, 1).await;
    let refused = stream.expect_refused(call).await;
    assert_eq!(refused.reason(), ErrorReason::LeaseExpired);
    client.release(&held).await.expect("the holder");
    stream.expect_granted(waits).await;
    let sequence = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(sequence).await, 2);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn every_command_of_a_lease_is_answered_in_its_turn() {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let mut stream = StreamClient::open(addr).await;
    let call = stream.acquire(&immediate_call("a"), 1).await;
    let lease = stream.expect_granted(call).await;
    // A stopped store keeps the first command in flight until the broker has read the others.
    let redis = deployment.redis.process();
    redis.pause().await;
    let first = stream.release(&lease.lease_id).await;
    let second = stream.release(&lease.lease_id).await;
    let detach = stream.detach(&lease.lease_id).await;
    stream.wait_until_read().await;
    redis.resume();
    match stream.next_event().await {
        Response::Released(released) => assert_eq!(released.call_id, first),
        other => panic!("{other:?}"),
    }
    for call in [second, detach] {
        let refused = stream.expect_refused(call).await;
        assert_eq!(refused.reason(), ErrorReason::LeaseNotFound);
    }
    let call = stream.acquire(&immediate_call("a"), 1).await;
    let lease = stream.expect_granted(call).await;
    let detach = stream.detach(&lease.lease_id).await;
    match stream.next_event().await {
        Response::Done(done) => assert_eq!(done.call_id, detach),
        other => panic!("{other:?}"),
    }
    let client = Client::new("other", &[addr], 0);
    let sent_at = boottime();
    let held = HeldLease { lease, sent_at };
    client.renew_at(0, &held).await.expect("it is on no stream");
    client.release_at(0, &held).await.expect("the whole lease");
}

#[tokio::test]
async fn a_stream_takes_a_thousand_leases() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    for index in 0..1_000 {
        let call = stream.acquire(&long(&index.to_string()), 1).await;
        stream.expect_granted(call).await;
    }
    let call = stream.acquire(&immediate_call("one more"), 1).await;
    assert_eq!(
        stream.expect_refused(call).await.reason(),
        ErrorReason::TooManyLeases
    );
    let sequence = stream.heartbeat().await;
    let mut acknowledged = 0;
    while acknowledged < 1_000 {
        acknowledged += stream.wait_for_ack(sequence).await;
    }
    assert_eq!(acknowledged, 1_000);
    stream.close().await;
    assert!(stream.ends_after_half_close().await, "in good order");
    broker.stop().await;
}
