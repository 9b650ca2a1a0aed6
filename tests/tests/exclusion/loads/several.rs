//! AcquireAll by many callers on a real Redis, without faults and with killed brokers: calls do not
//! deadlock, and a call that has ended leaves no lock held.

#![expect(
    clippy::disallowed_methods,
    reason = "the callers are tasks of the test"
)]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    load::{
        callers::{LockKind, lock_name, run_without_locks},
        faults::kill_and_restart,
        grant_rate::GrantRate,
        mutual_exclusion_oracle::{LockUse, Oracle, Share},
    },
    scale::{print_figures, scaled_count},
    status::error_reason,
};
use rand::{Rng as _, seq::SliceRandom as _};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

const CALLERS: usize = 32;
const CALLS: usize = 1_000;
const KILLS: usize = 10;
const BROKERS: usize = 3;
const LOCKS: usize = 8;
const TTL: Duration = Duration::from_secs(1);
/// TTL far longer than any wait without a deadlock.
const CALM_TTL: Duration = Duration::from_secs(20);
/// Expiry in the store for this TTL: 1.2 times the TTL plus 250 ms.
const EXPIRY: Duration = Duration::from_millis(1_450);
/// Duration of an observation, and delay between the end of a call at its caller and at its broker.
const SLACK: Duration = Duration::from_millis(300);
const WORK: Duration = Duration::from_millis(1);
/// Downtime of a killed broker. Locks that its calls held block other calls for half of this time.
const DOWN: Duration = Duration::from_secs(3);
const QUIET_PERIOD: Duration = Duration::from_millis(1_500);
const ABANDONED_ONE_IN: u32 = 10;
const ABANDONED_WITHIN_MS: u64 = 20;
const STOP_LIMIT: Duration = Duration::from_secs(60);
const BLIND_CHECK: Duration = Duration::from_secs(1);

/// State that all callers and the observer share.
struct Run {
    client: Client,
    ttl: Duration,
    /// True while some callers abandon their calls. Callers do so only in the first part of a
    /// broker's downtime, so that their locks are free when the downtime ends.
    abandons: AtomicBool,
    /// Number of calls after which the callers stop.
    most: usize,
    oracle: Oracle,
    calls: AtomicUsize,
    /// End time of each call, by owner. The call should hold nothing after that time.
    over: Mutex<HashMap<String, Duration>>,
    /// Time of each grant, and its number of locks.
    grants: Mutex<Vec<(Duration, usize)>>,
    /// Time of each response.
    answered: Mutex<Vec<Duration>>,
    outcomes: Mutex<HashMap<String, usize>>,
    longest: Mutex<Duration>,
    /// True if the next caller that is granted its locks leaves without a release.
    one_dies: AtomicBool,
    stop: AtomicBool,
}

impl Run {
    fn new(deployment: &Deployment, ttl: Duration, most: usize) -> Arc<Self> {
        Arc::new(Self {
            client: Client::new("", &deployment.addrs(), 0),
            ttl,
            abandons: AtomicBool::default(),
            most,
            oracle: Oracle::new(LOCKS),
            calls: AtomicUsize::default(),
            over: Mutex::default(),
            grants: Mutex::default(),
            answered: Mutex::default(),
            outcomes: Mutex::default(),
            longest: Mutex::default(),
            one_dies: AtomicBool::default(),
            stop: AtomicBool::default(),
        })
    }

    fn callers(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let caller = |_| {
            let run = Arc::clone(self);
            tokio::spawn(async move { run.caller().await })
        };
        (0..CALLERS).map(caller).collect()
    }

    fn record_end(&self, owner: &str) {
        lock(&self.over).insert(owner.to_owned(), boottime());
    }

    async fn caller(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            if number >= self.most {
                return;
            }
            let owner = format!("call-{number}");
            let client = self.client.with_name(&owner, number);
            let locks = random_locks();
            let names: Vec<_> = locks.iter().map(|lock| lock_name(*lock)).collect();
            let call = AcquireCall::new("", self.ttl, self.ttl);
            let started_at = boottime();
            let is_abandoned = self.abandons.load(Ordering::Relaxed)
                && rand::thread_rng().gen_ratio(1, ABANDONED_ONE_IN);
            if is_abandoned {
                let within = rand::thread_rng().gen_range(0..ABANDONED_WITHIN_MS);
                let attempt = client.acquire_all_at(number, &names, &call);
                let _ = timeout(Duration::from_millis(within), attempt).await;
                self.record_end(&owner);
                self.count("abandoned");
                continue;
            }
            let held = client.acquire_all(&names, &call).await;
            self.record_answer(started_at);
            match held {
                Ok(held) => self.visit(&client, &locks, &owner, &held).await,
                Err(status) => {
                    self.record_end(&owner);
                    self.count(&format!("{:?}", error_reason(&status)));
                }
            }
        }
    }

    async fn visit(&self, client: &Client, locks: &[usize], owner: &str, held: &HeldLease) {
        lock(&self.grants).push((boottime(), locks.len()));
        self.count("granted");
        if held.is_trusted() {
            let entered = boottime();
            sleep(WORK).await;
            let ended = boottime().min(held.trusted_until());
            for (&lock, grant) in locks.iter().zip(&held.lease.grants) {
                self.oracle.record(LockUse {
                    lock,
                    share: Share::ALL,
                    token: grant.fencing_token,
                    started_at: entered,
                    ended_at: ended,
                });
            }
        }
        if self.one_dies.swap(false, Ordering::Relaxed) {
            self.count("died");
        } else {
            let _ = client.release(held).await;
        }
        self.record_end(owner);
    }

    fn record_answer(&self, started_at: Duration) {
        let answered = boottime();
        lock(&self.answered).push(answered);
        let time = answered - started_at;
        let mut longest = lock(&self.longest);
        *longest = time.max(*longest);
    }

    fn count(&self, outcome: &str) {
        *lock(&self.outcomes).entry(outcome.to_owned()).or_default() += 1;
    }

    /// Reads all locks repeatedly. Returns the longest time for which a lock was held after the end
    /// of its call.
    async fn observe(&self) -> Duration {
        let mut longest = Duration::ZERO;
        let client = self.client.with_name("observer", 0);
        while !self.stop.load(Ordering::Relaxed) {
            longest = longest.max(self.list_locks(&client).await.0);
            sleep(Duration::from_millis(10)).await;
        }
        loop {
            let (left, held) = self.list_locks(&client).await;
            longest = longest.max(left);
            if held == 0 {
                return longest;
            }
        }
    }

    async fn list_locks(&self, client: &Client) -> (Duration, usize) {
        let (mut longest, mut held) = (Duration::ZERO, 0);
        for name in (0..LOCKS).map(lock_name) {
            let sent = boottime();
            let Some(state) = client.get_lock(&name).await.expect("GetLock works") else {
                continue;
            };
            held += state.holders.len();
            let over = lock(&self.over);
            for holder in &state.holders {
                let owner = &holder.owner.as_ref().expect("an owner").id;
                if let Some(over) = over.get(owner) {
                    longest = longest.max(sent.saturating_sub(*over));
                }
            }
        }
        (longest, held)
    }
}

/// Returns two to six locks in random order.
fn random_locks() -> Vec<usize> {
    let mut rng = rand::thread_rng();
    let mut locks: Vec<_> = (0..LOCKS).collect();
    locks.shuffle(&mut rng);
    locks.truncate(rng.gen_range(2..=6));
    locks
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests locks in a different order in each call. If the locks were acquired in these orders,
/// some calls would wait for each other until their timeout.
#[tokio::test(flavor = "multi_thread")]
async fn t26_no_calls_deadlock() {
    let deployment = Deployment::start(BROKERS).await;
    let calls = scaled_count(CALLS, 100);
    let run = Run::new(&deployment, CALM_TTL, calls);
    for caller in join_all(run.callers()).await {
        caller.expect("a caller does not panic");
    }
    let granted = lock(&run.outcomes).get("granted").copied();
    let (longest, verdict) = (*lock(&run.longest), run.oracle.verdict());
    print_figures(&format!(
        "several in calm: callers={CALLERS} calls={calls} granted={granted:?} \
         longest_call_ms={} overlaps={}",
        longest.as_millis(),
        verdict.overlaps,
    ));
    assert_eq!(granted, Some(calls), "{:?}", lock(&run.outcomes));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_deadlock_and_no_partial_hold_under_kills() {
    let mut deployment = Deployment::start(BROKERS).await;
    let run = Run::new(&deployment, TTL, usize::MAX);
    let callers = run.callers();
    let observer = Arc::clone(&run);
    let observer = tokio::spawn(async move { observer.observe().await });
    let started_at = boottime();
    let mut faults = Vec::new();
    let errors = || run.client.counters.transport_errors.load(Ordering::Relaxed);
    for kill in 0.. {
        sleep(QUIET_PERIOD).await;
        let (from, before) = (boottime(), errors());
        run.one_dies.store(true, Ordering::Relaxed);
        run.abandons.store(true, Ordering::Relaxed);
        let broker = &mut deployment.brokers[kill % BROKERS];
        tokio::join!(kill_and_restart(broker, DOWN), async {
            sleep(DOWN / 3).await;
            run.abandons.store(false, Ordering::Relaxed);
        });
        assert!(errors() > before, "calls at a killed broker fail");
        faults.push((from, boottime()));
        let calls = run.calls.load(Ordering::Relaxed);
        if faults.len() >= scaled_count(KILLS, 2) && calls >= scaled_count(CALLS, 100) {
            break;
        }
    }
    let ended = boottime();
    run.stop.store(true, Ordering::Relaxed);
    let stopped = timeout(STOP_LIMIT, join_all(callers)).await;
    for caller in stopped.expect("no caller waits for ever") {
        caller.expect("a caller does not panic");
    }
    let left = timeout(STOP_LIMIT, observer).await.expect("all is free");
    let left = left.expect("the observer does not panic");
    report(&run, &faults, (started_at, ended), left);
}

fn report(
    run: &Run,
    faults: &[(Duration, Duration)],
    (started_at, ended): (Duration, Duration),
    left: Duration,
) {
    let in_fault = |at: Duration| faults.iter().any(|(from, to)| (*from..*to).contains(&at));
    let grants = lock(&run.grants).clone();
    let grants = grants.into_iter().filter(|(at, _)| *at < ended);
    let (in_faults, calm): (Vec<_>, Vec<_>) = grants.partition(|(at, _)| in_fault(*at));
    let answered = lock(&run.answered).clone();
    let answered = answered.into_iter().filter(|at| *at < ended);
    let (answered_in_faults, answered_in_calm): (Vec<_>, Vec<_>) =
        answered.partition(|at| in_fault(*at));
    let fault_time: Duration = faults.iter().map(|(from, to)| *to - *from).sum();
    let calm_locks: usize = calm.iter().map(|(_, locks)| locks).sum();
    let per_second = GrantRate::new(calm_locks, ended - started_at - fault_time);
    let verdict = run.oracle.verdict();
    let longest = *lock(&run.longest);
    let mut outcomes: Vec<_> = lock(&run.outcomes).clone().into_iter().collect();
    outcomes.sort();
    print_figures(&format!(
        "several: callers={CALLERS} brokers={BROKERS} locks={LOCKS} calls={} kills={} seconds={} \
         outcomes={outcomes:?} granted_in_faults={} answered_in_faults={} answered_in_calm={} calm_grants_per_s={per_second} \
         longest_call_ms={} held_after_the_call_ms={} overlaps={} regressions={}",
        run.calls.load(Ordering::Relaxed),
        faults.len(),
        (ended - started_at).as_secs(),
        in_faults.len(),
        answered_in_faults.len(),
        answered_in_calm.len(),
        longest.as_millis(),
        left.as_millis(),
        verdict.overlaps,
        verdict.regressions,
    ));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert!(left <= EXPIRY + SLACK, "held for {left:?} after the call");
    per_second.assert_sufficient();
    assert!(!in_faults.is_empty(), "nothing was granted during faults");
    // Locks of a killed broker's caller block other calls for half of a fault. The calls that wait
    // for these locks receive a response, but no grant.
    assert!(
        answered_in_faults.len() * 4 >= answered_in_calm.len(),
        "less than a fifth of the calls was answered during faults"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_detects_overlaps_without_locks() {
    let oracle = Arc::new(Oracle::new(LOCKS));
    run_without_locks(CALLERS, &oracle, |_| LockKind::Exclusive, BLIND_CHECK).await;
    let verdict = oracle.verdict();
    print_figures(&format!(
        "several without locks: visits={} overlaps={}",
        verdict.uses, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the referee must not be blind");
}
