//! More leases that need a broker at the same moment than the store can process at once. No lease
//! is rejected, and no client waits behind the leases of all other clients.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{Lease, hold_response::Message as Response};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::{stream::StreamClient, unary::AcquireCall},
    clock::boottime,
    scale::print_figures,
};
use tokio::{sync::watch, task::JoinSet, time::timeout};

/// Number of streams whose leases keep the store busy for longer than a command's 800 ms limit.
const STREAMS: usize = 90;
/// Number of streams that saturate the store beside a stream with one lease.
const OTHERS: usize = 30;
/// Maximum number of leases of a stream.
const EACH: usize = 1_000;
const TTL: Duration = Duration::from_secs(60);
const TEST_TIMEOUT: Duration = Duration::from_secs(240);

/// Runs alone: it measures 90,000 attachments within the validity of their leases.
#[tokio::test(flavor = "multi_thread")]
async fn the_leases_of_a_broker_that_dies_all_come_to_another() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let mut held = Vec::new();
    for index in 0..STREAMS {
        held.push(acquire_leases(addrs[0], index).await);
    }
    deployment.brokers[0].kill().await;

    let begun = boottime();
    let mut crowd: JoinSet<usize> = JoinSet::new();
    for (_broken, leases) in held {
        crowd.spawn(attached(addrs[1], leases));
    }
    let all = timeout(TEST_TIMEOUT, crowd.join_all()).await;
    let all: usize = all.expect("all are answered").into_iter().sum();
    print_figures(&format!(
        "hold_crowd: leases={all} all_attached_and_renewed_after={}ms",
        (boottime() - begun).as_millis()
    ));
    assert_eq!(all, STREAMS * EACH);
}

/// Runs alone: it measures the order of renewals while the store is saturated.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_not_served_after_all_leases_of_other_streams() {
    let deployment = Deployment::start(1).await;
    let broker = deployment.addrs()[0];
    let mut alone = StreamClient::open(broker).await;
    let call = AcquireCall::new("alone", TTL, Duration::ZERO);
    let call_id = alone.acquire(&call, 1).await;
    alone.expect_granted(call_id).await;

    let mut others = Vec::new();
    for index in 0..OTHERS {
        others.push(acquire_leases(broker, index).await);
    }

    let renewed = watch::Sender::new(0);
    let mut crowd = JoinSet::new();
    for (stream, _) in others {
        crowd.spawn(send_heartbeats(stream, renewed.clone()));
    }
    // At this point the broker has read the heartbeats of all other streams.
    let all = OTHERS * EACH;
    let mut seen = renewed.subscribe();
    let begun = seen.wait_for(|renewed| *renewed >= all / 4).await;
    let begun = *begun.expect("all go on");
    let beat = alone.heartbeat().await;
    alone.wait_for_ack(beat).await;
    let answered = *renewed.borrow();
    let call = AcquireCall::new("alone too", TTL, Duration::ZERO);
    let call_id = alone.acquire(&call, 1).await;
    alone.expect_granted(call_id).await;
    let granted = *renewed.borrow();

    crowd.join_all().await;
    assert_eq!(*renewed.borrow(), all);
    let (before_ack, before_grant) = (answered - begun, granted - answered);
    print_figures(&format!(
        "hold_crowd: renewed_before_ack={before_ack} renewed_before_grant={before_grant} of={all}"
    ));
    assert!(before_ack < all / 4, "{before_ack} of {all} came first");
    assert!(before_grant < all / 4, "{before_grant} of {all} came first");
}

/// Sends a heartbeat and counts the leases that the heartbeat renews.
async fn send_heartbeats(mut stream: StreamClient, renewed: watch::Sender<usize>) {
    let beat = stream.heartbeat().await;
    let mut remaining = EACH;
    while remaining > 0 {
        let acked = stream.wait_for_ack(beat).await;
        remaining -= acked;
        renewed.send_modify(|renewed| *renewed += acked);
    }
}

async fn acquire_leases(broker: SocketAddr, index: usize) -> (StreamClient, Vec<Lease>) {
    let mut stream = StreamClient::open(broker).await;
    let names = (0..EACH).map(|lock| format!("lock-{index}-{lock}"));
    let leases = stream.acquire_each(names, TTL).await;
    (stream, leases)
}

/// Attaches leases and renews them. Returns the number of renewed leases.
async fn attached(broker: SocketAddr, leases: Vec<Lease>) -> usize {
    let mut stream = StreamClient::open(broker).await;
    for lease in &leases {
        stream.attach(lease, 2).await;
    }
    for _ in &leases {
        match stream.next_lease_message().await {
            Some(Response::Attached(_)) => {}
            other => panic!("{other:?} instead of an attachment"),
        }
    }
    let beat = stream.heartbeat().await;
    let mut renewed = 0;
    while renewed < leases.len() {
        match stream.next_lease_message().await {
            Some(Response::Ack(ack)) if ack.sequence == beat => renewed += ack.leases.len(),
            other => panic!("{other:?} instead of an acknowledgement"),
        }
    }
    renewed
}
