//! Crowds of well-behaved clients, none of which is cut off.

use std::{net::SocketAddr, time::Duration};

use futures::{
    future::join_all,
    stream::{self, StreamExt as _},
};
use leasehold_proto::v1::{
    AcquireRequest, ErrorReason, LockTarget, Owner, ReleaseRequest,
    hold_response::Message as Response, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::{stream::StreamClient, unary::AcquireCall},
    redis::server::RedisServer,
    scale::{print_figures, scaled_count},
    status::error_reason,
};
use tokio::time::sleep;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;
use uuid::Uuid;

/// Number of connections that are opened for one lease each.
const CYCLES: usize = 100_000;
const CYCLES_MIN: usize = 1_000;
/// Number of concurrent clients of such connections.
const AT_ONCE: usize = 32;
/// Number of connections that are used at the same time, and of their client addresses.
const CONNECTIONS: usize = 8_000;
const CONNECTIONS_MIN: usize = 400;
const ADDRESSES: usize = 40;
/// Number of leases on one stream.
const LEASES: usize = 1_000;
const TTL: Duration = Duration::from_secs(30);

async fn broker() -> (BrokerProcess, RedisServer) {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    (BrokerProcess::start(&options).await, redis)
}

/// Opens a connection from one of the loopback addresses.
async fn connect(to: SocketAddr, number: usize) -> Channel {
    let host = u8::try_from(2 + number % ADDRESSES).expect("a few");
    let endpoint = Endpoint::from_shared(format!("http://{to}")).expect("a URL");
    let endpoint = endpoint.local_address(Some([127, 0, 0, host].into()));
    endpoint.connect().await.expect("a place")
}

fn retry_after(overload: &Status) -> Duration {
    let advice = overload.get_details_retry_info();
    let delay = advice.and_then(|advice| advice.retry_delay);
    delay.expect("advice when to repeat")
}

async fn cycle(channel: Channel, lock: &str) -> Result<(), Status> {
    let mut locks = LockServiceClient::new(channel);
    let acquire = AcquireRequest {
        target: Some(LockTarget {
            name: lock.to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "honest".to_owned(),
            ..Owner::default()
        }),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    };
    let mut acquired = locks.acquire(acquire.clone()).await;
    // Thousands of concurrent acquires exceed the limit of the store. Clients retry after the delay
    // in the rejection.
    while let Err(status) = &acquired
        && error_reason(status) == Some(ErrorReason::Overloaded)
    {
        sleep(retry_after(status)).await;
        acquired = locks.acquire(acquire.clone()).await;
    }
    let lease = acquired?.into_inner().lease;
    let released = locks.release(ReleaseRequest {
        lease,
        ..ReleaseRequest::default()
    });
    released.await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_short_connections_are_served() {
    let (broker, _redis) = broker().await;
    let to = broker.addr();
    let cycles = (0..scaled_count(CYCLES, CYCLES_MIN)).map(async |number| {
        let channel = connect(to, number).await;
        cycle(channel, &format!("short/{}", number % AT_ONCE)).await
    });
    let mut cycles = stream::iter(cycles).buffer_unordered(AT_ONCE);
    let mut served = 0;
    while let Some(cycle) = cycles.next().await {
        // Two cycles may use the same lock.
        if let Err(status) = cycle {
            assert_eq!(status.code(), tonic::Code::Aborted, "{status}");
        }
        served += 1;
    }
    print_figures(&format!("abuse: honest: {served} short connections"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_connections_in_use_are_served() {
    let (broker, _redis) = broker().await;
    let to = broker.addr();
    let many = scaled_count(CONNECTIONS, CONNECTIONS_MIN);
    let opening = (0..many).map(async |number| connect(to, number).await);
    let open: Vec<_> = stream::iter(opening).buffered(AT_ONCE).collect().await;
    for round in 0..2 {
        let all = open.iter().enumerate().map(async |(number, channel)| {
            cycle(channel.clone(), &format!("in-use/{number}")).await
        });
        // All cycles run concurrently.
        for cycle in join_all(all).await {
            cycle.unwrap_or_else(|status| panic!("round {round}: {status}"));
        }
    }
    let log = broker.log();
    assert!(!log.contains("closing the connections"), "{log}");
    print_figures(&format!("abuse: honest: {many} connections in use"));
}

#[tokio::test]
async fn a_thousand_leases_on_a_stream_are_acquired_renewed_and_released_at_once() {
    let (broker, _redis) = broker().await;
    let mut stream = StreamClient::open(broker.addr()).await;
    for number in 0..LEASES {
        let call = AcquireCall::new(&format!("lease/{number}"), TTL, Duration::ZERO);
        stream.acquire(&call, 1).await;
    }
    let mut leases = Vec::new();
    while leases.len() < LEASES {
        if let Response::Granted(granted) = stream.next_message().await {
            leases.push(granted.lease.expect("a grant has a lease").lease_id);
        }
    }
    let beat = stream.heartbeat().await;
    let mut renewed = 0;
    while renewed < LEASES {
        renewed += stream.wait_for_ack(beat).await;
    }
    for lease in &leases {
        stream.release(lease).await;
    }
    let mut released = 0;
    while released < LEASES {
        released += usize::from(matches!(stream.next_message().await, Response::Released(_)));
    }
}
