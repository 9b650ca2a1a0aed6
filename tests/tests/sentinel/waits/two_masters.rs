//! A former master that is isolated together with its brokers, and continues to serve. It does not
//! receive the renewals that its successor accepts, lets the lease expire, and grants the lock to
//! the next waiter.

use std::{net::Ipv4Addr, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::unary::{AcquireCall, Client},
    clock::boottime,
    cluster::workload::granted_at,
    net::partition_proxy::PartitionProxy,
    redis::former_master::{self, renew_until_rejected},
    scale::print_figures,
    sentinel::deployment::{MASTER, SentinelDeployment, SentinelOptions},
    until::until,
};

const TTL: Duration = Duration::from_secs(6);
const WAIT: Duration = Duration::from_secs(90);
/// Time for which the former master counts replicas that it cannot reach. It suffices to end a
/// lease that is renewed until the slowest failover.
const MAX_LAG: Duration = Duration::from_secs(60);
/// Time within which a broker leaves the master: 3 s after a majority of the Sentinels has named it
/// last, with a margin.
const LEFT_WITHIN: Duration = Duration::from_secs(5);
const DEFAULT_TTL: Duration = Duration::from_secs(10);
const LOCK: &str = "orders/17";

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_renewed_by_a_successor_whose_former_master_may_end_it() {
    let redis = SentinelDeployment::start(SentinelOptions {
        has_partition_proxies: true,
        min_replicas_max_lag: MAX_LAG,
        ..SentinelOptions::default()
    })
    .await;
    let follows = options(redis.url());
    follows.init_store().await;
    let brokers = BrokerProcess::start_many(&follows, 1).await;
    // This broker is configured without Sentinels, and always uses the former master.
    let unmoved_broker = BrokerProcess::start(&options(redis.server(0).url())).await;
    let client = Client::new("both", &[brokers[0].addr(), unmoved_broker.addr()], 0);

    let call = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("a free lock");
    let next = client.start_acquire_at(1, &AcquireCall::new(LOCK, TTL, WAIT));
    client.wait_for_queue_length_at(0, LOCK, 1).await;
    let parted = boottime();
    redis.isolate(0);
    let renewals = renew_until_rejected(&client, held).await;
    let next = next.await.expect("the call ends by itself");
    // The former master accepted writes for long enough to end the lease. The time of the grant is
    // on its clock.
    let granted = granted_at(&next.expect("the former master grants the lock"));
    print_figures(&format!(
        "two_masters: trusted until {:?}, refused={}; the former master granted the lock after {:?}",
        renewals.trusted_until - parted,
        renewals.rejected,
        granted.saturating_sub(parted)
    ));
    assert!(renewals.rejected > 0, "asked the new master");
    assert!(
        renewals.trusted_until <= granted,
        "two holders trust the lock for {:?}",
        renewals.trusted_until - granted
    );
}

/// A broker has no other means to detect that the master was replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_leaves_a_master_that_no_majority_of_the_sentinels_names() {
    let redis = SentinelDeployment::start(SentinelOptions::without_failovers()).await;
    let sentinels = redis
        .sentinel_addrs()
        .into_iter()
        .map(PartitionProxy::start);
    let sentinels = join_all(sentinels).await;
    let named = options(url(&sentinels));
    named.init_store().await;
    let broker = BrokerProcess::start(&named).await;
    let parted = boottime();
    sentinels
        .iter()
        .for_each(|proxy| proxy.block(&[Ipv4Addr::LOCALHOST.into()]));
    let left_at = until("the broker leaves the master", async || {
        let says = "no majority of the Sentinels has reported it as the master for 3 s";
        broker.log().contains(says).then(boottime)
    })
    .await;
    print_figures(&format!("two_masters: left within {:?}", left_at - parted));
    assert!(left_at < parted + LEFT_WITHIN, "{:?}", left_at - parted);
}

/// Sentinel leaves the former master writable for 8 s. A former master that must follow its
/// successor immediately grants nothing more, so brokers do not wait for it. Leases of the default
/// TTL outlive the failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_fail_over_keeps_leases_once_the_former_master_follows() {
    let redis = SentinelDeployment::start(SentinelOptions::without_failovers()).await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let client = Client::new("one", &[broker.addr()], 0);
    let call = AcquireCall::new(LOCK, DEFAULT_TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("a free lock");
    redis.wait_until_in_sync(0).await;

    redis.start_failover().await;
    let next = redis.addr(redis.wait_for_failover(0).await);
    let mut former = redis.server(0).connect().await;
    let follow = [
        "REPLICAOF",
        &next.ip().to_string(),
        &next.port().to_string(),
    ];
    former.must(&follow).await;
    let follows = boottime();
    until("the new master renews leases", async || {
        broker.log().contains("renews leases").then_some(())
    })
    .await;
    let renewed = client.renew_at(0, &held).await.expect("it is held");
    print_figures(&format!(
        "two_masters: planned: renewed {:?} after the former master was told to follow, {:?} before the trust ended",
        renewed.sent_at.saturating_sub(follows),
        held.trusted_until().saturating_sub(boottime())
    ));
    assert_eq!(renewed.token(), held.token());
    assert!(held.is_trusted(), "renewed too late");
}

fn url(sentinels: &[PartitionProxy]) -> String {
    let addrs = sentinels.iter().map(|proxy| proxy.addr().to_string());
    let addrs: Vec<_> = addrs.collect();
    format!("redis-sentinel://{}/{MASTER}", addrs.join(","))
}

/// Returns options with the bounds for these servers.
fn options(url: String) -> BrokerOptions {
    former_master::broker_options(url, TTL, MAX_LAG + Duration::from_secs(2))
}
