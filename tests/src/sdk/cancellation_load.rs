//! Random calls of the Rust client over connections that are cut. Each call is dropped at a random
//! moment.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold::{Client, Error, Guard, Held, Lock, ReleaseError, RunError};
use rand::{Rng, seq::index::sample};
use tokio::{runtime::Builder, sync::oneshot, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::sdk::{
    cancellation_point::CancellationPoint,
    hold_log::{HoldLog, lock_name},
    proxied_client::ProxiedClient,
};

/// TTL of all leases. Its expiry in the store (6.25 s) exceeds the 6 s for which a request of a
/// broken stream keeps its queue position.
pub const TTL: Duration = Duration::from_secs(5);
/// Number of locks with contention.
pub const CONTENDED: usize = 12;
/// Number of locks with and without contention.
pub const LOCKS: usize = CONTENDED + UNCONTENDED;
/// Number of locks that another client holds during the whole run.
pub const HELD: usize = 2;

const UNCONTENDED: usize = 200;
const CLIENTS: usize = 4;
const WAIT: Duration = Duration::from_secs(10);
const WAIT_UNDER: Duration = Duration::from_millis(100);
const WORK_US: u64 = 2_000;
const CUT_INTERVAL_MS: Range<u64> = 200..1_000;

/// Counts of the outcomes of futures.
#[derive(Debug, Default)]
pub struct OutcomeCounts {
    /// Futures that were dropped before they were ready.
    pub cancelled: AtomicUsize,
    /// Futures that completed.
    pub completed: AtomicUsize,
    /// Completed calls that found the lock held.
    pub contended: AtomicUsize,
    /// Completed calls that failed because no broker was available.
    pub unavailable: AtomicUsize,
    /// Calls and releases that failed because the lease was lost.
    pub lost: AtomicUsize,
}

impl OutcomeCounts {
    #[must_use]
    pub fn value_of(count: &AtomicUsize) -> usize {
        count.load(Ordering::SeqCst)
    }

    fn increment(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the output of a future. `None` is a dropped future.
    fn count_output<T>(&self, done: Option<T>) -> Option<T> {
        let count = if done.is_some() {
            &self.completed
        } else {
            &self.cancelled
        };
        Self::increment(count);
        done
    }

    fn count_guard(&self, done: Option<Result<Guard, Error>>) -> Option<Guard> {
        let done = self.count_output(done)?;
        done.inspect_err(|error| self.count_error(error)).ok()
    }

    /// Counts an error, and asserts that it can be caused by a cut connection.
    fn count_error(&self, error: &Error) {
        if matches!(error, Error::WaitTimeout(_) | Error::Held(_)) {
            Self::increment(&self.contended);
        } else if matches!(error, Error::Unavailable(_)) {
            Self::increment(&self.unavailable);
        } else {
            assert!(matches!(error, Error::LeaseLost(_)), "{error:?}");
            Self::increment(&self.lost);
        }
    }

    fn count_release_error(&self, error: &ReleaseError) {
        assert!(!matches!(error, ReleaseError::Refused(_)), "{error:?}");
        Self::increment(&self.lost);
    }
}

/// Clients of the calls, with the record of their guards.
#[derive(Debug)]
pub struct CancellationLoad {
    /// Record of every guard.
    pub hold_log: HoldLog,
    pub outcomes: OutcomeCounts,
    clients: Vec<ProxiedClient>,
}

/// Returns the name of a lock that another client holds.
#[must_use]
pub fn held_lock_name(lock: usize) -> String {
    format!("held-{lock}")
}

/// Sleeps for a random time of at most `WORK_US`.
pub async fn work() {
    let time = Duration::from_micros(rand::thread_rng().gen_range(0..WORK_US));
    sleep(time).await;
}

impl CancellationLoad {
    /// Starts clients of these brokers.
    pub async fn start(brokers: &[SocketAddr]) -> Self {
        let mut fixtures = Vec::new();
        for index in 0..CLIENTS {
            fixtures.push(ProxiedClient::start(&format!("site-{index}"), brokers, index % 2).await);
        }
        Self {
            hold_log: HoldLog::new(LOCKS),
            outcomes: OutcomeCounts::default(),
            clients: fixtures,
        }
    }

    /// Cuts connections until stopped and returns the number of cut connections.
    pub async fn cut_connections(self: Arc<Self>, stop: CancellationToken) -> usize {
        let mut cut = 0;
        loop {
            let pause = rand::thread_rng().gen_range(CUT_INTERVAL_MS);
            tokio::select! {
                () = sleep(Duration::from_millis(pause)) => {}
                () = stop.cancelled() => return cut,
            }
            let fixture = rand::thread_rng().gen_range(0..CLIENTS);
            cut += self.clients[fixture].close_connections().await;
        }
    }

    /// Makes one random call, and uses and releases its guard.
    pub async fn make_random_call(self: &Arc<Self>) {
        let kind = rand::thread_rng().gen_range(0..12);
        match kind {
            0 => self.wait_for_held_lock().await,
            1 => self.try_acquire().await,
            2 | 3 => self.run_closure().await,
            4 => self.call_on_dropped_runtime().await,
            _ => self.acquire().await,
        }
    }

    fn random_client(&self) -> &Client {
        &self.clients[rand::thread_rng().gen_range(0..CLIENTS)].client
    }

    /// Creates a random call for one lock or several locks.
    fn random_call(&self) -> (Lock, Vec<usize>) {
        let mut rng = rand::thread_rng();
        let (client, free) = (
            self.random_client(),
            CONTENDED + rng.gen_range(0..UNCONTENDED),
        );
        let locks = match rng.gen_range(0..4) {
            0 => vec![free],
            1 => {
                let some = rng.gen_range(1..=2);
                let contended = sample(&mut rng, CONTENDED, some).into_iter();
                contended.chain([free]).collect()
            }
            _ => vec![rng.gen_range(0..CONTENDED)],
        };
        let call = match locks.as_slice() {
            [one] => client.lock(lock_name(*one)),
            several => client.lock_all(several.iter().map(|lock| lock_name(*lock))),
        };
        let call = call.ttl(TTL).wait(WAIT);
        // Updates of the queue position wake a call more often.
        let call = if rng.gen_bool(0.5) {
            call.on_queue(|_| {})
        } else {
            call
        };
        (call, locks)
    }

    async fn acquire(&self) {
        let (call, locks) = self.random_call();
        let taken = CancellationPoint::random().apply(call.acquire()).await;
        let Some(guard) = self.outcomes.count_guard(taken) else {
            return;
        };
        let hold = self.hold_log.record_acquired(&guard, &locks);
        work().await;
        if rand::thread_rng().gen_bool(0.3) {
            self.add_or_reenter(&guard, &locks).await;
        }
        drop(hold);
        self.end_guard(guard).await;
    }

    /// Adds a lock to the lease, or enters its first lock again.
    async fn add_or_reenter(&self, guard: &Held, locks: &[usize]) {
        let other = CONTENDED + rand::thread_rng().gen_range(0..UNCONTENDED);
        let is_entry = rand::thread_rng().gen_bool(0.3) || locks.contains(&other);
        let lock = if is_entry { locks[0] } else { other };
        // Any client works, because the call is sent on the stream of the lease.
        let call = self.random_client().lock(lock_name(lock)).under(guard);
        let added = CancellationPoint::random()
            .apply(call.wait(WAIT_UNDER).acquire())
            .await;
        let Some(added) = self.outcomes.count_guard(added) else {
            return;
        };
        assert_eq!(added.lease_id(), guard.lease_id());
        if is_entry {
            let token = guard.fencing_token_of(lock_name(lock));
            assert_eq!(Some(added.fencing_token()), token, "entered, not taken");
            work().await;
        } else {
            let hold = self.hold_log.record_added(&added, &[lock]);
            work().await;
            drop(hold);
        }
        self.end_guard(added).await;
    }

    async fn end_guard(&self, guard: Guard) {
        let kind = rand::thread_rng().gen_range(0..4);
        match kind {
            0 => drop(guard),
            // The guard is dropped outside of any runtime.
            1 => drop(thread::spawn(move || drop(guard))),
            _ => {
                let released = CancellationPoint::random().apply(guard.release()).await;
                if let Some(Err(error)) = self.outcomes.count_output(released) {
                    self.outcomes.count_release_error(&error);
                }
            }
        }
    }

    async fn try_acquire(&self) {
        let (call, locks) = self.random_call();
        let tried = call.attempts(3, Duration::from_millis(2)).try_acquire();
        let tried = self
            .outcomes
            .count_output(CancellationPoint::random().apply(tried).await);
        match tried {
            Some(Ok(Some(guard))) => {
                let hold = self.hold_log.record_acquired(&guard, &locks);
                work().await;
                drop(hold);
                self.end_guard(guard).await;
            }
            Some(Err(error)) => self.outcomes.count_error(&error),
            Some(Ok(None)) | None => {}
        }
    }

    async fn run_closure(&self) {
        let (call, locks) = self.random_call();
        let done = call.run(|held| async move {
            let hold = self.hold_log.record_acquired(&held, &locks);
            work().await;
            drop(hold);
        });
        let Some(Err(error)) = self
            .outcomes
            .count_output(CancellationPoint::random().apply(done).await)
        else {
            return;
        };
        if let RunError::Acquire(error) = &error {
            self.outcomes.count_error(error);
        } else if let RunError::Release(error) = &error {
            self.outcomes.count_release_error(error);
        } else {
            OutcomeCounts::increment(&self.outcomes.lost);
        }
    }

    /// Waits for a lock that is never free.
    async fn wait_for_held_lock(&self) {
        let lock = held_lock_name(rand::thread_rng().gen_range(0..HELD));
        let call = self
            .random_client()
            .lock(lock)
            .ttl(TTL)
            .wait(WAIT)
            .on_queue(|_| {});
        let got = self
            .outcomes
            .count_guard(CancellationPoint::random().apply(call.acquire()).await);
        assert!(got.is_none(), "two have it");
    }

    /// Makes calls that are dropped with their caller's runtime, and drops a guard after the end of
    /// its runtime.
    async fn call_on_dropped_runtime(self: &Arc<Self>) {
        let (done, is_done) = oneshot::channel();
        let scene = Arc::clone(self);
        let caller = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let (call, _) = scene.random_call();
            drop(runtime.spawn(call.acquire()));
            let (call, locks) = scene.random_call();
            let taken = runtime.block_on(CancellationPoint::random().apply(call.acquire()));
            drop(runtime);
            // The spawned call was dropped with the runtime.
            OutcomeCounts::increment(&scene.outcomes.cancelled);
            if let Some(guard) = scene.outcomes.count_guard(taken) {
                drop(scene.hold_log.record_acquired(&guard, &locks));
                drop(guard);
            }
            drop(scene);
            done.send(()).expect("it is waited for");
        });
        is_done.await.expect("no panic");
        caller.join().expect("no panic");
    }
}
