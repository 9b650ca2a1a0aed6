//! A waiter whose connection breaks keeps its queue position if it repeats its call at another
//! broker within a second.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]
#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::broker::deployment::Deployment;
use leasehold_tests::client::unary::{AcquireCall, Client, HeldLease};
use leasehold_tests::clock::boottime;
use leasehold_tests::net::http2_proxy::Http2Proxy;
use leasehold_tests::scale::print_figures;
use leasehold_tests::status::is_transport_error;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

const LOCK: &str = "place";
const WAITERS: usize = 40;
const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// Maximum time after which a caller repeats its call.
const REPEATED_AFTER: Duration = Duration::from_millis(600);
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn cut_waiters_that_repeat_within_a_second_keep_their_place() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let proxy = Http2Proxy::start(addrs[0]).await;
    // Every other waiter connects through the proxy and repeats its call at the second broker.
    let client = Client::new("holder", &[proxy.addr(), addrs[1]], 1);
    let held = client
        .acquire(&AcquireCall::new(LOCK, TTL, Duration::ZERO))
        .await
        .unwrap();
    let mut waiters = Vec::new();
    for index in 0..WAITERS {
        let client = client.with_name(&format!("waiter-{index:02}"), index);
        waiters.push(AbortOnDropHandle::new(tokio::spawn(wait(client, index))));
        queue_of(&deployment, index + 1).await;
    }
    let before = queue_of(&deployment, WAITERS).await;
    let cut_at = boottime();
    let cut = proxy.close_connections().await;
    assert!(cut > 0, "a connection was cut");
    // The broker may roll back a broken call only after the time in which a repeat can arrive.
    while boottime() < cut_at + 3 * REPEATED_WITHIN {
        assert_eq!(
            queue_of(&deployment, WAITERS).await,
            before,
            "the queue positions"
        );
    }
    client.release(&held).await.unwrap();
    let granted = join_all(waiters)
        .await
        .into_iter()
        .map(|waiter| waiter.unwrap().unwrap());
    let granted: Vec<(HeldLease, Option<Duration>)> = granted.collect();
    let repeats: Vec<_> = granted
        .iter()
        .filter_map(|(_, repeated_at)| *repeated_at)
        .collect();
    let slowest = repeats
        .iter()
        .map(|at| at.saturating_sub(cut_at))
        .max()
        .unwrap_or_default();
    let inversions = granted
        .windows(2)
        .filter(|two| two[0].0.token() >= two[1].0.token())
        .count();
    print_figures(&format!(
        "keeping_place: waiters={WAITERS} connections_cut={cut} repeated={} slowest_repeat={}ms \
         inversions={inversions}",
        repeats.len(),
        slowest.as_millis()
    ));
    assert!(
        slowest < REPEATED_WITHIN,
        "the test repeats within a second"
    );
    assert_eq!((repeats.len(), inversions), (WAITERS / 2, 0));
}

/// Waits, repeats the call once at the second broker if the connection breaks, and releases at
/// once. Returns the time of the repeat.
async fn wait(client: Client, index: usize) -> Result<(HeldLease, Option<Duration>), Status> {
    let call = AcquireCall::new(LOCK, TTL, WAIT);
    let (held, repeated_at) = match client.acquire_at(index, &call).await {
        Err(status) if is_transport_error(&status) => {
            tokio::time::sleep(REPEATED_AFTER.mul_f64(rand::random())).await;
            let repeated_at = boottime();
            (client.acquire_at(1, &call).await?, Some(repeated_at))
        }
        first => (first?, None),
    };
    client.release_at(1, &held).await?;
    Ok((held, repeated_at))
}

/// Waits until the queue has this length and returns its waiters in order.
async fn queue_of(deployment: &Deployment, length: usize) -> Vec<String> {
    let client = Client::new("observer", &deployment.addrs()[1..], 0);
    let give_up = boottime() + 20 * REPEATED_WITHIN;
    loop {
        let lock = client
            .get_lock(LOCK)
            .await
            .unwrap()
            .expect("the lock is held");
        let waiters = lock.waiters.into_iter();
        let waiters: Vec<_> = waiters
            .map(|waiter| waiter.owner.unwrap_or_default().id)
            .collect();
        if waiters.len() == length {
            return waiters;
        }
        assert!(
            boottime() < give_up,
            "{} wait, {length} should: {waiters:?}",
            waiters.len()
        );
    }
}
