//! Counts of all locks that a user may list. A background task counts in steps, so that no request
//! waits for a hundred thousand locks, and the store is not occupied for long.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    access::Verb,
    broker::Broker,
    lock::{Filter, LockKey, LockState},
    request::RequestContext,
    store::{Cursor, Listed},
};

/// Maximum number of locks of one count. If there are more, the count reports
/// that it is incomplete.
const LOCKS_MAX: usize = 250_000;
/// Maximum number of users whose counts are kept.
const USERS_MAX: usize = 16;
/// Maximum number of locks of one step.
const STEP_MAX: usize = 1_000;
const HOTTEST: usize = 10;
/// Time that a request waits for a count before it shows an earlier or partial count.
const COUNT_WAIT_MAX: Duration = Duration::from_millis(400);
/// Minimum pause between two counts. The pause is also at least [`PAUSE_TIMES`] times the duration
/// of the last count, so that counting takes at most a twentieth of the time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_TIMES: u32 = 20;
/// Number of locks after which a partial count is published.
const PUBLISH_INTERVAL: usize = 2_000;

/// The result of a count for one user.
#[derive(Debug, Clone)]
pub(super) struct LockCounts {
    /// Number of locks that are held, have waiters, or are in their lock delay.
    pub(super) locks: usize,
    pub(super) held: usize,
    /// Number of waiting calls.
    pub(super) waiting: u64,
    /// Start of the oldest wait that the user may observe, in milliseconds since 1970.
    pub(super) oldest_ms: Option<u64>,
    /// The locks with the longest queues, in descending order.
    pub(super) hottest: Vec<HotLock>,
    /// `None` while the count is running.
    pub(super) ended: Option<CountEnd>,
    began: Instant,
}

/// The end of a count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CountEnd {
    pub(super) at: Instant,
    /// The reason why the count is incomplete; empty if it is complete.
    pub(super) incomplete_reason: String,
}

/// A lock with waiters.
#[derive(Debug, Clone)]
pub(super) struct HotLock {
    pub(super) lock: LockKey,
    pub(super) queue_length: u32,
    pub(super) holders: u32,
    /// Start of the oldest wait in milliseconds since 1970, if the user may observe the lock.
    pub(super) since_ms: Option<u64>,
}

/// Runs counts and keeps their results for all users.
pub(super) struct LockCounter {
    counts: Mutex<HashMap<Arc<str>, Arc<CountTask>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The counts of one user.
#[derive(Debug)]
struct CountTask {
    newest: watch::Sender<Arc<LockCounts>>,
    /// Result of the last count that has ended.
    last: Mutex<Option<Arc<LockCounts>>>,
    is_running: AtomicBool,
}

impl LockCounter {
    pub(super) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            counts: Mutex::default(),
            tasks,
            stop,
        }
    }

    /// Returns the newest count. Waits at most [`COUNT_WAIT_MAX`] for a running count, which
    /// continues in the background.
    pub(super) async fn current(&self, broker: &Broker, user: &RequestContext) -> Arc<LockCounts> {
        let task = self.count_of(&user.caller.name);
        if task.is_due() {
            self.begin(&task, broker, user);
        }
        let mut newest = task.newest.subscribe();
        let end = newest.wait_for(|counts| counts.ended.is_some());
        // After the timeout: the previous count, or else the partial one.
        let _ = timeout(COUNT_WAIT_MAX, end).await;
        let counts = Arc::clone(&task.newest.borrow());
        match counts.ended {
            Some(_) => counts,
            None => task.last.lock().clone().unwrap_or(counts),
        }
    }

    /// Waits until a count has ended that began after this call. The minimum pause applies.
    pub(super) async fn next_fresh(&self, broker: &Broker, user: &RequestContext) {
        let (task, requested_at) = (self.count_of(&user.caller.name), Instant::now());
        let mut newest = task.newest.subscribe();
        loop {
            let (started_at, due) = {
                let counts = newest.borrow_and_update();
                (counts.began, counts.due())
            };
            match due {
                Some(_) if started_at >= requested_at => return,
                Some(due) => {
                    sleep_until(due).await;
                    self.begin(&task, broker, user);
                }
                None => {}
            }
            if newest.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until no count is running.
    pub(super) async fn ended(&self, user: &RequestContext) {
        let mut newest = self.count_of(&user.caller.name).newest.subscribe();
        // A count that is no longer kept has ended as well.
        let _ = newest.wait_for(|counts| counts.ended.is_some()).await;
    }

    fn count_of(&self, user_name: &Arc<str>) -> Arc<CountTask> {
        let mut tasks = self.counts.lock();
        if !tasks.contains_key(user_name) && tasks.len() >= USERS_MAX {
            let oldest = tasks
                .iter()
                .min_by_key(|(_, task)| task.newest.borrow().began);
            let oldest = oldest.map(|(name, _)| Arc::clone(name));
            oldest.map(|name| tasks.remove(&name));
        }
        let task = tasks.entry(Arc::clone(user_name));
        Arc::clone(task.or_default())
    }

    fn begin(&self, task: &Arc<CountTask>, broker: &Broker, user: &RequestContext) {
        if task.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let counts = LockCounts::begun_at(Instant::now());
        task.newest.send_replace(Arc::new(counts.clone()));
        let run = Arc::clone(task).run(counts, broker.clone(), user.clone());
        self.tasks
            .spawn(self.stop.clone().run_until_cancelled_owned(run));
    }
}

impl Default for CountTask {
    /// Returns a count that has already ended, so that the next count is due.
    fn default() -> Self {
        let now = Instant::now();
        let end = CountEnd {
            at: now.checked_sub(PAUSE_MIN).unwrap_or(now),
            incomplete_reason: String::new(),
        };
        let initial = LockCounts {
            ended: Some(end),
            ..LockCounts::begun_at(now.checked_sub(PAUSE_MIN).unwrap_or(now))
        };
        Self {
            newest: watch::Sender::new(Arc::new(initial)),
            last: Mutex::default(),
            is_running: AtomicBool::new(false),
        }
    }
}

impl CountTask {
    fn is_due(&self) -> bool {
        let due = self.newest.borrow().due();
        due.is_some_and(|due| due <= Instant::now())
    }

    async fn run(self: Arc<Self>, mut counts: LockCounts, broker: Broker, user: RequestContext) {
        let result = self.add_all(&mut counts, &broker, &user).await;
        counts.ended = Some(CountEnd {
            at: Instant::now(),
            incomplete_reason: result.err().unwrap_or_default(),
        });
        let counts = Arc::new(counts);
        *self.last.lock() = Some(Arc::clone(&counts));
        self.is_running.store(false, Ordering::Release);
        self.newest.send_replace(counts);
    }

    /// Counts all locks. Returns the reason if the count is incomplete.
    async fn add_all(
        &self,
        counts: &mut LockCounts,
        broker: &Broker,
        user: &RequestContext,
    ) -> Result<(), String> {
        let (filter, mut cursor): (_, Option<Cursor>) = (Filter::default(), None);
        // A scan may return a key twice.
        let (hasher, mut seen) = (RandomState::new(), HashSet::new());
        let mut published_count = 0;
        loop {
            let listed = broker.list(&filter, cursor.as_ref(), STEP_MAX).await;
            match listed.map_err(|error| error.to_string())? {
                Listed::Step { locks, next } => {
                    for (lock, state) in locks {
                        if user.can(Verb::List, &lock) && seen.insert(hasher.hash_one(&lock)) {
                            counts.add(lock, &state, user);
                        }
                    }
                    cursor = next;
                }
                Listed::Stale => return Err("the store was replaced during the count".to_owned()),
                Listed::Missing { server, reason } => {
                    return Err(format!("{server} does not answer: {reason}"));
                }
            }
            if cursor.is_none() {
                return Ok(());
            }
            if seen.len() >= LOCKS_MAX {
                return Err(format!("there are more than {LOCKS_MAX} locks"));
            }
            if seen.len() >= published_count + PUBLISH_INTERVAL {
                published_count = seen.len();
                self.newest.send_replace(Arc::new(counts.clone()));
            }
            // The memory store returns without yielding.
            yield_now().await;
        }
    }
}

impl LockCounts {
    fn begun_at(started_at: Instant) -> Self {
        Self {
            locks: 0,
            held: 0,
            waiting: 0,
            oldest_ms: None,
            hottest: Vec::new(),
            ended: None,
            began: started_at,
        }
    }

    /// Returns the duration of the count so far.
    pub(super) fn elapsed(&self) -> Duration {
        let ended_at = self.ended.as_ref().map(|end| end.at);
        ended_at.unwrap_or_else(Instant::now) - self.began
    }

    /// Returns the time from which the next count may begin; `None` while this count is running.
    fn due(&self) -> Option<Instant> {
        let pause = (self.elapsed() * PAUSE_TIMES).max(PAUSE_MIN);
        Some(self.ended.as_ref()?.at + pause)
    }

    fn add(&mut self, lock: LockKey, state: &LockState, user: &RequestContext) {
        self.locks += 1;
        self.held += usize::from(state.holder_count > 0);
        self.waiting += u64::from(state.queue_length);
        if state.queue_length == 0 {
            return;
        }
        let may_see = user.can(Verb::Observe, &lock);
        let since_ms = state.waiters.iter().map(|waiter| waiter.since_ms).min();
        let since_ms = since_ms.filter(|_| may_see);
        self.oldest_ms = match (self.oldest_ms, since_ms) {
            (Some(oldest), Some(since)) => Some(oldest.min(since)),
            (oldest, since) => oldest.or(since),
        };
        let sort_key = |lock: &HotLock| Reverse(lock.queue_length);
        let hot_lock = HotLock {
            lock,
            queue_length: state.queue_length,
            holders: state.holder_count,
            since_ms,
        };
        let index = self
            .hottest
            .partition_point(|other_lock| sort_key(other_lock) <= sort_key(&hot_lock));
        if index < HOTTEST {
            self.hottest.insert(index, hot_lock);
            self.hottest.truncate(HOTTEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{inspection::InspectionService, store::stub::StubStore};

    #[tokio::test(start_paused = true)]
    async fn a_count_stops_at_its_maximum_and_reports_it() {
        let store = StubStore::listing(STEP_MAX, Duration::ZERO);
        let broker = Broker::unlimited(Arc::new(store));
        let service = InspectionService::without_authentication(broker.clone());
        let user = service
            .authenticate(None, None)
            .expect("authentication is not required");
        let (task, mut counts) = (CountTask::default(), LockCounts::begun_at(Instant::now()));
        let result = task.add_all(&mut counts, &broker, &user).await;
        let reason = result.expect_err("there are more");
        assert_eq!(counts.locks, LOCKS_MAX);
        assert_eq!(reason, format!("there are more than {LOCKS_MAX} locks"));
    }

    #[tokio::test]
    async fn cached_counts_are_bounded() {
        let counter = LockCounter::new(TaskTracker::new(), CancellationToken::new());
        let names = (0..=USERS_MAX).map(|number| Arc::from(number.to_string()));
        let tasks: Vec<_> = names.map(|name| counter.count_of(&name)).collect();
        assert_eq!(counter.counts.lock().len(), USERS_MAX);
        let newest = counter.count_of(&USERS_MAX.to_string().into());
        assert!(tasks.last().is_some_and(|last| Arc::ptr_eq(last, &newest)));
    }
}
