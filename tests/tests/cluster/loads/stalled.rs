//! What waits for a master of a cluster that stands still holds up nothing of the others: neither their
//! renewals, nor what is undone there.

use std::{ops::RangeInclusive, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    client::{AcquireCall, Client},
    clock::boottime,
    cluster::ClusterOptions,
    cluster_site::{ClusterSite, SHARDS, TTL, locks_in, quick, shard},
    scale::{count, figures},
    status::reason,
    stream_client::StreamClient,
    until::until,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// On each stream.
const LEASES: usize = 750;
/// A busy machine has them granted in time.
const AT_ONCE: usize = 25;
/// In each of the other shards.
const KEPT: usize = 3;
const BEAT: Duration = Duration::from_millis(500);
const CALM: Duration = Duration::from_secs(2);
/// Longer than a node lives that does not answer.
const STOPPED: Duration = Duration::from_secs(5);
const PROMPT: Duration = Duration::from_secs(1);
/// The shard whose master stands still, and slots of it: each is settled when it is used first.
const HIT: usize = 0;
const FEW_SLOTS: RangeInclusive<u16> = 0..=99;
/// That have no answer.
const CALLS: usize = 100;
const WAIT: Duration = Duration::from_secs(60);
/// After which a call that was given up is undone.
const GRACE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_master_that_stands_still_hold_up_no_renewal_of_others() {
    let site = site().await;
    let broker = site.brokers[0].addr();
    let streams = count(4, 2);
    let names = locks_in(&FEW_SLOTS, "many", streams * LEASES);
    let crowd = join_all(names.chunks(LEASES).map(async |names| {
        let mut stream = StreamClient::open_patient(broker).await;
        stream.beat(BEAT);
        hold(&mut stream, names).await;
        stream
    }));
    let crowd = crowd.await;
    let names: Vec<_> = (0..SHARDS)
        .filter(|other| *other != HIT)
        .flat_map(|other| locks_in(&shard(other), "few", KEPT))
        .collect();
    let mut few = StreamClient::open_patient(broker).await;
    hold(&mut few, &names).await;

    let over = CancellationToken::new();
    let listening = join_all(crowd.into_iter().map(|stream| listen(stream, &over)));
    let measured = async {
        let calm = slowest_renewal(&mut few, names.len(), CALM).await;
        site.cluster.server(HIT).process().pause().await;
        let stopped = slowest_renewal(&mut few, names.len(), STOPPED).await;
        site.cluster.server(HIT).process().resume();
        over.cancel();
        (calm, stopped)
    };
    let (_, (calm, stopped)) = tokio::join!(listening, measured);
    figures(&format!(
        "cluster_stalled: {} leases of a master that stands still; those of others are renewed within {} ms, before \
         within {} ms",
        streams * LEASES,
        stopped.as_millis(),
        calm.as_millis()
    ));
    assert!(stopped <= PROMPT, "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_master_that_stands_still_hold_up_no_undo_of_others() {
    let site = site().await;
    let client = Client::new("caller", &site.addrs(), 0);
    let elsewhere = locks_in(&shard(HIT + 1), "elsewhere", 1).remove(0);
    let call = AcquireCall::new(&elsewhere, TTL, Duration::ZERO);
    client.acquire_at(0, &call).await.expect("it is free");
    let waiter = client.open_at(0, &AcquireCall::new(&elsewhere, TTL, WAIT));
    client.queued_at(0, &elsewhere, 1).await;

    site.cluster.server(HIT).process().pause().await;
    let names = locks_in(&FEW_SLOTS, "in vain", CALLS);
    let in_vain = join_all(names.iter().map(async |name| {
        let call = AcquireCall::new(name, TTL, Duration::ZERO);
        let refused = client.acquire_at(0, &call).await.expect_err("no answer");
        reason(&refused)
    }));
    let unavailable = Some(ErrorReason::StoreUnavailable);
    assert_eq!(in_vain.await, vec![unavailable; CALLS]);
    drop(waiter);
    let given_up = boottime();
    until("the waiter leaves the line", async || {
        let state = client.get_lock_at(0, &elsewhere).await;
        let is_left = state.is_ok_and(|state| state.queue_length > 0);
        (!is_left).then_some(())
    })
    .await;
    let took = boottime() - given_up;
    site.cluster.server(HIT).process().resume();
    figures(&format!(
        "cluster_stalled: {CALLS} calls to undo at a master that stands still; a waiter of another one left the line \
         after {} ms",
        took.as_millis()
    ));
    assert!(took <= GRACE + PROMPT, "{took:?}");
}

/// One broker, on masters without replicas.
async fn site() -> ClusterSite {
    let alone = ClusterOptions {
        replicas: 0,
        ..quick()
    };
    ClusterSite::start(alone, 1).await
}

/// Takes all of these locks, which are free.
async fn hold(stream: &mut StreamClient, names: &[String]) {
    let granted = |told| {
        assert!(!matches!(told, Response::Refused(_)), "{told:?}");
        matches!(told, Response::Granted(_)).then_some(())
    };
    for names in names.chunks(AT_ONCE) {
        for name in names {
            let call = AcquireCall::new(name, TTL, Duration::ZERO);
            stream.acquire(&call, 1).await;
        }
        for _ in names {
            stream.heard(granted).await;
        }
    }
}

/// Takes what a stream is told, whatever that is.
async fn listen(mut stream: StreamClient, over: &CancellationToken) {
    tokio::select! {
        () = over.cancelled() => {}
        () = async { while stream.hear().await.is_some() {} } => panic!("the stream broke"),
    }
}

/// The longest that it took to renew all leases of a stream, for a while.
async fn slowest_renewal(stream: &mut StreamClient, leases: usize, within: Duration) -> Duration {
    let (begun, mut slowest) = (boottime(), Duration::ZERO);
    while boottime() - begun < within {
        let sent = boottime();
        let sequence = stream.heartbeat().await;
        let mut renewed = 0;
        while renewed < leases {
            renewed += stream.acknowledged(sequence).await;
        }
        slowest = slowest.max(boottime() - sent);
        sleep(BEAT / 2).await;
    }
    slowest
}
