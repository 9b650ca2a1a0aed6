//! Drain of a broker that has leases and waits on its streams.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
};

const TTL: Duration = Duration::from_secs(20);

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::from_secs(60))
}

#[tokio::test]
async fn a_draining_broker_serves_its_streams_until_they_have_moved() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let client = Client::new("holder", &addrs, 1);
    let held = client
        .acquire_at(1, &immediate_call("b"))
        .await
        .expect("it is free");
    let mut old = StreamClient::open(addrs[0]).await;
    let call = old
        .acquire(&immediate_call("a").with_disconnect_grace(0), 1)
        .await;
    let lease = old.expect_granted(call).await;
    let waiting = waiting_call("b");
    let call = old.acquire(&waiting, 1).await;
    assert_eq!(old.next_queue_position(call).await.position, 1);
    let behind = client.start_acquire_at(1, &waiting_call("b"));
    client.wait_for_queue_length_at(1, "b", 2).await;
    deployment.brokers[0].terminate();
    let Response::Reconnect(_) = old.next_event().await else {
        panic!("not asked to move");
    };
    let sequence = old.heartbeat().await;
    assert_eq!(old.wait_for_ack(sequence).await, 1, "until it has moved");
    let late = old.acquire(&immediate_call("c"), 1).await;
    let refused = old.expect_refused(late).await;
    assert_eq!(refused.reason(), ErrorReason::Draining);
    let mut new = StreamClient::open(addrs[1]).await;
    new.attach(&lease, 2).await;
    let Response::Attached(_) = new.next_event().await else {
        panic!("not attached");
    };
    let call = new.acquire(&waiting, 2).await;
    assert_eq!(
        new.next_queue_position(call).await.position,
        1,
        "its queue position"
    );
    drop(old);
    assert_eq!(
        deployment.brokers[0].wait_for_exit().await,
        Some(0),
        "in good order"
    );
    let sequence = new.heartbeat().await;
    assert_eq!(new.wait_for_ack(sequence).await, 1);
    client.release_at(1, &held).await.expect("the holder");
    let next = new.expect_granted(call).await;
    new.release(&next.lease_id).await;
    behind.await.expect("no panic").expect("its turn");
}
