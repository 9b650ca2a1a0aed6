//! What each caller, each namespace and all together may have at this broker. Other brokers count for
//! themselves: nothing is asked of the store.

mod kept;
mod shares;
mod waits;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

pub use self::shares::{Share, Shares};
use self::{kept::Kept, waits::Waits};
use crate::{
    lock::{AcquireCall, LeaseId, LockError, LockKey, Quota, RequestHash},
    metrics::HeldCount,
    pace::{Pace, Paces},
};

/// Lease streams of one broker.
const STREAMS_MAX: usize = 20_000;
/// Lease streams of one caller at each broker, where callers show who they are.
const STREAMS_PER_CALLER_MAX: usize = 2_000;
/// Watches of one broker.
const WATCHES_MAX: usize = 1_000;
/// Watches of one caller at each broker, where callers show who they are.
const WATCHES_PER_CALLER_MAX: usize = 16;

/// How much there may be at once. A lock counts while it is held or waited for, by each lease of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Locks of a caller, where callers show who they are.
    pub locks_per_caller: u32,
    /// Locks of a namespace.
    pub locks_per_namespace: u32,
    /// All locks.
    pub locks: u32,
    /// Acquires of a caller, where callers show who they are; twice as many come in a burst.
    pub acquires_per_second: u32,
    /// Acquires that the store was asked for and has not answered.
    pub acquires_at_once: u32,
}

#[cfg(test)]
impl QuotaLimits {
    /// Limits that nobody reaches.
    pub(crate) const AMPLE: Self = Self {
        locks_per_caller: 1_000_000,
        locks_per_namespace: 1_000_000,
        locks: 1_000_000,
        acquires_per_second: 1_000_000,
        acquires_at_once: 1_000_000,
    };
}

/// All counts of a broker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Quotas {
    limits: LimitsInUse,
    counts: Arc<Mutex<Counts>>,
    kept: Arc<Mutex<Kept>>,
    asked: Arc<AtomicU32>,
    streams: Shares,
    watches: Shares,
}

/// Returns the limits that apply now: they can change while the broker runs.
#[derive(Clone)]
struct LimitsInUse(Arc<dyn Fn() -> QuotaLimits + Send + Sync>);

#[derive(Debug, Default)]
struct Counts {
    locks: u32,
    by_caller: HashMap<Arc<str>, u32>,
    by_namespace: HashMap<Box<str>, u32>,
    acquires: Paces<Arc<str>>,
    waits: Waits,
}

/// A lock that is held or waited for, until dropped.
#[derive(Debug)]
pub struct Place {
    counts: Arc<Mutex<Counts>>,
    caller: Arc<str>,
    lock: LockKey,
    /// The call that waits for the lock, until the lock is held.
    waits: Option<RequestHash>,
    /// Since it is held.
    held: Option<HeldCount>,
}

/// An acquire that the store has not answered, until dropped.
#[derive(Debug)]
pub struct Unanswered(Arc<AtomicU32>);

impl Quotas {
    /// Creates quotas without any use. `limits` is called for each acquire, so that changed limits
    /// apply at once.
    pub fn new(limits: impl Fn() -> QuotaLimits + Send + Sync + 'static) -> Self {
        Self {
            limits: LimitsInUse(Arc::new(limits)),
            counts: Arc::default(),
            kept: Arc::default(),
            asked: Arc::default(),
            streams: Shares::new(STREAMS_PER_CALLER_MAX, STREAMS_MAX),
            watches: Shares::new(WATCHES_PER_CALLER_MAX, WATCHES_MAX),
        }
    }

    /// Creates quotas that nobody reaches.
    #[cfg(test)]
    pub(crate) fn ample() -> Self {
        Self::new(|| QuotaLimits::AMPLE)
    }

    /// Places for the locks of a call, all or none. `caller` is empty where nobody shows who calls.
    ///
    /// # Errors
    /// [`LockError::QuotaExceeded`] or [`LockError::Overloaded`].
    pub fn admit(&self, caller: &Arc<str>, call: &AcquireCall) -> Result<Vec<Place>, LockError> {
        let limits = (self.limits.0)();
        if self.asked.load(Ordering::Relaxed) >= limits.acquires_at_once {
            return Err(LockError::Overloaded);
        }
        if !caller.is_empty() {
            let most = limits.acquires_per_second;
            let pace = Pace::per_second(most, most.saturating_mul(2));
            let taken = locked(&self.counts).acquires.take(pace, Arc::clone(caller));
            taken.map_err(|early| Quota::Rate {
                most,
                retry_after_ms: u64::try_from(early.as_millis()).unwrap_or(u64::MAX) + 1,
            })?;
        }
        locked(&self.kept).forget_expired();
        let waits = call.wait_ms > 0 && !caller.is_empty();
        let waits = waits.then(|| call.request_id.hash());
        let places = call.targets.iter().map(|target| {
            let mut counts = locked(&self.counts);
            counts.check(&limits, caller, &target.lock)?;
            if let Some(request) = waits {
                counts.waits.add(caller, &target.lock, request)?;
            }
            drop(counts);
            let mut place = self.place(caller, &target.lock);
            place.waits = waits;
            Ok(place)
        });
        places.collect()
    }

    /// A place for a lock that is held already, whatever the quotas say.
    pub fn place(&self, caller: &Arc<str>, lock: &LockKey) -> Place {
        locked(&self.counts).add(caller, lock);
        Place {
            counts: Arc::clone(&self.counts),
            caller: Arc::clone(caller),
            lock: lock.clone(),
            waits: None,
            held: None,
        }
    }

    /// Places of a lease that is on no stream of this broker, and that ends then unless it is renewed.
    pub fn keep(&self, lease_id: LeaseId, places: Vec<Place>, ends_in: Duration) {
        if !places.is_empty() {
            locked(&self.kept).keep(lease_id, places, ends_in);
        }
    }

    /// A lease that is on no stream was renewed.
    pub fn renewed(&self, lease_id: LeaseId, ends_in: Duration) {
        locked(&self.kept).renewed(lease_id, ends_in);
    }

    /// A lock of a lease that is on no stream was given back.
    pub fn released(&self, lease_id: LeaseId, released: &LockKey) {
        locked(&self.kept).released(lease_id, released);
    }

    /// The lease is on a stream now.
    pub fn on_stream(&self, lease_id: LeaseId) {
        locked(&self.kept).taken(lease_id);
    }

    /// The store holds these locks on until then, for a lease that counts no more.
    pub fn held_on(&self, lease_id: LeaseId, locks: Vec<LockKey>, ends_in: Duration) {
        locked(&self.kept).held_on(lease_id, locks, ends_in);
    }

    /// Locks of leases on no stream whose time was over since this was asked last.
    pub fn run_out(&self) -> Vec<LockKey> {
        locked(&self.kept).run_out()
    }

    /// Takes a place for a lease stream.
    ///
    /// # Errors
    /// [`Quota::Streams`].
    pub fn stream(&self, caller: &Arc<str>) -> Result<Share, Quota> {
        self.streams.take(caller).map_err(Quota::Streams)
    }

    /// Takes a place for a watch.
    ///
    /// # Errors
    /// [`Quota::Watches`].
    pub fn watch(&self, caller: &Arc<str>) -> Result<Share, Quota> {
        self.watches.take(caller).map_err(Quota::Watches)
    }

    /// The store is asked for a lock.
    pub fn ask(&self) -> Unanswered {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Unanswered(Arc::clone(&self.asked))
    }
}

impl Place {
    /// Of this lock.
    pub fn lock(&self) -> &LockKey {
        &self.lock
    }

    /// The lock is held from now on.
    pub fn held(&mut self, held: Option<HeldCount>) {
        self.held = held;
        if let Some(request) = self.waits.take() {
            let mut counts = locked(&self.counts);
            counts.waits.remove(&self.caller, &self.lock, request);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = locked(&self.counts);
        counts.remove(&self.caller, &self.lock);
        if let Some(request) = self.waits {
            counts.waits.remove(&self.caller, &self.lock, request);
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counts {
    fn check(&self, limits: &QuotaLimits, caller: &str, lock: &LockKey) -> Result<(), Quota> {
        let mine = self.by_caller.get(caller).copied().unwrap_or(0);
        let here = self.by_namespace.get(lock.namespace()).copied();
        if !caller.is_empty() && mine >= limits.locks_per_caller {
            return Err(Quota::Caller(mine));
        }
        match here.filter(|here| *here >= limits.locks_per_namespace) {
            Some(here) => Err(Quota::Namespace(here)),
            None if self.locks >= limits.locks => Err(Quota::Broker(self.locks)),
            None => Ok(()),
        }
    }

    fn add(&mut self, caller: &Arc<str>, lock: &LockKey) {
        self.locks += 1;
        *self.by_caller.entry(Arc::clone(caller)).or_default() += 1;
        match self.by_namespace.get_mut(lock.namespace()) {
            Some(here) => *here += 1,
            None => drop(self.by_namespace.insert(lock.namespace().into(), 1)),
        }
    }

    fn remove(&mut self, caller: &str, lock: &LockKey) {
        self.locks -= 1;
        if let Some(mine) = self.by_caller.get_mut(caller) {
            *mine -= 1;
            if *mine == 0 {
                self.by_caller.remove(caller);
            }
        }
        if let Some(here) = self.by_namespace.get_mut(lock.namespace()) {
            *here -= 1;
            if *here == 0 {
                self.by_namespace.remove(lock.namespace());
            }
        }
    }
}

impl fmt::Debug for LimitsInUse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().fmt(formatter)
    }
}

impl From<Quota> for LockError {
    fn from(quota: Quota) -> Self {
        Self::QuotaExceeded(quota)
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Bound;

    #[test]
    fn a_broker_has_twenty_thousand_lease_streams() {
        let (quotas, unnamed) = (Quotas::ample(), Arc::default());
        let mut streams: Vec<_> = (0..STREAMS_MAX).map(|_| quotas.stream(&unnamed)).collect();
        assert!(streams.iter().all(Result::is_ok));
        let refused = quotas.stream(&unnamed).err();
        assert_eq!(refused, Some(Quota::Streams(Bound::Total(STREAMS_MAX))));
        streams.pop();
        assert!(quotas.stream(&unnamed).is_ok());
    }
}
