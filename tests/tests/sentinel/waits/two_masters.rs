//! A master that was replaced, lives on cut off, and is used by brokers that are cut off with it: it does not see
//! that its successor renews a lease, lets the lease expire, and grants the lock to the next.

use std::{net::Ipv4Addr, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    client::{AcquireCall, Client, Held},
    clock::boottime,
    cluster_work::granted_at,
    gate::Gate,
    scale::figures,
    sentinel::{MASTER, SentinelDeployment, SentinelOptions},
    status::reason,
    until::until,
};
use tokio::time::sleep;
use tonic::Status;

const TTL: Duration = Duration::from_secs(6);
const WAIT: Duration = Duration::from_secs(90);
const RENEWED_EVERY: Duration = Duration::from_millis(200);
/// So long the former master counts replicas that it cannot hear: long enough to end a lease that it renews until
/// the slowest fail-over.
const MAX_LAG: Duration = Duration::from_secs(60);
/// The slowest fail-over, and the way to the new master.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);
/// 3 s after most of the Sentinels have named it last.
const LEFT_WITHIN: Duration = Duration::from_secs(5);
const DEFAULT_TTL: Duration = Duration::from_secs(10);
const LOCK: &str = "orders/17";

/// What became of a lease that its holder renews all the time.
struct Renewals {
    /// Until when the holder trusted it.
    trusted_until: Duration,
    /// How many renewals were refused since the new master could not confirm them.
    refused: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_renewed_by_a_successor_whose_former_master_may_end_it() {
    let redis = SentinelDeployment::start(SentinelOptions {
        gated: true,
        min_replicas_max_lag: MAX_LAG,
        ..SentinelOptions::default()
    })
    .await;
    let options = options(redis.url());
    options.init_store().await;
    let brokers = BrokerProcess::start_many(&options, 1).await;
    // This one knows nothing of Sentinels, and stays for ever.
    let stays = BrokerProcess::start(&self::options(redis.server(0).url())).await;
    let client = Client::new("both", &[brokers[0].addr(), stays.addr()], 0);

    let call = AcquireCall::new(LOCK, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("a free lock");
    let next = client.open_at(1, &AcquireCall::new(LOCK, TTL, WAIT));
    client.queued_at(0, LOCK, 1).await;
    let parted = boottime();
    redis.isolate(0);
    let renewals = renew(&client, held).await;
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
    let options = options(url(&sentinels));
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
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

/// Renews until the new master has refused it and nobody trusts the lease any more, whichever is later. However
/// long the fail-over takes, the new master is asked.
async fn renew(client: &Client, mut held: Held) -> Renewals {
    let (give_up, mut refused) = (boottime() + REFUSED_WITHIN, 0);
    while boottime() < give_up && (refused == 0 || held.trusted()) {
        match client.renew_at(0, &held).await {
            Ok(renewed) => held = renewed,
            Err(status) if is_recovering(&status) => refused += 1,
            // It waits for a node, or the one that it had is lost.
            Err(_) => {}
        }
        sleep(RENEWED_EVERY).await;
    }
    Renewals {
        trusted_until: held.trusted_until(),
        refused,
    }
}

fn is_recovering(status: &Status) -> bool {
    reason(status) == Some(ErrorReason::StoreRecovering)
}

fn url(sentinels: &[Gate]) -> String {
    let addrs = sentinels.iter().map(|gate| gate.addr().to_string());
    let addrs: Vec<_> = addrs.collect();
    format!("redis-sentinel://{}/{MASTER}", addrs.join(","))
}

/// The bounds that go with these servers.
fn options(url: String) -> BrokerOptions {
    let mut options = BrokerOptions::on(url);
    let former_max = MAX_LAG + Duration::from_secs(2);
    let settings = [
        ("LIMITS__TTL_MAX", TTL),
        ("LIMITS__LOCK_DELAY_MAX", Duration::ZERO),
        ("STORE__FORMER_MASTER_MAX", former_max),
    ];
    let env = |(key, value): (&str, Duration)| {
        (format!("LEASEHOLD__{key}"), format!("{}s", value.as_secs()))
    };
    options.env = settings.into_iter().map(env).collect();
    options
}
