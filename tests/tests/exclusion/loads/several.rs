//! AcquireAll by many callers on a real Redis, in calm and under kills: nobody waits in a circle, and
//! nothing is left of a call that is over.

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
    client::{AcquireCall, Client, Held},
    clock::boottime,
    deployment::Deployment,
    faults::kill_and_restart,
    load::{Kind, lock_name, run_without_locks},
    scale::{count, figures},
    status::reason,
    witness::{Share, Visit, Witness},
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
/// Far longer than any wait that is no circle.
const CALM_TTL: Duration = Duration::from_secs(20);
/// The store's expiry for that ttl: 1.2 times and 250 ms more.
const EXPIRY: Duration = Duration::from_millis(1_450);
/// What a look takes, and what passes between the end of a call at its caller and at its broker.
const SLACK: Duration = Duration::from_millis(300);
const WORK: Duration = Duration::from_millis(1);
/// What the dead broker's calls held stands in the way for half of it.
const DOWN: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_millis(1_500);
const ABANDONED_ONE_IN: u32 = 10;
const ABANDONED_WITHIN_MS: u64 = 20;
const STOP_LIMIT: Duration = Duration::from_secs(60);
const BLIND_CHECK: Duration = Duration::from_secs(1);

/// What all callers and the observer know.
struct Run {
    client: Client,
    ttl: Duration,
    /// Some callers are gone before their answer, with a broker and within this part of its absence:
    /// their locks are free again when it is over.
    abandons: AtomicBool,
    /// Callers stop by themselves after so many calls.
    most: usize,
    witness: Witness,
    calls: AtomicUsize,
    /// When each call ended that should hold nothing since, by the name of its owner.
    over: Mutex<HashMap<String, Duration>>,
    /// When each grant was made, and of how many locks.
    grants: Mutex<Vec<(Duration, usize)>>,
    /// When each call was answered.
    answered: Mutex<Vec<Duration>>,
    outcomes: Mutex<HashMap<String, usize>>,
    longest: Mutex<Duration>,
    /// The next caller that is granted its locks dies with them.
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
            witness: Witness::new(LOCKS),
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

    fn is_over(&self, owner: &str) {
        lock(&self.over).insert(owner.to_owned(), boottime());
    }

    async fn caller(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            if number >= self.most {
                return;
            }
            let owner = format!("call-{number}");
            let client = self.client.named(&owner, number);
            let locks = some_locks();
            let names: Vec<_> = locks.iter().map(|lock| lock_name(*lock)).collect();
            let call = AcquireCall::new("", self.ttl, self.ttl);
            let begun = boottime();
            let is_abandoned = self.abandons.load(Ordering::Relaxed)
                && rand::thread_rng().gen_ratio(1, ABANDONED_ONE_IN);
            if is_abandoned {
                let within = rand::thread_rng().gen_range(0..ABANDONED_WITHIN_MS);
                let attempt = client.acquire_all_at(number, &names, &call);
                let _ = timeout(Duration::from_millis(within), attempt).await;
                self.is_over(&owner);
                self.count("abandoned");
                continue;
            }
            let held = client.acquire_all(&names, &call).await;
            self.was_answered(begun);
            match held {
                Ok(held) => self.visit(&client, &locks, &owner, &held).await,
                Err(status) => {
                    self.is_over(&owner);
                    self.count(&format!("{:?}", reason(&status)));
                }
            }
        }
    }

    async fn visit(&self, client: &Client, locks: &[usize], owner: &str, held: &Held) {
        lock(&self.grants).push((boottime(), locks.len()));
        self.count("granted");
        if held.trusted() {
            let entered = boottime();
            sleep(WORK).await;
            let ended = boottime().min(held.trusted_until());
            for (&lock, grant) in locks.iter().zip(&held.lease.grants) {
                self.witness.record(Visit {
                    lock,
                    share: Share::ALL,
                    token: grant.fencing_token,
                    entered,
                    ended,
                });
            }
        }
        if self.one_dies.swap(false, Ordering::Relaxed) {
            self.count("died");
        } else {
            let _ = client.release(held).await;
        }
        self.is_over(owner);
    }

    fn was_answered(&self, begun: Duration) {
        let answered = boottime();
        lock(&self.answered).push(answered);
        let time = answered - begun;
        let mut longest = lock(&self.longest);
        *longest = time.max(*longest);
    }

    fn count(&self, outcome: &str) {
        *lock(&self.outcomes).entry(outcome.to_owned()).or_default() += 1;
    }

    /// Looks at all locks again and again: the longest that somebody held one after its call was over.
    async fn observe(&self) -> Duration {
        let mut longest = Duration::ZERO;
        let client = self.client.named("observer", 0);
        while !self.stop.load(Ordering::Relaxed) {
            longest = longest.max(self.look(&client).await.0);
            sleep(Duration::from_millis(10)).await;
        }
        loop {
            let (left, held) = self.look(&client).await;
            longest = longest.max(left);
            if held == 0 {
                return longest;
            }
        }
    }

    async fn look(&self, client: &Client) -> (Duration, usize) {
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

/// Two to six of them, in any order.
fn some_locks() -> Vec<usize> {
    let mut rng = rand::thread_rng();
    let mut locks: Vec<_> = (0..LOCKS).collect();
    locks.shuffle(&mut rng);
    locks.truncate(rng.gen_range(2..=6));
    locks
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each call wants its locks in an order of its own; taken in that order, some would wait for each
/// other until their time was over.
#[tokio::test(flavor = "multi_thread")]
async fn t26_nobody_waits_in_a_circle() {
    let deployment = Deployment::start(BROKERS).await;
    let calls = count(CALLS, 100);
    let run = Run::new(&deployment, CALM_TTL, calls);
    for caller in join_all(run.callers()).await {
        caller.expect("a caller does not panic");
    }
    let granted = lock(&run.outcomes).get("granted").copied();
    let (longest, verdict) = (*lock(&run.longest), run.witness.verdict());
    figures(&format!(
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
    let begun = boottime();
    let mut faults = Vec::new();
    let errors = || run.client.counters.transport_errors.load(Ordering::Relaxed);
    for kill in 0.. {
        sleep(CALM).await;
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
        if faults.len() >= count(KILLS, 2) && calls >= count(CALLS, 100) {
            break;
        }
    }
    let ended = boottime();
    run.stop.store(true, Ordering::Relaxed);
    let stopped = timeout(STOP_LIMIT, join_all(callers)).await;
    for caller in stopped.expect("nobody waits for ever") {
        caller.expect("a caller does not panic");
    }
    let left = timeout(STOP_LIMIT, observer).await.expect("all is free");
    let left = left.expect("the observer does not panic");
    report(&run, &faults, (begun, ended), left);
}

fn report(
    run: &Run,
    faults: &[(Duration, Duration)],
    (begun, ended): (Duration, Duration),
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
    let calm_ms = usize::try_from((ended - begun - fault_time).as_millis()).expect("a short run");
    let per_second = calm_locks * 1_000 / calm_ms;
    let verdict = run.witness.verdict();
    let longest = *lock(&run.longest);
    let mut outcomes: Vec<_> = lock(&run.outcomes).clone().into_iter().collect();
    outcomes.sort();
    figures(&format!(
        "several: callers={CALLERS} brokers={BROKERS} locks={LOCKS} calls={} kills={} seconds={} \
         outcomes={outcomes:?} granted_in_faults={} answered_in_faults={} answered_in_calm={} calm_grants_per_s={per_second} \
         longest_call_ms={} held_after_the_call_ms={} overlaps={} regressions={}",
        run.calls.load(Ordering::Relaxed),
        faults.len(),
        (ended - begun).as_secs(),
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
    assert!(per_second >= 100, "too little happened: {per_second}/s");
    assert!(!in_faults.is_empty(), "nothing was granted during faults");
    // What a dead broker's caller held stands in the way for half of a fault: the calls that wait for it are
    // answered, but not granted.
    assert!(
        answered_in_faults.len() * 4 >= answered_in_calm.len(),
        "less than a fifth of the calls was answered during faults"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_referee_sees_overlaps_without_locks() {
    let witness = Arc::new(Witness::new(LOCKS));
    run_without_locks(CALLERS, &witness, |_| Kind::Exclusive, BLIND_CHECK).await;
    let verdict = witness.verdict();
    figures(&format!(
        "several without locks: visits={} overlaps={}",
        verdict.visits, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the referee must not be blind");
}
