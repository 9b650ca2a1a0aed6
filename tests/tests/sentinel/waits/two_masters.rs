//! A master that was replaced, lives on cut off, and is used by brokers that are cut off with it: it does not see
//! that its successor renews a lease, lets the lease expire, and grants the lock to the next.

use std::{net::Ipv4Addr, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    client::{AcquireCall, Client},
    clock::boottime,
    cluster_work::granted_at,
    former_master::{self, renew_until_refused},
    gate::Gate,
    scale::figures,
    sentinel::{MASTER, SentinelDeployment, SentinelOptions},
    until::until,
};

const TTL: Duration = Duration::from_secs(6);
const WAIT: Duration = Duration::from_secs(90);
/// So long the former master counts replicas that it cannot hear: long enough to end a lease that it renews until
/// the slowest fail-over.
const MAX_LAG: Duration = Duration::from_secs(60);
/// 3 s after most of the Sentinels have named it last.
const LEFT_WITHIN: Duration = Duration::from_secs(5);
const DEFAULT_TTL: Duration = Duration::from_secs(10);
const LOCK: &str = "orders/17";

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_renewed_by_a_successor_whose_former_master_may_end_it() {
    let redis = SentinelDeployment::start(SentinelOptions {
        gated: true,
        min_replicas_max_lag: MAX_LAG,
        ..SentinelOptions::default()
    })
    .await;
    let follows = options(redis.url());
    follows.init_store().await;
    let brokers = BrokerProcess::start_many(&follows, 1).await;
    // This one knows nothing of Sentinels, and stays for ever.
    let stays = BrokerProcess::start(&options(redis.server(0).url())).await;
    let client = Client::new("both", &[brokers[0].addr(), stays.addr()], 0);

    let call = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("a free lock");
    let next = client.open_at(1, &AcquireCall::new(LOCK, TTL, WAIT));
    client.queued_at(0, LOCK, 1).await;
    let parted = boottime();
    redis.isolate(0);
    let renewals = renew_until_refused(&client, held).await;
    let next = next.await.expect("the call ends by itself");
    // The former master took writes for long enough to end the lease. Its clock says when.
    let granted = granted_at(&next.expect("the former master grants the lock"));
    figures(&format!(
        "two_masters: trusted until {:?}, refused={}; the former master granted the lock after {:?}",
        renewals.trusted_until - parted,
        renewals.refused,
        granted.saturating_sub(parted)
    ));
    assert!(renewals.refused > 0, "asked the new master");
    assert!(
        renewals.trusted_until <= granted,
        "two holders trust the lock for {:?}",
        renewals.trusted_until - granted
    );
}

/// It has no other way to learn that the master was replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_leaves_a_master_that_no_majority_of_the_sentinels_names() {
    let redis = SentinelDeployment::start(SentinelOptions::undisturbed()).await;
    let sentinels = redis.sentinel_addrs().into_iter().map(Gate::start);
    let sentinels = join_all(sentinels).await;
    let named = options(url(&sentinels));
    named.init_store().await;
    let broker = BrokerProcess::start(&named).await;
    let parted = boottime();
    sentinels
        .iter()
        .for_each(|gate| gate.shut(&[Ipv4Addr::LOCALHOST.into()]));
    let left = until("the broker leaves the master", async || {
        let says = "no majority of the Sentinels has named it as master for 3 s";
        broker.log().contains(says).then(boottime)
    })
    .await;
    figures(&format!("two_masters: left within {:?}", left - parted));
    assert!(left < parted + LEFT_WITHIN, "{:?}", left - parted);
}

/// Sentinel leaves the former master writable for 8 s. One that is told at once to follow its successor grants nothing
/// more, so nobody waits for it: leases of the default ttl outlive the fail-over.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_fail_over_keeps_leases_once_the_former_master_follows() {
    let redis = SentinelDeployment::start(SentinelOptions::undisturbed()).await;
    let options = BrokerOptions::on(redis.url());
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let client = Client::new("one", &[broker.addr()], 0);
    let call = AcquireCall::new(LOCK, DEFAULT_TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("a free lock");
    redis.in_sync(0).await;

    redis.fail_over().await;
    let next = redis.addr(redis.failed_over(0).await);
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
    figures(&format!(
        "two_masters: planned: renewed {:?} after the former master was told to follow, {:?} before the trust ended",
        renewed.sent.saturating_sub(follows),
        held.trusted_until().saturating_sub(boottime())
    ));
    assert_eq!(renewed.token(), held.token());
    assert!(held.trusted(), "renewed too late");
}

fn url(sentinels: &[Gate]) -> String {
    let addrs = sentinels.iter().map(|gate| gate.addr().to_string());
    let addrs: Vec<_> = addrs.collect();
    format!("redis-sentinel://{}/{MASTER}", addrs.join(","))
}

/// The bounds that go with these servers.
fn options(url: String) -> BrokerOptions {
    former_master::options(url, TTL, MAX_LAG + Duration::from_secs(2))
}
