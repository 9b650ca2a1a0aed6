//! Counts all locks that a visitor may list, in steps and in the background, so that no request waits for the last
//! of a hundred thousand and no store is busy with it for long.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    access::Verb,
    broker::Broker,
    grpc::Visitor,
    lock::{Filter, LockKey, LockState},
    store::{Cursor, Listed},
};

/// Locks of one count; of more it says that there are more.
const LOCKS_MOST: usize = 250_000;
/// Visitors whose counts are kept.
const VISITORS_MOST: usize = 16;
/// Locks that one step of the store may give.
const STEP_MOST: usize = 1_000;
const HOTTEST: usize = 10;
/// How long a request waits for a count before it shows what there is.
const WAITS: Duration = Duration::from_millis(400);
/// Until the next count at least, and in times of what the last one took: a twentieth of the time at most.
const PAUSE_LEAST: Duration = Duration::from_millis(500);
const PAUSE_TIMES: u32 = 20;
/// How many locks are counted between two looks at the half-done count.
const TELL_EVERY: usize = 2_000;

/// What was counted, for one visitor.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// Locks that are held, waited for or closed.
    pub(super) locks: usize,
    pub(super) held: usize,
    /// Calls that wait.
    pub(super) waiting: u64,
    /// Since when the first of those waits whom the visitor may see.
    pub(super) oldest_ms: Option<u64>,
    /// The longest lines, the longest first.
    pub(super) hottest: Vec<Hot>,
    /// `None`: the count goes on.
    pub(super) ended: Option<End>,
    began: Instant,
}

/// How a count ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) at: Instant,
    /// Why it is not whole; empty: it is.
    pub(super) trouble: String,
}

/// A lock with a line.
#[derive(Debug, Clone)]
pub(super) struct Hot {
    pub(super) lock: LockKey,
    pub(super) queue_length: u32,
    pub(super) holders: u32,
    /// Since when the first waits, where the visitor may see it.
    pub(super) since_ms: Option<u64>,
}

/// All counts.
pub(super) struct Census {
    counts: Mutex<HashMap<Arc<str>, Arc<Count>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// That of one visitor.
#[derive(Debug)]
struct Count {
    newest: watch::Sender<Arc<Tally>>,
    /// The last one that ended.
    last: Mutex<Option<Arc<Tally>>>,
    is_running: AtomicBool,
}

impl Census {
    pub(super) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            counts: Mutex::default(),
            tasks,
            stop,
        }
    }

    /// The newest count, for which a request waits a moment; the count goes on without it.
    pub(super) async fn look(&self, broker: &Broker, visitor: &Visitor) -> Arc<Tally> {
        let count = self.count_of(visitor.name());
        if count.is_due() {
            self.begin(&count, broker, visitor);
        }
        let mut newest = count.newest.subscribe();
        let ended = newest.wait_for(|tally| tally.ended.is_some());
        // Late: half of it, or the one before.
        let _ = timeout(WAITS, ended).await;
        let tally = Arc::clone(&count.newest.borrow());
        match tally.ended {
            Some(_) => tally,
            None => locked(&count.last).clone().unwrap_or(tally),
        }
    }

    /// Returns when there is a count that was begun after this call, which takes as long as the pace asks.
    pub(super) async fn anew(&self, broker: &Broker, visitor: &Visitor) {
        let (count, asked) = (self.count_of(visitor.name()), Instant::now());
        let mut newest = count.newest.subscribe();
        loop {
            let (began, due) = {
                let tally = newest.borrow_and_update();
                (tally.began, tally.due())
            };
            match due {
                Some(_) if began >= asked => return,
                Some(due) => {
                    sleep_until(due).await;
                    self.begin(&count, broker, visitor);
                }
                None => {}
            }
            if newest.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns when no count is under way.
    pub(super) async fn ended(&self, visitor: &Visitor) {
        let mut newest = self.count_of(visitor.name()).newest.subscribe();
        // One that nobody keeps any more has ended, too.
        let _ = newest.wait_for(|tally| tally.ended.is_some()).await;
    }

    fn count_of(&self, visitor: &Arc<str>) -> Arc<Count> {
        let mut counts = locked(&self.counts);
        if !counts.contains_key(visitor) && counts.len() >= VISITORS_MOST {
            let oldest = counts
                .iter()
                .min_by_key(|(_, count)| count.newest.borrow().began);
            let oldest = oldest.map(|(name, _)| Arc::clone(name));
            oldest.map(|name| counts.remove(&name));
        }
        let count = counts.entry(Arc::clone(visitor));
        Arc::clone(count.or_default())
    }

    fn begin(&self, count: &Arc<Count>, broker: &Broker, visitor: &Visitor) {
        if count.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let begun = Tally::begun_at(Instant::now());
        count.newest.send_replace(Arc::new(begun.clone()));
        let run = Arc::clone(count).run(begun, broker.clone(), visitor.clone());
        self.tasks
            .spawn(self.stop.clone().run_until_cancelled_owned(run));
    }
}

impl Default for Count {
    /// Ended before it began: the next one is due.
    fn default() -> Self {
        let now = Instant::now();
        let end = End {
            at: now.checked_sub(PAUSE_LEAST).unwrap_or(now),
            trouble: String::new(),
        };
        let none = Tally {
            ended: Some(end),
            ..Tally::begun_at(now.checked_sub(PAUSE_LEAST).unwrap_or(now))
        };
        Self {
            newest: watch::Sender::new(Arc::new(none)),
            last: Mutex::default(),
            is_running: AtomicBool::new(false),
        }
    }
}

impl Count {
    fn is_due(&self) -> bool {
        let due = self.newest.borrow().due();
        due.is_some_and(|due| due <= Instant::now())
    }

    async fn run(self: Arc<Self>, mut tally: Tally, broker: Broker, visitor: Visitor) {
        let trouble = self.add_all(&mut tally, &broker, &visitor).await;
        tally.ended = Some(End {
            at: Instant::now(),
            trouble: trouble.err().unwrap_or_default(),
        });
        let tally = Arc::new(tally);
        *locked(&self.last) = Some(Arc::clone(&tally));
        self.is_running.store(false, Ordering::Release);
        self.newest.send_replace(tally);
    }

    /// Adds what there is; why not all.
    async fn add_all(
        &self,
        tally: &mut Tally,
        broker: &Broker,
        visitor: &Visitor,
    ) -> Result<(), String> {
        let (filter, mut next): (_, Option<Cursor>) = (Filter::default(), None);
        // A scan may give a key twice.
        let (hashes, mut seen) = (RandomState::new(), HashSet::new());
        let mut told = 0;
        loop {
            let listed = broker.list(&filter, next.as_ref(), STEP_MOST).await;
            match listed.map_err(|error| error.to_string())? {
                Listed::Step { locks, next: then } => {
                    for (lock, state) in locks {
                        if visitor.may_list(&lock) && seen.insert(hashes.hash_one(&lock)) {
                            tally.add(lock, &state, visitor);
                        }
                    }
                    next = then;
                }
                Listed::Stale => return Err("the store was replaced meanwhile".to_owned()),
                Listed::Missing { server } => return Err(format!("{server} does not answer")),
            }
            if next.is_none() {
                return Ok(());
            }
            if seen.len() >= LOCKS_MOST {
                return Err(format!("there are more than {LOCKS_MOST} locks"));
            }
            if seen.len() >= told + TELL_EVERY {
                told = seen.len();
                self.newest.send_replace(Arc::new(tally.clone()));
            }
            // The embedded store answers without a pause.
            yield_now().await;
        }
    }
}

impl Tally {
    fn begun_at(began: Instant) -> Self {
        Self {
            locks: 0,
            held: 0,
            waiting: 0,
            oldest_ms: None,
            hottest: Vec::new(),
            ended: None,
            began,
        }
    }

    /// How long it took, or takes already.
    pub(super) fn took(&self) -> Duration {
        let ended = self.ended.as_ref().map(|end| end.at);
        ended.unwrap_or_else(Instant::now) - self.began
    }

    /// When the next one may begin, once this one has ended.
    fn due(&self) -> Option<Instant> {
        let pause = (self.took() * PAUSE_TIMES).max(PAUSE_LEAST);
        Some(self.ended.as_ref()?.at + pause)
    }

    fn add(&mut self, lock: LockKey, state: &LockState, visitor: &Visitor) {
        self.locks += 1;
        self.held += usize::from(state.holder_count > 0);
        self.waiting += u64::from(state.queue_length);
        if state.queue_length == 0 {
            return;
        }
        let may_see = visitor.may(Verb::Observe, &lock);
        let since_ms = state.waiters.iter().map(|waits| waits.since_ms).min();
        let since_ms = since_ms.filter(|_| may_see);
        self.oldest_ms = match (self.oldest_ms, since_ms) {
            (Some(oldest), Some(since)) => Some(oldest.min(since)),
            (oldest, since) => oldest.or(since),
        };
        let rank = |hot: &Hot| Reverse(hot.queue_length);
        let hot = Hot {
            lock,
            queue_length: state.queue_length,
            holders: state.holder_count,
            since_ms,
        };
        let place = self
            .hottest
            .partition_point(|other| rank(other) <= rank(&hot));
        if place < HOTTEST {
            self.hottest.insert(place, hot);
            self.hottest.truncate(HOTTEST);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{grpc::Desk, store::stub::Stub};

    #[tokio::test(start_paused = true)]
    async fn a_count_ends_after_so_many_locks_and_says_so() {
        let store = Stub::listing(STEP_MOST, Duration::ZERO);
        let broker = Broker::alone(Arc::new(store));
        let desk = Desk::alone(broker.clone());
        let visitor = desk.admit(None, None).expect("nobody is asked");
        let (count, mut tally) = (Count::default(), Tally::begun_at(Instant::now()));
        let counted = count.add_all(&mut tally, &broker, &visitor);
        let trouble = counted.await.expect_err("there are more");
        assert_eq!(tally.locks, LOCKS_MOST);
        assert_eq!(trouble, format!("there are more than {LOCKS_MOST} locks"));
    }

    #[tokio::test]
    async fn counts_of_so_many_visitors_are_kept() {
        let census = Census::new(TaskTracker::new(), CancellationToken::new());
        let names = (0..=VISITORS_MOST).map(|number| Arc::from(number.to_string()));
        let counts: Vec<_> = names.map(|name| census.count_of(&name)).collect();
        assert_eq!(locked(&census.counts).len(), VISITORS_MOST);
        let newest = census.count_of(&VISITORS_MOST.to_string().into());
        assert!(counts.last().is_some_and(|last| Arc::ptr_eq(last, &newest)));
    }
}
