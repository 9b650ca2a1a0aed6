//! A stalled master of a cluster. Commands that wait for it delay neither renewals nor rollbacks on
//! other masters.

use std::{ops::RangeInclusive, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    cluster::{
        deployment::ClusterOptions,
        fixture::{
            ClusterFixture, SHARDS, TTL, fast_failover_options, initial_slots_of, lock_names_in,
        },
    },
    scale::{print_figures, scaled_count},
    status::error_reason,
    until::until,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Number of leases per stream.
const LEASES: usize = 750;
/// Number of concurrent acquires that a busy machine completes in time.
const AT_ONCE: usize = 25;
/// Number of leases in each of the other shards.
const OTHER_LEASES: usize = 3;
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
const QUIET_PERIOD: Duration = Duration::from_secs(2);
/// Duration of the pause, which exceeds the lifetime of a node that does not respond.
const STOPPED: Duration = Duration::from_secs(5);
const PROMPT: Duration = Duration::from_secs(1);
/// Shard whose master is paused, and some of its slots. The era of each slot is agreed on at its
/// first use.
const PAUSED_SHARD: usize = 0;
const FEW_SLOTS: RangeInclusive<u16> = 0..=99;
/// Number of calls without a response.
const CALLS: usize = 100;
const WAIT: Duration = Duration::from_secs(60);
/// Time after which a cancelled call is rolled back.
const GRACE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_stalled_master_do_not_delay_renewals_of_others() {
    let fixture = fixture().await;
    let broker = fixture.brokers[0].addr();
    let streams = scaled_count(4, 2);
    let names = lock_names_in(&FEW_SLOTS, "many", streams * LEASES);
    let crowd = join_all(names.chunks(LEASES).map(async |names| {
        let mut stream = StreamClient::open_without_keepalive(broker).await;
        stream.start_heartbeats(HEARTBEAT_INTERVAL);
        hold(&mut stream, names).await;
        stream
    }));
    let crowd = crowd.await;
    let names: Vec<_> = (0..SHARDS)
        .filter(|other| *other != PAUSED_SHARD)
        .flat_map(|other| lock_names_in(&initial_slots_of(other), "few", OTHER_LEASES))
        .collect();
    let mut few = StreamClient::open_without_keepalive(broker).await;
    hold(&mut few, &names).await;

    let stop = CancellationToken::new();
    let listening = join_all(crowd.into_iter().map(|stream| listen(stream, &stop)));
    let measured = async {
        let calm = slowest_renewal(&mut few, names.len(), QUIET_PERIOD).await;
        fixture.cluster.server(PAUSED_SHARD).process().pause().await;
        let stopped = slowest_renewal(&mut few, names.len(), STOPPED).await;
        fixture.cluster.server(PAUSED_SHARD).process().resume();
        stop.cancel();
        (calm, stopped)
    };
    let (_, (calm, stopped)) = tokio::join!(listening, measured);
    print_figures(&format!(
        "cluster_stalled: {} leases of a master that stands still; those of others are renewed within {} ms, before \
         within {} ms",
        streams * LEASES,
        stopped.as_millis(),
        calm.as_millis()
    ));
    assert!(stopped <= PROMPT, "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_stalled_master_do_not_delay_rollbacks_of_others() {
    let fixture = fixture().await;
    let client = Client::new("caller", &fixture.addrs(), 0);
    let elsewhere = lock_names_in(&initial_slots_of(PAUSED_SHARD + 1), "elsewhere", 1).remove(0);
    let call = AcquireCall::new(&elsewhere, TTL, Duration::ZERO);
    client.acquire_at(0, &call).await.expect("it is free");
    let waiter = client.start_acquire_at(0, &AcquireCall::new(&elsewhere, TTL, WAIT));
    client.wait_for_queue_length_at(0, &elsewhere, 1).await;

    fixture.cluster.server(PAUSED_SHARD).process().pause().await;
    let names = lock_names_in(&FEW_SLOTS, "in vain", CALLS);
    let in_vain = join_all(names.iter().map(async |name| {
        let call = AcquireCall::new(name, TTL, Duration::ZERO);
        let refused = client.acquire_at(0, &call).await.expect_err("no answer");
        error_reason(&refused)
    }));
    let unavailable = Some(ErrorReason::StoreUnavailable);
    assert_eq!(in_vain.await, vec![unavailable; CALLS]);
    drop(waiter);
    let given_up = boottime();
    until("the waiter leaves the queue", async || {
        let state = client.get_lock_at(0, &elsewhere).await;
        let is_left = state.is_ok_and(|state| state.queue_length > 0);
        (!is_left).then_some(())
    })
    .await;
    let took = boottime() - given_up;
    fixture.cluster.server(PAUSED_SHARD).process().resume();
    print_figures(&format!(
        "cluster_stalled: {CALLS} calls to undo at a master that stands still; a waiter of another one left the queue \
         after {} ms",
        took.as_millis()
    ));
    assert!(took <= GRACE + PROMPT, "{took:?}");
}

/// Starts one broker on masters without replicas.
async fn fixture() -> ClusterFixture {
    let alone = ClusterOptions {
        replicas: 0,
        ..fast_failover_options()
    };
    ClusterFixture::start(alone, 1).await
}

/// Acquires all of these free locks.
async fn hold(stream: &mut StreamClient, names: &[String]) {
    let granted = |response| {
        assert!(!matches!(response, Response::Refused(_)), "{response:?}");
        matches!(response, Response::Granted(_)).then_some(())
    };
    for names in names.chunks(AT_ONCE) {
        for name in names {
            let call = AcquireCall::new(name, TTL, Duration::ZERO);
            stream.acquire(&call, 1).await;
        }
        for _ in names {
            stream.wait_for(granted).await;
        }
    }
}

/// Receives and discards messages of a stream until `over`.
async fn listen(mut stream: StreamClient, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = async { while stream.next_lease_message().await.is_some() {} } => panic!("the stream broke"),
    }
}

/// Renews all leases of a stream repeatedly for a while, and returns the longest duration of a
/// renewal.
async fn slowest_renewal(stream: &mut StreamClient, leases: usize, within: Duration) -> Duration {
    let (started_at, mut slowest) = (boottime(), Duration::ZERO);
    while boottime() - started_at < within {
        let sent = boottime();
        let sequence = stream.heartbeat().await;
        let mut renewed = 0;
        while renewed < leases {
            renewed += stream.wait_for_ack(sequence).await;
        }
        slowest = slowest.max(boottime() - sent);
        sleep(HEARTBEAT_INTERVAL / 2).await;
    }
    slowest
}
