//! Well-behaved clients, which are never cut off, however many requests they send on one
//! connection.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::{
    AcquireRequest, LockTarget, Owner, ReleaseRequest, hold_response::Message as Response,
    lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::{
        stream::StreamClient,
        unary::{AcquireCall, channel},
    },
    clock::boottime,
    net::http2_proxy::{GOAWAY, Http2Proxy},
    redis::server::RedisServer,
    scale::{print_figures, scaled_count},
};
use tonic::{Status, transport::Channel};
use uuid::Uuid;

/// Number of lease cycles on one connection.
const CYCLES: usize = 100_000;
const CYCLES_MIN: usize = 1_000;
/// Number of callers that share the connection.
const CALLERS: usize = 20;
/// Every n-th cycle uses a separate lease stream.
const STREAM_EVERY: usize = 5;
/// Every n-th stream is broken off before its release.
const BROKEN_EVERY: usize = 10;
const TTL: Duration = Duration::from_secs(10);

/// Runs alone: it measures lease cycles on one connection, at the pace of the whole machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_lease_cycles_need_one_connection() {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let way = Http2Proxy::start(broker.addr()).await;
    let connection = channel(way.addr());
    let started_at = boottime();
    let each = scaled_count(CYCLES, CYCLES_MIN).div_ceil(CALLERS);
    let callers = (0..CALLERS).map(|caller| cycles(connection.clone(), caller, each));
    let streams: usize = join_all(callers).await.into_iter().sum();
    let took = boottime() - started_at;
    print_figures(&format!(
        "abuse: healthy: {} cycles on one connection, {streams} of them on streams of their own, in {:.1} s",
        each * CALLERS,
        took.as_secs_f64()
    ));
    assert_eq!(way.opened_connections(), 1, "connections");
    assert_eq!(way.frames_from_broker(GOAWAY), 0, "never asked to leave");
}

/// Runs the cycles of one caller and returns the number of cycles on lease streams.
async fn cycles(connection: Channel, caller: usize, cycles: usize) -> usize {
    let mut locks = LockServiceClient::new(connection.clone());
    let mut streams = 0;
    for cycle in 0..cycles {
        let lock = format!("healthy/{caller}/{cycle}");
        if cycle % STREAM_EVERY != 0 {
            unary(&mut locks, &lock).await.expect("it is free");
        } else {
            streams += 1;
            streamed(&connection, &lock, streams % BROKEN_EVERY == 0).await;
        }
    }
    streams
}

async fn unary(locks: &mut LockServiceClient<Channel>, lock: &str) -> Result<(), Status> {
    let target = LockTarget {
        name: lock.to_owned(),
        ..LockTarget::default()
    };
    let owner = Owner {
        id: "healthy".to_owned(),
        ..Owner::default()
    };
    let acquired = locks.acquire(AcquireRequest {
        target: Some(target),
        owner: Some(owner),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    });
    let lease = acquired.await?.into_inner().lease;
    let released = locks.release(ReleaseRequest {
        lease,
        ..ReleaseRequest::default()
    });
    released.await.map(|_| ())
}

async fn streamed(connection: &Channel, lock: &str, breaks: bool) {
    let mut stream = StreamClient::open_on(connection.clone()).await;
    let call = AcquireCall::new(lock, TTL, Duration::ZERO).with_disconnect_grace(0);
    let call = stream.acquire(&call, 1).await;
    let lease = stream.expect_granted(call).await;
    if breaks {
        return;
    }
    let beat = stream.heartbeat().await;
    assert_eq!(stream.wait_for_ack(beat).await, 1);
    stream.release(&lease.lease_id).await;
    assert!(matches!(stream.next_event().await, Response::Released(_)));
    stream.close().await;
    assert!(stream.ends_after_half_close().await, "in good order");
}
