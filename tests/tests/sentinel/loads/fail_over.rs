//! Brokers on Redis with Sentinel during every kind of failover: holders exclude each other, tokens
//! rise, and grants resume in bounded time.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::unary::{AcquireCall, Client},
    clock::boottime,
    load::{
        callers::{CallRecord, LockKind, lock_name, run_without_locks},
        grant_rate::GrantRate,
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
    },
    scale::{print_figures, scaled_count},
    sentinel::{
        deployment::{MasterFault, SentinelDeployment, SentinelOptions},
        grant_probe::wait_for_grant,
    },
};
use rand::Rng as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Number of locks with short holds. The other locks, `HELD` in number, are held for seconds.
const HOT: usize = 8;
const HELD: usize = 24;
const CLIENTS: usize = 40;
const BROKERS: usize = 2;
const TTL: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(20);
const WORK: Duration = Duration::from_millis(1);
const QUIET_PERIOD: Duration = Duration::from_secs(2);
/// The quarantine `Q`: `E(ttl_max) + lock_delay_max + former_master_max + 1 s`.
const QUARANTINE: Duration = Duration::from_millis(3_850 + 3_000 + 1_000);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
const BLIND_CHECK: Duration = Duration::from_secs(1);

/// A failover, with its fault and its times.
struct FailoverRound {
    fault: MasterFault,
    from: Duration,
    /// Time at which every Sentinel named the next master.
    switched: Duration,
    /// Time at which the next master granted a new call.
    resumed: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_failover_grants_a_lock_twice() {
    let mut redis = SentinelDeployment::start(SentinelOptions {
        has_partition_proxies: true,
        ..SentinelOptions::default()
    })
    .await;
    let options = options(&redis);
    options.init_store().await;
    let brokers = BrokerProcess::start_many(&options, BROKERS).await;
    let endpoints: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let oracle = Oracle::new(HOT + HELD);
    let stop = CancellationToken::new();
    let clients = (0..CLIENTS).map(|index| take_locks(&endpoints, index, &oracle, &stop));
    let started_at = boottime();
    let faults = async {
        let mut turns = Vec::new();
        let faults = [
            MasterFault::Killed,
            MasterFault::Stopped,
            MasterFault::Isolated,
        ];
        for fault in faults.into_iter().cycle().take(scaled_count(20, 3)) {
            sleep(QUIET_PERIOD).await;
            turns.push(fail_over(&mut redis, fault, &endpoints).await);
        }
        sleep(QUIET_PERIOD).await;
        stop.cancel();
        turns
    };
    let (calls, turns) = tokio::join!(join_all(clients), faults);
    assert_results(&oracle, &turns, &calls.concat(), boottime() - started_at);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_clients_without_locks_overlap() {
    let oracle = Arc::new(Oracle::new(HOT));
    run_without_locks(CLIENTS, &oracle, |_| LockKind::Exclusive, BLIND_CHECK).await;
    assert!(oracle.verdict().overlaps > 0);
}

/// Returns options with small bounds, which keep the quarantine short.
fn options(redis: &SentinelDeployment) -> BrokerOptions {
    let mut options = BrokerOptions::for_store(redis.url());
    let settings = [
        ("LIMITS__TTL_MAX", "3s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "3s"),
    ];
    let env = |(key, value): (&str, &str)| (format!("LEASEHOLD__{key}"), value.to_owned());
    options.env = settings.into_iter().map(env).collect();
    options
}

async fn fail_over(
    redis: &mut SentinelDeployment,
    fault: MasterFault,
    endpoints: &[SocketAddr],
) -> FailoverRound {
    redis.wait_until_ready().await;
    let master = redis.master().await;
    let from = boottime();
    redis.cause(fault, master).await;
    let next = redis.wait_for_failover(master).await;
    let switched = boottime();
    let resumed = wait_for_grant(redis.server(next), endpoints, TTL).await;
    redis.repair(fault, master, next).await;
    FailoverRound {
        fault,
        from,
        switched,
        resumed,
    }
}

async fn take_locks(
    endpoints: &[SocketAddr],
    index: usize,
    oracle: &Oracle,
    stop: &CancellationToken,
) -> Vec<CallRecord> {
    let client = Client::new(&format!("client-{index}"), endpoints, index);
    let mut calls = Vec::new();
    while !stop.is_cancelled() {
        let is_hot = index.is_multiple_of(2);
        let lock = if is_hot {
            rand::thread_rng().gen_range(0..HOT)
        } else {
            HOT + rand::thread_rng().gen_range(0..HELD)
        };
        let started_at = boottime();
        let call = AcquireCall::new(&lock_name(lock), TTL, WAIT);
        let held = client.acquire(&call).await;
        calls.push(CallRecord {
            started_at,
            ended_at: boottime(),
            is_granted: held.is_ok(),
        });
        let Ok(held) = held else { continue };
        let entered = boottime();
        let until = held.trusted_until();
        if is_hot {
            sleep(WORK).await;
        } else {
            sleep(until.saturating_sub(entered)).await;
        }
        if entered < until {
            oracle.record(LockUse {
                lock,
                share: Share::ALL,
                token: held.token(),
                started_at: entered,
                ended_at: boottime().min(until),
            });
        }
        // Other tests check the result of a release. A lost release costs an expiry.
        let _ = client.release(&held).await;
    }
    calls
}

fn assert_results(oracle: &Oracle, turns: &[FailoverRound], calls: &[CallRecord], ran: Duration) {
    let mut unavailable = Duration::ZERO;
    for turn in turns {
        let after = |end: Duration| (end - turn.from).as_millis();
        print_figures(&format!(
            "sentinel {:?}: switched after {} ms, grants after {} ms (Q={} ms)",
            turn.fault,
            after(turn.switched),
            after(turn.resumed),
            QUARANTINE.as_millis()
        ));
        unavailable += turn.resumed - turn.from;
        assert!(after(turn.resumed) >= QUARANTINE.as_millis(), "too soon");
        let late = turn.resumed - turn.switched;
        assert!(late <= QUARANTINE + RESUMED_WITHIN, "grants after {late:?}");
    }
    let in_fault = |call: &&CallRecord| {
        let mut windows = turns.iter().map(|turn| (turn.from, turn.resumed));
        windows.any(|(from, to)| call.started_at < to && call.ended_at >= from)
    };
    let open = calls.iter().filter(in_fault).count();
    let granted = calls.iter().filter(|call| call.is_granted).count();
    let per_second = GrantRate::new(granted, ran - unavailable);
    let verdict = oracle.verdict();
    print_figures(&format!(
        "sentinel: {} fail-overs in {} s, granted={granted} calm_grants_per_s={per_second} open_in_faults={open} \
         visits={} overlaps={} regressions={}",
        turns.len(),
        ran.as_secs(),
        verdict.uses,
        verdict.overlaps,
        verdict.regressions
    ));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    per_second.assert_sufficient();
    assert!(
        open >= CLIENTS * turns.len() / 2,
        "calls were under way in every fault"
    );
}
