//! Sentinel promotes a replica that has not replicated the newest writes of a killed master, under
//! load. No holders overlap, tokens rise, and each lost lease has a cause.

use std::{sync::Arc, time::Duration};

use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::unary::Client,
    clock::boottime,
    load::{
        callers::{CallMix, Load, LoadOptions, run_without_locks},
        fault_report::assert_locks_can_be_acquired,
        losses::DataLoss,
        lost_writes::{BROKERS, CLIENTS, LOCKS, LostWrites, assert_lost_writes, kind_of},
        mutual_exclusion_oracle::Oracle,
    },
    redis::server::RestartData,
    scale::{print_figures, scaled_count},
    sentinel::{
        deployment::{SentinelDeployment, SentinelOptions},
        lagging_replicas::let_replicas_lag,
    },
};
use rand::Rng as _;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(3);
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s.
const QUARANTINE: Duration = Duration::from_millis(3_850 + 3_000 + 1_000);
const FAULTS: usize = 10;
const QUIET_PERIOD: Duration = Duration::from_secs(2);
const LAG_MS_MIN: u64 = 500;
const LAG_MS_MAX: u64 = 2_000;
const BLIND_CHECK: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn no_holders_overlap_when_a_lagging_replica_is_promoted() {
    let mut redis = SentinelDeployment::start(SentinelOptions {
        has_partition_proxies: true,
        ..SentinelOptions::default()
    })
    .await;
    let mut options = BrokerOptions::for_store(redis.url());
    let bounds = [
        ("LIMITS__TTL_MAX", "3s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "3s"),
    ];
    let settings = bounds.map(|(key, value)| (format!("LEASEHOLD__{key}"), value.to_owned()));
    options.env = settings.to_vec();
    options.init_store().await;
    let brokers = BrokerProcess::start_many(&options, BROKERS).await;
    let endpoints: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let oracle = Arc::new(Oracle::new(LOCKS));
    let options = LoadOptions::plain(CLIENTS, kind_of)
        .with_mix(CallMix::Long)
        .with_ttl(TTL);
    let started_at = boottime();
    let load = Load::start(options, &endpoints, &oracle);
    let probe = Client::new("probe", &endpoints, 0);
    let mut faults = Vec::new();
    for _ in 0..scaled_count(FAULTS, 1) {
        sleep(QUIET_PERIOD).await;
        let former = redis.master().await;
        redis.wait_until_ready().await;
        let started_at = boottime();
        let lag_ms = rand::thread_rng().gen_range(LAG_MS_MIN..LAG_MS_MAX);
        let lag = Duration::from_millis(lag_ms);
        let tokens = let_replicas_lag(&redis, former, &probe, LOCKS, lag).await;
        redis.kill(former).await;
        let gone_at = boottime();
        let next = redis.wait_for_failover(former).await;
        redis.heal();
        let data_loss = DataLoss {
            started_at,
            ended_at: boottime(),
        };
        let lost = LostWrites::wait_for_grants(data_loss, gone_at, &tokens, &probe, TTL);
        faults.push(lost.await);
        redis.restart(former, RestartData::Kept).await;
        redis.wait_until_replicating(former, next).await;
    }
    sleep(QUIET_PERIOD).await;
    let ran = boottime() - started_at;
    let record = load.stop().await;
    let setting = format!("lagging_replica: clients={CLIENTS} brokers={BROKERS} locks={LOCKS}");
    let results = (&record, &oracle.verdict());
    assert_lost_writes(&setting, &faults, results, QUARANTINE, ran);
    record.assert_all_activities();
    assert_locks_can_be_acquired(&endpoints, LOCKS, kind_of).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_detects_overlaps_without_locks() {
    let oracle = Arc::new(Oracle::new(LOCKS));
    run_without_locks(CLIENTS, &oracle, kind_of, BLIND_CHECK).await;
    let verdict = oracle.verdict();
    print_figures(&format!(
        "lagging_replica without locks: uses={} overlaps={}",
        verdict.uses, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the oracle must see overlaps");
}
