//! What a stream of the Rust client carries beside a lease that needs a heartbeat only now and then: each lease and
//! each wait has the heartbeats that it needs itself.

use std::{pin::pin, time::Duration};

use leasehold_tests::{in_process::InProcess, sdk_broker::Broker};
use tokio::time::timeout;

/// Of a lease that needs a heartbeat each 20 s.
const LONG: Duration = Duration::from_secs(60);
/// Then the client does not look at it any more for the call that took it.
const LEFT_ALONE: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_short_lease_is_kept_beside_a_long_one() {
    let broker = Broker::Real(InProcess::start().await);
    let client = broker.client("one").await;
    let long = client.lock("long").ttl(LONG).acquire().await;
    let long = long.expect("it is free");
    let lost = timeout(LEFT_ALONE, long.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    let short = client.lock("short").ttl(Duration::from_secs(1));
    let short = short.acquire().await.expect("it is free");
    let lost = timeout(Duration::from_secs(4), short.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(long.is_valid());
}

#[tokio::test]
async fn a_wait_keeps_its_place_beside_a_long_lease() {
    let broker = Broker::Real(InProcess::start().await);
    let (client, other) = (broker.client("one").await, broker.client("other").await);
    let held = other.lock("held").acquire().await.expect("it is free");
    let long = client.lock("long").ttl(LONG).acquire().await;
    let long = long.expect("it is free");
    let lost = timeout(LEFT_ALONE, long.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    let mut first = pin!(client.lock("held").wait(LONG).acquire());
    let mut second = pin!(other.lock("held").wait(LONG).acquire());
    tokio::select! {
        answer = &mut first => panic!("{answer:?}"),
        () = broker.waits_for("held", 1) => {}
    }
    tokio::select! {
        answer = &mut second => panic!("{answer:?}"),
        () = broker.waits_for("held", 2) => {}
    }
    // A broker takes whoever it has not heard of for six out of the line.
    let eight = timeout(Duration::from_secs(8), async {
        tokio::select! {
            answer = &mut first => answer,
            answer = &mut second => answer,
        }
    });
    let answer = eight.await;
    assert!(answer.is_err(), "{answer:?}");
    held.release().await.expect("it was held");
    let next = timeout(SOON, async {
        tokio::select! {
            answer = &mut first => answer,
            _ = &mut second => panic!("the first has lost its place"),
        }
    });
    let granted = next.await.expect("it is free").expect("it is the next");
    assert!(granted.is_valid());
}
