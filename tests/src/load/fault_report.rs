//! Checks of a run under faults: safety, amount of work, and locks and keys that are left over.

use std::net::SocketAddr;
use std::time::Duration;

use crate::broker::deployment::Deployment;
use crate::broker::process::KEY_PREFIX;
use crate::client::unary::Client;
use crate::clock::boottime;
use crate::load::callers::{CallRecord, KindOfLock, LoadTarget, lock_name};
use crate::load::faults::FaultWindow;
use crate::load::grant_rate::GrantRate;
use crate::load::mutual_exclusion_oracle::Verdict;
use crate::scale::print_figures;

const DRAIN_LIMIT: Duration = Duration::from_secs(20);
const DRAIN_TTL: Duration = Duration::from_secs(2);

/// Prints the figures of a run that lasted from `begun` to `ended`, and asserts its results.
pub fn report_run(
    setting: &str,
    verdict: &Verdict,
    windows: &[FaultWindow],
    calls: &[CallRecord],
    (started_at, ended): (Duration, Duration),
) {
    let in_fault = |call: &CallRecord| windows.iter().any(|window| window.contains(call.ended_at));
    let in_run = |call: &&CallRecord| call.is_granted && call.ended_at < ended;
    let granted = calls.iter().filter(in_run).count();
    let calm_grants = calls
        .iter()
        .filter(in_run)
        .filter(|call| !in_fault(call))
        .count();
    let fault_time: Duration = windows
        .iter()
        .map(|window| window.ended_at - window.started_at)
        .sum();
    let calm_time = ended - started_at - fault_time;
    let per_second = GrantRate::new(calm_grants, calm_time);
    let working = windows.iter().filter(|window| window.is_store_available);
    let (done, not_done) = working
        .map(|window| window.count_granted_and_open(calls))
        .fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    for window in windows {
        let (granted, not) = window.count_granted_and_open(calls);
        let millis = (window.ended_at - window.started_at).as_millis();
        print_figures(&format!(
            "fault {} ({millis} ms, granted={granted} open={not})",
            window.effect
        ));
    }
    let failed = calls.iter().filter(|call| !call.is_granted).count();
    print_figures(&format!(
        "{setting} seconds={} granted={granted} failed={failed} calm_grants_per_s={per_second} faults={} \
         done_in_faults={done} not_done_in_faults={not_done} overlaps={} regressions={} \
         fence_violations={} caught={}",
        (ended - started_at).as_secs(),
        windows.len(),
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
        verdict.rejected_writes
    ));
    let wrong = (
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
    );
    assert_eq!(wrong, (0, 0, 0), "overlaps, regressions, fence violations");
    per_second.assert_sufficient();
    assert!(
        done * 5 >= granted && done * 4 >= not_done,
        "less than a fifth of all calls, or of the calls open then, was done during faults"
    );
}

/// Asserts that every lock of the load becomes free within `DRAIN_LIMIT`.
pub async fn assert_locks_become_free(deployment: &Deployment, locks: usize) {
    assert_locks_become_free_at(&deployment.addrs(), locks).await;
}

/// Asserts that every lock of the load becomes free, as seen by these brokers.
pub async fn assert_locks_become_free_at(brokers: &[SocketAddr], locks: usize) {
    let client = Client::new("observer", brokers, 0);
    let give_up = boottime() + DRAIN_LIMIT;
    for lock in (0..locks).map(lock_name) {
        while let Some(state) = client.get_lock(&lock).await.expect("GetLock works") {
            assert!(boottime() < give_up, "still held or waited for: {state:?}");
        }
    }
}

/// Asserts that each lock of the load can be acquired completely within `DRAIN_LIMIT`. A store that
/// came back with older data may show waiters that have left, until the next call for the lock.
pub async fn assert_locks_can_be_acquired(
    brokers: &[SocketAddr],
    locks: usize,
    kind_of: KindOfLock,
) {
    let client = Client::new("observer", brokers, 0);
    for lock in 0..locks {
        let kind = kind_of(lock);
        let share = kind.full_share();
        let target = LoadTarget { lock, kind, share };
        let call = target.acquire_call(DRAIN_TTL, DRAIN_LIMIT);
        let held = client.acquire(&call).await;
        let held = held.unwrap_or_else(|status| panic!("lock {lock} is not free: {status:?}"));
        client.release(&held).await.expect("it is held");
    }
}

/// Asserts that all keys except the permanent ones have a TTL, so that Redis deletes them.
pub async fn assert_every_key_expires(deployment: &Deployment) {
    let mut redis = deployment.redis.connect().await;
    let permanent = ["era", "key"].map(|name| format!("{KEY_PREFIX}{name}"));
    let keys = redis.keys_with_pttl(KEY_PREFIX).await;
    let endless = keys
        .iter()
        .filter(|(key, pttl)| *pttl < 0 && !permanent.contains(key));
    let endless: Vec<_> = endless.collect();
    assert!(
        keys.len() > permanent.len(),
        "locks have left records: {keys:?}"
    );
    assert!(endless.is_empty(), "keys without a TTL: {endless:?}");
}
