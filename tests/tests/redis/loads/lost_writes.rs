//! A Redis under load that loses its newest writes: it is killed, and restarts with the data that
//! it saved up to 2 s earlier. No holders overlap, tokens rise, and each lost lease has a cause.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use leasehold_server::{lock::SPAN_MIN_MS, store::redis::span_limit::StoredSpanLimit};
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
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
    redis::{node_fixture::set_span_limit, server::RedisServer},
    scale::{full_scale_count, print_figures, scaled_count},
};
use rand::Rng as _;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s.
const QUARANTINE: Duration = Duration::from_millis(2_650 + 1_000 + 1_000);
/// TTL of the leases beside the default settings.
const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// The limit of spans for leases of 10 s, and 1 s.
const DEFAULT_QUARANTINE: Duration = Duration::from_millis(12_250 + 1_000);
/// Maximum time from the restart until grants resume with the default settings.
const DEFAULT_RESUMED_WITHIN: Duration = Duration::from_secs(16);
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

/// A run with the quarantine that its settings cause.
struct Run {
    ttl: Duration,
    faults: usize,
    /// Writes before each fault that are lost.
    lost_ms: RangeInclusive<u64>,
    quarantine: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_holders_overlap_when_redis_loses_its_newest_writes() {
    let deployment = start_deployment().await;
    let run = Run {
        ttl: TTL,
        faults: scaled_count(FAULTS, 2),
        lost_ms: LOST_MS_MIN..=LOST_MS_MAX,
        quarantine: QUARANTINE,
    };
    run.lose_writes(deployment).await;
}

/// The brokers have read the limit of spans, from which the quarantine follows.
#[tokio::test(flavor = "multi_thread")]
async fn grants_resume_by_the_limit_when_redis_loses_two_seconds() {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    set_span_limit(&redis, StoredSpanLimit::constant(SPAN_MIN_MS)).await;
    let brokers = BrokerProcess::start_many(&options, BROKERS).await;
    let deployment = Deployment { brokers, redis };
    let run = Run {
        ttl: DEFAULT_TTL,
        faults: full_scale_count(FAULTS),
        lost_ms: LOST_MS_MAX..=LOST_MS_MAX,
        quarantine: DEFAULT_QUARANTINE,
    };
    for fault in run.lose_writes(deployment).await {
        let resumed_after = fault.resumed_at - fault.data_loss.ended_at;
        assert!(
            fault.resumed_at >= fault.gone_at + DEFAULT_QUARANTINE,
            "{fault:?}"
        );
        assert!(resumed_after <= DEFAULT_RESUMED_WITHIN, "{fault:?}");
    }
}

impl Run {
    async fn lose_writes(self, mut deployment: Deployment) -> Vec<LostWrites> {
        let endpoints = deployment.addrs();
        let oracle = Arc::new(Oracle::new(LOCKS));
        let options = LoadOptions::plain(CLIENTS, kind_of)
            .with_mix(CallMix::Long)
            .with_ttl(self.ttl);
        let started_at = boottime();
        let load = Load::start(options, &endpoints, &oracle);
        let probe = Client::new("probe", &endpoints, 0);
        let mut faults = Vec::new();
        for _ in 0..self.faults {
            sleep(QUIET_PERIOD).await;
            let (data_loss, gone_at, tokens) =
                restart_with_older_data(&mut deployment.redis, &probe, self.lost_ms.clone()).await;
            let lost = LostWrites::wait_for_grants(data_loss, gone_at, &tokens, &probe, self.ttl);
            faults.push(lost.await);
        }
        sleep(QUIET_PERIOD).await;
        let ran = boottime() - started_at;
        let record = load.stop().await;
        let setting = format!(
            "lost_writes: clients={CLIENTS} brokers={BROKERS} locks={LOCKS} ttl={:?}",
            self.ttl
        );
        let results = (&record, &oracle.verdict());
        assert_lost_writes(&setting, &faults, results, self.quarantine, ran);
        record.assert_all_activities();
        assert_locks_can_be_acquired(&endpoints, LOCKS, kind_of).await;
        assert_every_key_expires(&deployment).await;
        faults
    }
}

/// Saves the data, kills Redis this time later, and restarts it with the saved data. Returns also
/// the time at which Redis was gone, and the last tokens before that.
async fn restart_with_older_data(
    redis: &mut RedisServer,
    probe: &Client,
    lost_ms: RangeInclusive<u64>,
) -> (DataLoss, Duration, Vec<i64>) {
    let started_at = boottime();
    redis.connect().await.must(&["SAVE"]).await;
    let saved = read_last_tokens(probe, LOCKS).await;
    let lost_ms = rand::thread_rng().gen_range(lost_ms);
    sleep(Duration::from_millis(lost_ms)).await;
    let tokens = wait_for_later_tokens(probe, &saved).await;
    redis.kill().await;
    let gone_at = boottime();
    redis.restart().await;
    redis.connect().await.must(&["PING"]).await;
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
