//! A Redis under load that loses its newest writes: it is killed, and restarts with the data that
//! it saved up to 2 s earlier. No holders overlap, tokens rise, and each lost lease has a cause.

use std::{sync::Arc, time::Duration};

use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::unary::Client,
    clock::boottime,
    load::{
        callers::{CallMix, Load, LoadOptions, run_without_locks},
        fault_report::{assert_every_key_expires, assert_locks_can_be_acquired},
        losses::DataLoss,
        lost_writes::{
            BROKERS, CLIENTS, LOCKS, LostWrites, assert_lost_writes, kind_of, read_last_tokens,
            wait_for_later_tokens,
        },
        mutual_exclusion_oracle::Oracle,
    },
    redis::server::RedisServer,
    scale::{print_figures, scaled_count},
};
use rand::Rng as _;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s.
const QUARANTINE: Duration = Duration::from_millis(2_650 + 1_000 + 1_000);
const FAULTS: usize = 20;
const QUIET_PERIOD: Duration = Duration::from_secs(2);
const LOST_MS_MIN: u64 = 200;
const LOST_MS_MAX: u64 = 2_000;
const BLIND_CHECK: Duration = Duration::from_secs(1);

/// Starts brokers with small bounds, which keep the quarantine short.
async fn start_deployment() -> Deployment {
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    let bounds = [
        ("LIMITS__TTL_MAX", "2s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "1s"),
    ];
    let settings = bounds.map(|(key, value)| (format!("LEASEHOLD__{key}"), value.to_owned()));
    options.env = settings.to_vec();
    Deployment::start_on(redis, &options, BROKERS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_holders_overlap_when_redis_loses_its_newest_writes() {
    let mut deployment = start_deployment().await;
    let endpoints = deployment.addrs();
    let oracle = Arc::new(Oracle::new(LOCKS));
    let options = LoadOptions::plain(CLIENTS, kind_of)
        .with_mix(CallMix::Long)
        .with_ttl(TTL);
    let started_at = boottime();
    let load = Load::start(options, &endpoints, &oracle);
    let probe = Client::new("probe", &endpoints, 0);
    let mut faults = Vec::new();
    for _ in 0..scaled_count(FAULTS, 2) {
        sleep(QUIET_PERIOD).await;
        let (data_loss, gone_at, tokens) =
            restart_with_older_data(&mut deployment.redis, &probe).await;
        let lost = LostWrites::wait_for_grants(data_loss, gone_at, &tokens, &probe, TTL);
        faults.push(lost.await);
    }
    sleep(QUIET_PERIOD).await;
    let ran = boottime() - started_at;
    let record = load.stop().await;
    let setting = format!("lost_writes: clients={CLIENTS} brokers={BROKERS} locks={LOCKS}");
    let results = (&record, &oracle.verdict());
    assert_lost_writes(&setting, &faults, results, QUARANTINE, ran);
    record.assert_all_activities();
    assert_locks_can_be_acquired(&endpoints, LOCKS, kind_of).await;
    assert_every_key_expires(&deployment).await;
}

/// Saves the data, kills Redis up to 2 s later, and restarts it with the saved data. Returns also
/// the time at which Redis was gone, and the last tokens before that.
async fn restart_with_older_data(
    redis: &mut RedisServer,
    probe: &Client,
) -> (DataLoss, Duration, Vec<i64>) {
    let started_at = boottime();
    redis.connect().await.must(&["SAVE"]).await;
    let saved = read_last_tokens(probe, LOCKS).await;
    let lost_ms = rand::thread_rng().gen_range(LOST_MS_MIN..LOST_MS_MAX);
    sleep(Duration::from_millis(lost_ms)).await;
    let tokens = wait_for_later_tokens(probe, &saved).await;
    redis.kill().await;
    let gone_at = boottime();
    redis.restart().await;
    let data_loss = DataLoss {
        started_at,
        ended_at: boottime(),
    };
    (data_loss, gone_at, tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_detects_overlaps_without_locks() {
    let oracle = Arc::new(Oracle::new(LOCKS));
    run_without_locks(CLIENTS, &oracle, kind_of, BLIND_CHECK).await;
    let verdict = oracle.verdict();
    print_figures(&format!(
        "lost_writes without locks: uses={} overlaps={}",
        verdict.uses, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the oracle must see overlaps");
}
