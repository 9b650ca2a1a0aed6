//! Quotas of each caller, of each namespace and of the broker as a whole. Each broker counts
//! separately, without requests to the store.

mod detached;
mod shared_quota;

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use self::detached::DetachedLeases;
pub use self::shared_quota::{SharedQuota, SharedQuotaPermit};
use crate::{
    lock::{AcquireCall, LeaseId, LockError, LockKey, QuotaExceeded, RequestHash},
    metrics::GaugeEntry,
    rate_limit::{KeyedRateLimiter, RateLimit},
    time::millis,
};

/// Maximum number of lease streams of one broker.
const STREAMS_MAX: usize = 20_000;
/// Maximum number of lease streams of one authenticated caller at each broker.
const STREAMS_PER_CALLER_MAX: usize = 2_000;
/// Maximum number of watches of one broker.
const WATCHES_MAX: usize = 1_000;
/// Maximum number of watches of one authenticated caller at each broker.
const WATCHES_PER_CALLER_MAX: usize = 16;

/// Maximum number of calls of one authenticated caller that wait for one lock at each broker.
const WAITS_PER_CALLER_MAX: usize = 1_000;

/// Limits of the quotas. A lock counts once for each lease that holds it or waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Number of locks of an authenticated caller.
    pub locks_per_caller: u32,
    /// Number of locks of a namespace.
    pub locks_per_namespace: u32,
    /// Number of all locks.
    pub locks: u32,
    /// Rate of acquires of an authenticated caller. The burst is twice as large.
    pub acquires_per_second: u32,
    /// Number of acquires that were sent to the store and have no reply yet.
    pub acquires_in_flight: u32,
}

#[cfg(test)]
impl QuotaLimits {
    /// Limits that no test reaches.
    pub(crate) const UNLIMITED: Self = Self {
        locks_per_caller: 1_000_000,
        locks_per_namespace: 1_000_000,
        locks: 1_000_000,
        acquires_per_second: 1_000_000,
        acquires_in_flight: 1_000_000,
    };
}

/// All counters of a broker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Quotas {
    limits: LimitSource,
    counts: Arc<Mutex<Counts>>,
    detached: Arc<Mutex<DetachedLeases>>,
    in_flight: Arc<AtomicU32>,
    streams: SharedQuota,
    watches: SharedQuota,
}

/// Function that returns the current limits, which can change while the broker runs.
#[derive(Clone)]
struct LimitSource(Arc<dyn Fn() -> QuotaLimits + Send + Sync>);

#[derive(Debug, Default)]
struct Counts {
    locks: u32,
    by_caller: HashMap<Arc<str>, u32>,
    by_namespace: HashMap<Box<str>, u32>,
    acquires: KeyedRateLimiter<Arc<str>>,
    /// Number of attempts of each waiting call, by caller and lock. Attempts of one call share a
    /// queue position.
    waits: HashMap<(Arc<str>, LockKey), HashMap<RequestHash, u32>>,
}

/// Quota permit of a lock that is held or waited for. Released when dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    counts: Arc<Mutex<Counts>>,
    caller: Arc<str>,
    lock: LockKey,
    /// Request that waits for the lock; `None` once the lock is held.
    waiting_request: Option<RequestHash>,
    /// Entry in the metric of held locks, once the lock is held.
    held_gauge: Option<GaugeEntry>,
}

/// Permit of an acquire that waits for a reply of the store. Released when dropped.
#[derive(Debug)]
pub struct InFlightPermit(Arc<AtomicU32>);

impl Quotas {
    /// Creates quotas with all counters at zero. `limits` is called for each acquire, so that
    /// changed limits apply at once.
    pub fn new(limits: impl Fn() -> QuotaLimits + Send + Sync + 'static) -> Self {
        Self {
            limits: LimitSource(Arc::new(limits)),
            counts: Arc::default(),
            detached: Arc::default(),
            in_flight: Arc::default(),
            streams: SharedQuota::new(STREAMS_PER_CALLER_MAX, STREAMS_MAX),
            watches: SharedQuota::new(WATCHES_PER_CALLER_MAX, WATCHES_MAX),
        }
    }

    /// Creates quotas that no test reaches.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        Self::new(|| QuotaLimits::UNLIMITED)
    }

    /// Returns quota permits for all locks of a call, or an error. `caller` is empty if callers are
    /// not authenticated.
    ///
    /// # Errors
    /// [`LockError::QuotaExceeded`] or [`LockError::Overloaded`].
    pub fn admit(
        &self,
        caller: &Arc<str>,
        call: &AcquireCall,
    ) -> Result<Vec<QuotaPermit>, LockError> {
        let limits = (self.limits.0)();
        if self.in_flight.load(Ordering::Relaxed) >= limits.acquires_in_flight {
            return Err(LockError::Overloaded);
        }
        if !caller.is_empty() {
            let max_per_second = limits.acquires_per_second;
            let rate_limit =
                RateLimit::per_second(max_per_second, max_per_second.saturating_mul(2));
            let acquires = &mut self.counts.lock().acquires;
            let result = acquires.check(rate_limit, Arc::clone(caller));
            result.map_err(|retry_after| QuotaExceeded::Rate {
                max: max_per_second,
                retry_after_ms: millis(retry_after) + 1,
            })?;
        }
        self.detached.lock().evict_expired();
        let waiting_request = call.wait_ms > 0 && !caller.is_empty();
        let waiting_request = waiting_request.then(|| call.request_id.hash());
        let permits = call.targets.iter().map(|target| {
            let mut counts = self.counts.lock();
            counts.try_add(&limits, caller, &target.lock, waiting_request)?;
            Ok(self.create_permit(caller, &target.lock, waiting_request))
        });
        permits.collect()
    }

    /// Returns a quota permit for a lock that is held already, without checking the limits.
    pub fn permit(&self, caller: &Arc<str>, lock: &LockKey) -> QuotaPermit {
        self.counts.lock().add(caller, lock);
        self.create_permit(caller, lock, None)
    }

    /// Creates the permit of a lock that was added to the counts.
    fn create_permit(
        &self,
        caller: &Arc<str>,
        lock: &LockKey,
        waiting_request: Option<RequestHash>,
    ) -> QuotaPermit {
        QuotaPermit {
            counts: Arc::clone(&self.counts),
            caller: Arc::clone(caller),
            lock: lock.clone(),
            waiting_request,
            held_gauge: None,
        }
    }

    /// Stores the permits of a lease that is on no stream of this broker. They are released after
    /// `expires_in`, unless the lease is renewed.
    pub fn track_detached(
        &self,
        lease_id: LeaseId,
        permits: Vec<QuotaPermit>,
        expires_in: Duration,
    ) {
        if !permits.is_empty() {
            self.detached.lock().insert(lease_id, permits, expires_in);
        }
    }

    /// Extends the permits of a renewed lease that is on no stream.
    pub fn renewed(&self, lease_id: LeaseId, expires_in: Duration) {
        self.detached.lock().renewed(lease_id, expires_in);
    }

    /// Releases the permit of a lock that a lease on no stream has released.
    pub fn released(&self, lease_id: LeaseId, released: &LockKey) {
        self.detached.lock().released(lease_id, released);
    }

    /// Releases the stored permits of a lease that is on a stream now.
    pub fn untrack(&self, lease_id: LeaseId) {
        self.detached.lock().remove(lease_id);
    }

    /// Schedules a check of these locks after `expires_in`. The lease no longer counts towards the
    /// quotas, but the store keeps its locks until then.
    pub fn track_until_expiry(&self, lease_id: LeaseId, locks: Vec<LockKey>, expires_in: Duration) {
        self.detached
            .lock()
            .track_until_expiry(lease_id, locks, expires_in);
    }

    /// Returns the locks of leases on no stream that have expired since the last call.
    pub fn drain_expired(&self) -> Vec<LockKey> {
        self.detached.lock().drain_expired()
    }

    /// Returns a permit for a lease stream.
    ///
    /// # Errors
    /// [`QuotaExceeded::Streams`].
    pub fn stream(&self, caller: &Arc<str>) -> Result<SharedQuotaPermit, QuotaExceeded> {
        self.streams
            .try_acquire(caller)
            .map_err(QuotaExceeded::Streams)
    }

    /// Returns a permit for a watch.
    ///
    /// # Errors
    /// [`QuotaExceeded::Watches`].
    pub fn watch(&self, caller: &Arc<str>) -> Result<SharedQuotaPermit, QuotaExceeded> {
        self.watches
            .try_acquire(caller)
            .map_err(QuotaExceeded::Watches)
    }

    /// Counts an acquire that is sent to the store.
    pub fn begin_store_call(&self) -> InFlightPermit {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightPermit(Arc::clone(&self.in_flight))
    }
}

impl QuotaPermit {
    pub fn lock(&self) -> &LockKey {
        &self.lock
    }

    /// Marks the lock as held.
    pub fn mark_held(&mut self, held: Option<GaugeEntry>) {
        self.held_gauge = held;
        if let Some(request) = self.waiting_request.take() {
            let mut counts = self.counts.lock();
            counts.remove_wait(&self.caller, &self.lock, request);
        }
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.remove(&self.caller, &self.lock);
        if let Some(request) = self.waiting_request {
            counts.remove_wait(&self.caller, &self.lock, request);
        }
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counts {
    /// Adds a lock, and an attempt of the call that waits for it, unless a limit is reached.
    fn try_add(
        &mut self,
        limits: &QuotaLimits,
        caller: &Arc<str>,
        lock: &LockKey,
        waiting_request: Option<RequestHash>,
    ) -> Result<(), QuotaExceeded> {
        let caller_count = self.by_caller.get(caller).copied().unwrap_or(0);
        let namespace_count = self.by_namespace.get(lock.namespace()).copied();
        if !caller.is_empty() && caller_count >= limits.locks_per_caller {
            return Err(QuotaExceeded::Caller(caller_count));
        }
        if let Some(count) = namespace_count.filter(|count| *count >= limits.locks_per_namespace) {
            return Err(QuotaExceeded::Namespace(count));
        }
        if self.locks >= limits.locks {
            return Err(QuotaExceeded::Broker(self.locks));
        }
        if let Some(request) = waiting_request {
            let waits = self.waits.entry((Arc::clone(caller), lock.clone()));
            let waits = waits.or_default();
            if waits.len() >= WAITS_PER_CALLER_MAX && !waits.contains_key(&request) {
                return Err(QuotaExceeded::Waits(WAITS_PER_CALLER_MAX));
            }
            *waits.entry(request).or_default() += 1;
        }
        self.add(caller, lock);
        Ok(())
    }

    fn add(&mut self, caller: &Arc<str>, lock: &LockKey) {
        self.locks += 1;
        *self.by_caller.entry(Arc::clone(caller)).or_default() += 1;
        match self.by_namespace.get_mut(lock.namespace()) {
            Some(count) => *count += 1,
            None => drop(self.by_namespace.insert(lock.namespace().into(), 1)),
        }
    }

    fn remove(&mut self, caller: &str, lock: &LockKey) {
        self.locks -= 1;
        if let Some(count) = self.by_caller.get_mut(caller) {
            *count -= 1;
            if *count == 0 {
                self.by_caller.remove(caller);
            }
        }
        if let Some(count) = self.by_namespace.get_mut(lock.namespace()) {
            *count -= 1;
            if *count == 0 {
                self.by_namespace.remove(lock.namespace());
            }
        }
    }

    fn remove_wait(&mut self, caller: &Arc<str>, lock: &LockKey, request: RequestHash) {
        let Entry::Occupied(mut waits) = self.waits.entry((Arc::clone(caller), lock.clone()))
        else {
            return;
        };
        if let Entry::Occupied(mut attempts) = waits.get_mut().entry(request) {
            *attempts.get_mut() -= 1;
            if *attempts.get() == 0 {
                attempts.remove();
            }
        }
        if waits.get().is_empty() {
            waits.remove();
        }
    }
}

impl fmt::Debug for LimitSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().fmt(formatter)
    }
}

impl From<QuotaExceeded> for LockError {
    fn from(quota: QuotaExceeded) -> Self {
        Self::QuotaExceeded(quota)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::{Bound, RequestId},
        store::stub::lock,
    };

    #[test]
    fn waiting_calls_count_once_however_often_they_are_repeated() {
        let mut counts = Counts::default();
        let (alice, bob) = (Arc::from("token:alice"), Arc::from("token:bob"));
        let [lock, other_lock] = ["a", "b"].map(lock);
        let add = |counts: &mut Counts, caller, lock, request| {
            counts.try_add(&QuotaLimits::UNLIMITED, caller, lock, Some(request))
        };
        let calls: Vec<_> = (0..WAITS_PER_CALLER_MAX)
            .map(|_| RequestId::random().hash())
            .collect();
        for call in calls.iter().chain(&calls) {
            assert_eq!(add(&mut counts, &alice, &lock, *call), Ok(()));
        }
        let additional = RequestId::random().hash();
        let rejected = Err(QuotaExceeded::Waits(WAITS_PER_CALLER_MAX));
        assert_eq!(add(&mut counts, &alice, &lock, additional), rejected);
        assert_eq!(add(&mut counts, &alice, &other_lock, additional), Ok(()));
        assert_eq!(add(&mut counts, &bob, &lock, additional), Ok(()));
        counts.remove_wait(&alice, &lock, calls[0]);
        assert_eq!(add(&mut counts, &alice, &lock, additional), rejected);
        counts.remove_wait(&alice, &lock, calls[0]);
        assert_eq!(add(&mut counts, &alice, &lock, additional), Ok(()));
        counts.remove_wait(&alice, &other_lock, additional);
        counts.remove_wait(&bob, &lock, additional);
        let waits = counts.waits.len();
        assert_eq!(waits, 1, "nothing is kept of queues without calls");
    }

    #[test]
    fn a_broker_has_twenty_thousand_lease_streams() {
        let (quotas, unnamed) = (Quotas::unlimited(), Arc::default());
        let mut streams: Vec<_> = (0..STREAMS_MAX).map(|_| quotas.stream(&unnamed)).collect();
        assert!(streams.iter().all(Result::is_ok));
        let error = quotas.stream(&unnamed).err();
        assert_eq!(
            error,
            Some(QuotaExceeded::Streams(Bound::Total(STREAMS_MAX)))
        );
        streams.pop();
        assert!(quotas.stream(&unnamed).is_ok());
    }
}
