//! The time without grants after a fail-over, with the default settings and leases of 10 s in use.
//! It follows from the limit of spans: no lock is granted sooner or much later, and no holders
//! overlap.

use std::{collections::BTreeMap, fmt, net::SocketAddr, sync::Arc, time::Duration};

use leasehold_server::{lock::SPAN_MIN_MS, store::redis::span_limit::StoredSpanLimit};
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    client::unary::Client,
    clock::{boottime, boottime_from_store},
    load::{
        callers::{CallMix, CallRecord, Load, LoadOptions, lock_name},
        grant_rate::GrantRate,
        lost_writes::{BROKERS, CLIENTS, LOCKS, kind_of, read_last_tokens},
        mutual_exclusion_oracle::{Oracle, Verdict},
    },
    redis::{
        node_fixture::{quarantine_ms, set_span_limit, stored_era},
        server::RedisServer,
    },
    scale::{full_scale_count, is_full_scale, print_figures},
    sentinel::{
        deployment::{MasterFault, SentinelDeployment, SentinelOptions},
        grant_probe::wait_for_grant,
        lagging_replicas::let_replicas_lag,
    },
    store_fixture::lock_key,
    until::{until, until_within},
};
use rand::Rng as _;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(10);
/// The limit of spans for leases of 10 s, `store.former_master_max` and 1 s.
const QUARANTINE: Duration = Duration::from_millis(12_250 + 12_000 + 1_000);
/// Maximum of the median time from the switch to the first grant, at full scale.
const MEDIAN_MAX: Duration = Duration::from_secs(26);
/// Time beside the quarantine in which a broker writes the era of the next master, and a grant
/// reaches a client. Until a replica follows it, that master rejects the era
/// (`min-replicas-to-write`).
const ALLOWANCE: Duration = Duration::from_secs(3);
/// Number of rounds with each state of the replicas, at full scale.
const ROUNDS: usize = 20;
const QUIET_PERIOD: Duration = Duration::from_secs(3);
const LAG_MS_MIN: u64 = 500;
const LAG_MS_MAX: u64 = 2_000;
/// Bound of the time in which the brokers lower the limit of spans: two windows of 2 `Q`
/// and the configured span.
const LOWERED_WITHIN: Duration = Duration::from_secs(480);

const READ_TOKENS: &str = "local tokens = {}
for index, key in ipairs(KEYS) do tokens[index] = redis.call('HGET', key, 'f') or '0' end
return tokens";

/// State of the replicas at the time of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Replicas {
    InStep,
    /// They have not received the writes of the last 0.5 to 2 s.
    Behind,
}

/// A fail-over, with its times.
#[derive(Debug)]
struct Round {
    replicas: Replicas,
    from: Duration,
    /// Time at which every Sentinel named the next master.
    switched: Duration,
    /// Time at which the next master granted a new call.
    resumed: Duration,
    /// Time from which the era of the next master allows grants.
    grants_allowed_from: Duration,
    /// Duration of the quarantine in that era.
    quarantine: Duration,
    /// Number of locks whose last grant before the fault is lost.
    lost_grants: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_resume_by_the_limit_after_a_kill() {
    fail_over_under_load(MasterFault::Killed, [Replicas::InStep, Replicas::Behind]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_resume_by_the_limit_after_a_stop() {
    fail_over_under_load(MasterFault::Stopped, [Replicas::InStep, Replicas::Behind]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_resume_by_the_limit_after_a_partition() {
    fail_over_under_load(MasterFault::Isolated, [Replicas::Behind, Replicas::InStep]).await;
}

/// Repeats a fault with the replicas in these states by turns, and asserts the results. With a
/// smaller scale there is one round.
async fn fail_over_under_load(fault: MasterFault, by_turns: [Replicas; 2]) {
    let mut redis = SentinelDeployment::start(SentinelOptions {
        has_partition_proxies: true,
        ..SentinelOptions::default()
    })
    .await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    let waits_for_lowering = is_full_scale() && fault == MasterFault::Killed;
    if !waits_for_lowering {
        let lowered = StoredSpanLimit::constant(SPAN_MIN_MS);
        set_span_limit(redis.server(0), lowered).await;
    }
    let brokers = BrokerProcess::start_many(&options, BROKERS).await;
    let endpoints: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let oracle = Arc::new(Oracle::new(LOCKS));
    let options = LoadOptions::plain(CLIENTS, kind_of)
        .with_mix(CallMix::Full)
        .with_ttl(TTL);
    let started_at = boottime();
    let load = Load::start(options, &endpoints, &oracle);
    if waits_for_lowering {
        wait_until_lowered(redis.server(0)).await;
    }
    let mut rounds = Vec::new();
    for replicas in by_turns
        .into_iter()
        .cycle()
        .take(full_scale_count(2 * ROUNDS))
    {
        sleep(QUIET_PERIOD).await;
        let round = fail_over(&mut redis, fault, replicas, &endpoints).await;
        print_figures(&format!("recovery_time {fault:?} {round}"));
        rounds.push(round);
    }
    sleep(QUIET_PERIOD).await;
    let ran = boottime() - started_at;
    let calls = load.stop().await.calls;
    assert_load(fault, &rounds, &calls, &oracle.verdict(), ran);
    assert_medians(fault, &rounds);
    rounds.iter().for_each(Round::assert_times);
}

/// Waits until the limit has come down from the configured span, with which a store begins.
async fn wait_until_lowered(server: &RedisServer) {
    let began_at = boottime();
    until_within(LOWERED_WITHIN, "a lowered limit", async || {
        let limit = stored_era(server).await.span_limit.expect("a limit");
        let is_complete = boottime_from_store(limit.at_ms * 1_000) <= boottime();
        (is_complete && limit.after_ms == SPAN_MIN_MS).then_some(())
    })
    .await;
    let lowered_after = boottime() - began_at;
    print_figures(&format!(
        "recovery_time: the limit came down to {SPAN_MIN_MS} ms after {} s of use",
        lowered_after.as_secs()
    ));
}

async fn fail_over(
    redis: &mut SentinelDeployment,
    fault: MasterFault,
    replicas: Replicas,
    endpoints: &[SocketAddr],
) -> Round {
    redis.wait_until_ready().await;
    let master = redis.master().await;
    let client = Client::new("observer", endpoints, 0);
    let tokens = match replicas {
        Replicas::InStep => read_last_tokens(&client, LOCKS).await,
        Replicas::Behind => {
            let lag_ms = rand::thread_rng().gen_range(LAG_MS_MIN..LAG_MS_MAX);
            let lag = Duration::from_millis(lag_ms);
            let_replicas_lag(redis, master, &client, LOCKS, lag).await
        }
    };
    let from = boottime();
    redis.cause(fault, master).await;
    let next = redis.wait_for_failover(master).await;
    let switched = boottime();
    let kept = read_stored_tokens(redis.server(next)).await;
    let lost = tokens.iter().zip(&kept).filter(|(last, kept)| kept < last);
    let lost_grants = lost.count();
    let resumed = wait_for_grant(redis.server(next), endpoints, TTL).await;
    let era = stored_era(redis.server(next)).await;
    redis.repair(fault, master, next).await;
    Round {
        replicas,
        from,
        switched,
        resumed,
        grants_allowed_from: boottime_from_store(era.no_grants_before_ms * 1_000),
        quarantine: Duration::from_millis(quarantine_ms(&era)),
        lost_grants,
    }
}

/// Returns the last fencing tokens in the data of a server, or 0 without a record.
async fn read_stored_tokens(server: &RedisServer) -> Vec<i64> {
    let locks = (0..LOCKS).map(|lock| lock_key("default", &lock_name(lock)).encoded());
    let keys: Vec<_> = locks.map(|lock| format!("{KEY_PREFIX}{lock}")).collect();
    let count = keys.len().to_string();
    let mut command = vec!["EVAL", READ_TOKENS, &count];
    command.extend(keys.iter().map(String::as_str));
    let tokens = until("the tokens of a server", async || {
        // Sentinels close the connections of a server whose role they change.
        server.connect().await.command(&command).await.ok()
    });
    let tokens = tokens.await;
    let tokens = tokens.array().iter().map(|token| token.text().parse());
    tokens.map(|token| token.expect("a token")).collect()
}

impl Round {
    fn without_grants(&self) -> Duration {
        self.resumed - self.switched
    }

    fn assert_times(&self) {
        assert_eq!(self.quarantine, QUARANTINE, "{self}");
        assert!(self.grants_allowed_from >= self.from + QUARANTINE, "{self}");
        assert!(self.resumed >= self.grants_allowed_from, "early: {self}");
        assert!(
            self.without_grants() <= QUARANTINE + ALLOWANCE,
            "late: {self}"
        );
        let has_lost = self.replicas == Replicas::InStep || self.lost_grants > 0;
        assert!(has_lost, "no grant was lost: {self}");
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: switched after {} ms, grants {} ms later (Q={} ms), {} ms after the fault, lost_grants={}",
            self.replicas,
            (self.switched - self.from).as_millis(),
            self.without_grants().as_millis(),
            self.quarantine.as_millis(),
            (self.resumed - self.from).as_millis(),
            self.lost_grants
        )
    }
}

/// Prints the median and the maximum of each time, for each state of the replicas, and asserts the
/// median.
fn assert_medians(fault: MasterFault, rounds: &[Round]) {
    let mut by_state = BTreeMap::<Replicas, Vec<&Round>>::new();
    for round in rounds {
        by_state.entry(round.replicas).or_default().push(round);
    }
    for (replicas, rounds) in by_state {
        let [from_switch, from_fault] = [
            |round: &Round| round.without_grants(),
            |round: &Round| round.resumed - round.from,
        ]
        .map(|time| Spread::of(rounds.iter().map(|round| time(round)).collect()));
        print_figures(&format!(
            "recovery_time {fault:?} {replicas:?}: rounds={} from the switch to the first grant: \
             {from_switch}; from the fault: {from_fault}",
            rounds.len()
        ));
        let is_in_time = !is_full_scale() || from_switch.median <= MEDIAN_MAX;
        assert!(is_in_time, "{replicas:?}: {from_switch}");
    }
}

/// Median and maximum of times.
struct Spread {
    median: Duration,
    max: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self {
            median: times[times.len() / 2],
            max: times[times.len() - 1],
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, max] = [self.median, self.max].map(|time| time.as_millis());
        write!(f, "median {median} ms, max {max} ms")
    }
}

fn assert_load(
    fault: MasterFault,
    rounds: &[Round],
    calls: &[CallRecord],
    verdict: &Verdict,
    ran: Duration,
) {
    let is_in_fault = |round: &Round, at: Duration| round.from < at && at < round.resumed;
    let granted = calls.iter().filter(|call| call.is_granted);
    let calm = granted.filter(|call| {
        let mut faults = rounds.iter();
        !faults.any(|round| is_in_fault(round, call.ended_at))
    });
    let fault_time: Duration = rounds.iter().map(|round| round.resumed - round.from).sum();
    let per_second = GrantRate::new(calm.count(), ran - fault_time);
    let open_in = |round: &Round| {
        let calls = calls.iter();
        let open =
            calls.filter(|call| call.started_at < round.resumed && call.ended_at >= round.from);
        open.count()
    };
    let least_open = rounds.iter().map(open_in).min().expect("a round");
    print_figures(&format!(
        "recovery_time {fault:?}: seconds={} rounds={} calm_grants_per_s={per_second} least_open_in_a_fault={least_open} \
         uses={} overlaps={} regressions={} fence_violations={}",
        ran.as_secs(),
        rounds.len(),
        verdict.uses,
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations
    ));
    let wrong = (
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
    );
    assert_eq!(wrong, (0, 0, 0), "overlaps, regressions, fence violations");
    per_second.assert_sufficient();
    assert!(
        least_open >= CLIENTS / 2,
        "calls were under way in every fault"
    );
}
