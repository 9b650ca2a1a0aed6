//! Connections to the API: their maximum age, and the streams that stay reserved for releases.

use std::{pin::pin, time::Duration};

use leasehold_proto::v1::{ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    broker::{deployment::Deployment, in_process::InProcessBroker, process::BrokerOptions},
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    net::balancer::Balancer,
    redis::server::RedisServer,
    status::error_reason,
};
use tokio::time::{sleep, timeout};
use tonic::Code;

const TTL: Duration = Duration::from_secs(20);
const WAIT: Duration = Duration::from_secs(60);
/// Maximum number of waiting calls on a connection, three quarters of its 1,000 streams.
const WAITS_MAX: usize = 750;

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, WAIT)
}

#[tokio::test]
async fn an_old_stream_is_asked_to_reconnect_and_keeps_its_lease() {
    const AGE: Duration = Duration::from_secs(2);
    const GRACE: Duration = Duration::from_secs(1);
    /// Time for which the broker continues to read, so that frames that the client sent before the
    /// GOAWAY do not count as resets.
    const READ_ON: Duration = Duration::from_secs(2);
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    for (key, value) in [("AGE", AGE), ("AGE_GRACE", GRACE)] {
        let key = format!("LEASEHOLD__HTTP2__MAX_CONNECTION_{key}");
        options.env.push((key, format!("{}s", value.as_secs())));
    }
    let deployment = Deployment::start_on(redis, &options, 1).await;
    let addr = deployment.addrs()[0];
    let opened = boottime();
    let mut stream = StreamClient::open(addr).await;
    let call = stream
        .acquire(&immediate_call("a").with_disconnect_grace(0), 1)
        .await;
    let lease = stream.expect_granted(call).await;
    // Calls on an aging connection open a new connection automatically.
    let client = Client::new("other", &[addr], 0);
    let requested_after = loop {
        match timeout(AGE / 10, stream.next_event()).await {
            Ok(Response::Reconnect(_)) => break boottime() - opened,
            Ok(other) => panic!("{other:?}"),
            Err(_) => drop(client.get_lock_at(0, "a").await.expect("it is held")),
        }
    };
    assert!(requested_after <= AGE + AGE / 4, "{requested_after:?}");
    let sequence = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(sequence).await, 1, "still served");
    assert!(stream.is_ended_by_broker().await, "in good order");
    let ended = boottime() - opened;
    assert!(
        ended <= requested_after + GRACE + READ_ON + AGE / 5,
        "{ended:?}"
    );
    // The pause would release the lease if its disconnect grace of 0 applied.
    sleep(AGE / 10).await;
    let held = client.get_lock_at(0, "a").await.expect("it is held");
    assert_eq!(held.holders[0].lease_id, lease.lease_id);
    let mut next = StreamClient::open(addr).await;
    next.attach(&lease, 2).await;
    assert!(matches!(next.next_event().await, Response::Attached(_)));
}

#[tokio::test]
async fn an_old_connection_takes_no_new_calls_and_keeps_those_that_it_has() {
    const AGE: Duration = Duration::from_secs(1);
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    for key in ["AGE", "AGE_GRACE"] {
        let key = format!("LEASEHOLD__HTTP2__MAX_CONNECTION_{key}");
        options.env.push((key, format!("{}s", AGE.as_secs())));
    }
    let deployment = Deployment::start_on(redis, &options, 1).await;
    let balancer = Balancer::start(&deployment.brokers).await;
    let holder = Client::new("holder", &deployment.addrs(), 0);
    let held = holder
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let client = Client::new("waits", &[balancer.addr()], 0);
    let wait = waiting_call("a");
    let mut granted = pin!(client.acquire_at(0, &wait));
    let opened = boottime();
    let (mut most, mut unsent) = (0, 0);
    // The time exceeds the age at which a lease stream that ignores the reconnect request is
    // closed.
    while boottime() - opened < AGE * 5 {
        let early = timeout(AGE / 50, &mut granted).await;
        assert!(early.is_err(), "{early:?} while it is held");
        // A request that was sent to the old connection after it stopped accepting calls may fail
        // unsent. Clients in other languages repeat it automatically.
        if let Err(status) = client.get_lock_at(0, "a").await {
            assert_eq!(status.code(), Code::Cancelled, "{status:?}");
            unsent += 1;
        }
        most = most.max(balancer.open_connections(0));
    }
    assert_eq!(most, 2, "the old connection and a new one");
    // New connections reach their maximum age, too.
    assert!(unsent <= 5, "{unsent}");
    holder.release_at(0, &held).await.expect("the holder");
    granted.await.expect("its turn");
}

#[tokio::test]
async fn a_connection_full_of_waits_still_releases() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("crowd", &[broker.api], 0);
    let held = client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let waits: Vec<_> = (0..WAITS_MAX)
        .map(|_| client.start_acquire_at(0, &waiting_call("a")))
        .collect();
    client.wait_for_queue_length_at(0, "a", WAITS_MAX).await;
    let one_more = client.acquire_at(0, &waiting_call("a")).await;
    let refused = one_more.expect_err("too many wait");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(error_reason(&refused), Some(ErrorReason::QuotaExceeded));
    let other = Client::new("other", &[broker.api], 0);
    let elsewhere = other.start_acquire_at(0, &waiting_call("a"));
    other.wait_for_queue_length_at(0, "a", WAITS_MAX + 1).await;
    client.release_at(0, &held).await.expect("the holder");
    drop((waits, elsewhere));
    broker.stop().await;
}
