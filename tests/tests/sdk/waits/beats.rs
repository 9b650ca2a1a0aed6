//! Heartbeats on a stream of the Rust client whose leases and waits need different intervals. A
//! long lease does not delay the heartbeats of short leases and waits.

use std::{pin::pin, time::Duration};

use leasehold_tests::{broker::in_process::InProcessBroker, sdk::broker::TestBroker};
use tokio::time::timeout;

/// TTL of a lease that needs a heartbeat every 20 s, and maximum wait.
const LONG: Duration = Duration::from_secs(60);
/// Time after an acquire until the client's next timer is the heartbeat of the acquired lease.
const IDLE_FOR: Duration = Duration::from_secs(3);
const TIME_LIMIT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_short_lease_is_kept_beside_a_long_one() {
    let broker = TestBroker::Real(InProcessBroker::start().await);
    let client = broker.client("one").await;
    let long = client.lock("long").ttl(LONG).acquire().await;
    let long = long.expect("it is free");
    let lost = timeout(IDLE_FOR, long.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    let short = client.lock("short").ttl(Duration::from_secs(1));
    let short = short.acquire().await.expect("it is free");
    let lost = timeout(Duration::from_secs(4), short.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(long.is_valid());
}

#[tokio::test]
async fn a_wait_keeps_its_place_beside_a_long_lease() {
    let broker = TestBroker::Real(InProcessBroker::start().await);
    let (client, other) = (broker.client("one").await, broker.client("other").await);
    let held = other.lock("held").acquire().await.expect("it is free");
    let long = client.lock("long").ttl(LONG).acquire().await;
    let long = long.expect("it is free");
    let lost = timeout(IDLE_FOR, long.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    let mut first = pin!(client.lock("held").wait(LONG).acquire());
    let mut second = pin!(other.lock("held").wait(LONG).acquire());
    tokio::select! {
        answer = &mut first => panic!("{answer:?}"),
        () = broker.wait_for_queue_length("held", 1) => {}
    }
    tokio::select! {
        answer = &mut second => panic!("{answer:?}"),
        () = broker.wait_for_queue_length("held", 2) => {}
    }
    // A broker removes a waiter from the queue after 6 s without a heartbeat.
    let eight = timeout(Duration::from_secs(8), async {
        tokio::select! {
            answer = &mut first => answer,
            answer = &mut second => answer,
        }
    });
    let answer = eight.await;
    assert!(answer.is_err(), "{answer:?}");
    held.release().await.expect("it was held");
    let next = timeout(TIME_LIMIT, async {
        tokio::select! {
            answer = &mut first => answer,
            _ = &mut second => panic!("the first has lost its place"),
        }
    });
    let granted = next.await.expect("it is free").expect("it is the next");
    assert!(granted.is_valid());
}
