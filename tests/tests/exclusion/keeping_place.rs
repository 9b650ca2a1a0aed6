//! A waiter whose connection breaks, and who repeats its call on another broker within a second,
//! keeps its place in line.

#![expect(clippy::disallowed_methods, reason = "a waiter is a task of the test")]
#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::client::{AcquireCall, Client, Held};
use leasehold_tests::clock::boottime;
use leasehold_tests::deployment::Deployment;
use leasehold_tests::proxy::Proxy;
use leasehold_tests::scale::figures;
use leasehold_tests::status::transport_error;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

const LOCK: &str = "place";
const WAITERS: usize = 40;
const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// What the slowest caller takes until it comes again.
const REPEATED_AFTER: Duration = Duration::from_millis(600);
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn cut_waiters_that_repeat_within_a_second_keep_their_place() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let proxy = Proxy::start(addrs[0]).await;
    // Every other waiter is behind the proxy; all go on at the second broker.
    let client = Client::new("holder", &[proxy.addr(), addrs[1]], 1);
    let held = client
        .acquire(&AcquireCall::new(LOCK, TTL, Duration::ZERO))
        .await
        .unwrap();
    let mut waiters = Vec::new();
    for index in 0..WAITERS {
        let client = client.named(&format!("waiter-{index:02}"), index);
        waiters.push(AbortOnDropHandle::new(tokio::spawn(wait(client, index))));
        queue_of(&deployment, index + 1).await;
    }
    let before = queue_of(&deployment, WAITERS).await;
    let cut_at = boottime();
    let cut = proxy.cut().await;
    assert!(cut > 0, "a connection was cut");
    // The broker may undo a broken call only later than a repeat may come.
    while boottime() < cut_at + 3 * REPEATED_WITHIN {
        assert_eq!(
            queue_of(&deployment, WAITERS).await,
            before,
            "the places in line"
        );
    }
    client.release(&held).await.unwrap();
    let granted = join_all(waiters)
        .await
        .into_iter()
        .map(|waiter| waiter.unwrap().unwrap());
    let granted: Vec<(Held, Option<Duration>)> = granted.collect();
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
    figures(&format!(
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

/// Waits, repeats once on the second broker if the connection breaks, and releases at once; tells
/// when it repeated.
async fn wait(client: Client, index: usize) -> Result<(Held, Option<Duration>), Status> {
    let call = AcquireCall::new(LOCK, TTL, WAIT);
    let (held, repeated_at) = match client.acquire_at(index, &call).await {
        Err(status) if transport_error(&status) => {
            tokio::time::sleep(REPEATED_AFTER.mul_f64(rand::random())).await;
            let repeated_at = boottime();
            (client.acquire_at(1, &call).await?, Some(repeated_at))
        }
        first => (first?, None),
    };
    client.release_at(1, &held).await?;
    Ok((held, repeated_at))
}

/// Who waits, in order, once that many do.
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
