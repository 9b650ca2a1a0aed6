//! A store that loses its data while locks are held. No lock is granted while a former holder may
//! rely on it, and grants resume within a bounded time.

#![expect(
    clippy::disallowed_methods,
    reason = "holders and rivals are tasks of the test"
)]
#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::broker::deployment::Deployment;
use leasehold_tests::broker::process::BrokerOptions;
use leasehold_tests::client::unary::{AcquireCall, Client, HeldLease};
use leasehold_tests::clock::boottime;
use leasehold_tests::load::mutual_exclusion_oracle::{LockUse, Oracle, Share};
use leasehold_tests::redis::server::RedisServer;
use leasehold_tests::scale::print_figures;
use leasehold_tests::status::has_unknown_outcome;
use rand::Rng;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

const LOCKS: usize = 500;
const BROKERS: usize = 2;
const CONNECTIONS: usize = 4;
const TTL: Duration = Duration::from_secs(6);
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s. Each of the two limits is 1 s.
const QUARANTINE: Duration = Duration::from_millis(7450 + 1000 + 1000 + 1000);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
const SETTLED: Duration = Duration::from_secs(1);
const CALL_LIMIT: Duration = Duration::from_secs(1);
const RIVAL_WAIT: Duration = Duration::from_secs(8);
const RIVAL_PAUSE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_millis(400);

#[derive(Debug, Clone, Copy)]
enum Loss {
    Flush,
    EmptyRestart,
    OldSnapshot,
}

/// Results of holders and rivals.
#[derive(Debug)]
struct Results {
    witness: Oracle,
    renewals: AtomicUsize,
    notified: AtomicUsize,
    ran_out: AtomicUsize,
    rival_grants: std::sync::Mutex<Vec<Duration>>,
    stop: CancellationToken,
}

#[tokio::test(flavor = "multi_thread")]
async fn flushall_gives_no_lock_twice() {
    run_loss(Loss::Flush).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_data_gives_no_lock_twice() {
    run_loss(Loss::EmptyRestart).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_from_an_old_snapshot_gives_no_lock_twice() {
    run_loss(Loss::OldSnapshot).await;
}

async fn run_loss(loss: Loss) {
    let mut deployment = deployment().await;
    let endpoints = deployment.addrs().repeat(CONNECTIONS);
    let client = Client::new("holder", &endpoints, 0);
    let held = acquire_all(&client, &deployment).await;
    let seen = Arc::new(Results::new());
    let holders = held.into_iter().enumerate().map(|(lock, held)| {
        let client = client.with_name(&format!("holder-{lock}"), lock);
        AbortOnDropHandle::new(tokio::spawn(hold(client, lock, held, Arc::clone(&seen))))
    });
    let holders: Vec<_> = holders.collect();
    let rivals = (0..LOCKS).map(|lock| {
        let client = client.with_name(&format!("rival-{lock}"), lock);
        AbortOnDropHandle::new(tokio::spawn(run_rival(client, lock, Arc::clone(&seen))))
    });
    let rivals: Vec<_> = rivals.collect();
    seen.wait_for_renewals().await;
    let before = (seen.rival_grants.lock().unwrap().len(), seen.lost());
    assert_eq!(
        before,
        (0, 0),
        "rivals' grants and lost leases before the loss"
    );

    let lost_at = cause_loss(&mut deployment, loss).await;
    sleep((lost_at + QUARANTINE + RESUMED_WITHIN).saturating_sub(boottime())).await;
    let in_time = seen.rival_grants.lock().unwrap().clone();
    let lost = seen.lost();
    seen.stop.cancel();
    join_all(holders).await.into_iter().for_each(Result::unwrap);
    let ended = timeout(RIVAL_WAIT + QUARANTINE, join_all(rivals)).await;
    ended
        .expect("every rival gets its lock in the end")
        .into_iter()
        .for_each(Result::unwrap);
    assert_results(loss, &seen, &in_time, (lost_at, lost));
}

fn assert_results(
    loss: Loss,
    seen: &Results,
    in_time: &[Duration],
    (lost_at, lost): (Duration, usize),
) {
    let verdict = seen.witness.verdict();
    let first = in_time.iter().min().map(|at| (*at - lost_at).as_millis());
    let last = in_time.iter().max().map(|at| (*at - lost_at).as_millis());
    print_figures(&format!(
        "data_loss {loss:?}: held={LOCKS} lost={lost} (notified={} ran_out={}) Q={} ms \
         first_grant_after={first:?} ms last={last:?} ms regranted={} overlaps={} regressions={}",
        seen.notified.load(Ordering::Relaxed),
        seen.ran_out.load(Ordering::Relaxed),
        QUARANTINE.as_millis(),
        in_time.len(),
        verdict.overlaps,
        verdict.regressions
    ));
    assert_eq!(
        (verdict.overlaps, verdict.regressions),
        (0, 0),
        "overlaps and regressions"
    );
    assert!(lost > 0, "the loss took effect");
    assert!(
        in_time.len() >= lost,
        "grants resume within Q + 5 s: {} of {lost}",
        in_time.len()
    );
    assert_eq!(
        verdict.uses,
        2 * LOCKS,
        "every lock went from its holder to its rival"
    );
}

impl Results {
    fn new() -> Self {
        Self {
            witness: Oracle::new(LOCKS),
            renewals: AtomicUsize::new(0),
            notified: AtomicUsize::new(0),
            ran_out: AtomicUsize::new(0),
            rival_grants: std::sync::Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Waits for as many renewals as there are locks, and then for a second in which rivals may
    /// try.
    async fn wait_for_renewals(&self) {
        let give_up = boottime() + 30 * SETTLED;
        while self.renewals.load(Ordering::Relaxed) < LOCKS {
            assert!(boottime() < give_up, "holders do not renew");
            sleep(PAUSE).await;
        }
        sleep(SETTLED).await;
    }

    fn lost(&self) -> usize {
        self.notified.load(Ordering::Relaxed) + self.ran_out.load(Ordering::Relaxed)
    }
}

async fn deployment() -> Deployment {
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    let bounds = [
        ("LIMITS__TTL_MAX", "6s"),
        ("LIMITS__LOCK_DELAY_MAX", "1s"),
        ("STORE__FORMER_MASTER_MAX", "1s"),
    ];
    options.env = bounds
        .map(|(key, value)| (format!("LEASEHOLD__{key}"), value.to_owned()))
        .to_vec();
    Deployment::start_on(redis, &options, BROKERS).await
}

/// Acquires every lock. A snapshot is saved between the first and the second half. After that,
/// every fourth lock is acquired with a new lease, so that the snapshot contains some current
/// leases, lacks others, and contains ended leases.
async fn acquire_all(client: &Client, deployment: &Deployment) -> Vec<HeldLease> {
    let mut held = acquire_range(client, 0..LOCKS / 2).await;
    deployment.redis.connect().await.must(&["SAVE"]).await;
    for (lock, held) in held
        .iter_mut()
        .enumerate()
        .filter(|(lock, _)| lock % 2 == 0)
    {
        client.release(held).await.unwrap();
        *held = client.acquire(&call(lock, Duration::ZERO)).await.unwrap();
    }
    held.extend(acquire_range(client, LOCKS / 2..LOCKS).await);
    join_all(held.iter_mut().map(|held| client.renew(held)))
        .await
        .into_iter()
        .for_each(Result::unwrap);
    held
}

async fn acquire_range(client: &Client, locks: std::ops::Range<usize>) -> Vec<HeldLease> {
    let calls: Vec<_> = locks.map(|lock| call(lock, Duration::ZERO)).collect();
    let held = join_all(calls.iter().map(|call| client.acquire(call))).await;
    held.into_iter().map(Result::unwrap).collect()
}

async fn cause_loss(deployment: &mut Deployment, loss: Loss) -> Duration {
    let redis = &mut deployment.redis;
    if matches!(loss, Loss::Flush) {
        redis.connect().await.must(&["FLUSHALL"]).await;
        return boottime();
    }
    if matches!(loss, Loss::EmptyRestart) {
        std::fs::remove_file(redis.snapshot_path()).unwrap();
    }
    let lost_at = boottime();
    redis.restart().await;
    lost_at
}

/// Renews a lock until the end of the test, until a renewal is rejected, or until the validity has
/// expired.
async fn hold(client: Client, lock: usize, mut held: HeldLease, seen: Arc<Results>) {
    let entered = held.sent_at;
    let token = held.token();
    let mut at = lock;
    let ended = loop {
        // Renewals are due after about a third of the TTL, at different times for each holder. A
        // failed renewal is repeated soon.
        let next = held.sent_at + jittered(held.ttl() / 3);
        tokio::select! {
            () = sleep(next.saturating_sub(boottime()).max(jittered(AGAIN))) => {}
            () = seen.stop.cancelled() => {
                let ended = boottime().min(held.valid_until());
                // The result of the release does not matter, because the rivals show that the lock
                // is free.
                let _ = client.release(&held).await;
                break ended;
            }
        }
        match timeout(CALL_LIMIT, client.renew_at(at, &held)).await {
            Ok(Ok(renewed)) => {
                seen.renewals.fetch_add(1, Ordering::Relaxed);
                held = renewed;
            }
            Ok(Err(status)) if !has_unknown_outcome(&status) => {
                seen.notified.fetch_add(1, Ordering::Relaxed);
                break boottime().min(held.valid_until());
            }
            Ok(Err(_)) | Err(_) => at += 1,
        }
        if boottime() >= held.valid_until() {
            seen.ran_out.fetch_add(1, Ordering::Relaxed);
            break held.valid_until();
        }
    };
    seen.witness.record(LockUse {
        lock,
        share: Share::ALL,
        token,
        started_at: entered,
        ended_at: ended,
    });
}

/// Requests the lock until it is granted. Every other rival waits in the queue, and the other
/// rivals repeat calls that do not wait.
async fn run_rival(client: Client, lock: usize, seen: Arc<Results>) {
    let wait = if lock.is_multiple_of(2) {
        RIVAL_WAIT
    } else {
        Duration::ZERO
    };
    let mut at = lock;
    sleep(jittered(RIVAL_PAUSE)).await;
    let held = loop {
        let call = call(lock, wait);
        if let Ok(Ok(held)) = timeout(wait + CALL_LIMIT, client.acquire_at(at, &call)).await {
            break held;
        }
        at += 1;
        sleep(jittered(RIVAL_PAUSE)).await;
    };
    let entered = boottime();
    seen.rival_grants.lock().unwrap().push(entered);
    let visit = LockUse {
        lock,
        share: Share::ALL,
        token: held.token(),
        started_at: entered,
        ended_at: held.valid_until(),
    };
    seen.witness.record(visit);
}

/// Returns a random time between half and one and a half times `time`.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::thread_rng().gen_range(0.5..1.5))
}

fn call(lock: usize, wait: Duration) -> AcquireCall {
    AcquireCall::new(&format!("held/{lock}"), TTL, wait)
}
