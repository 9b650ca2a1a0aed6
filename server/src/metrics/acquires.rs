//! Metrics of acquires: outcome, duration, and the number that wait.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::time::Instant;

use super::{
    GaugeEntry, Inner, Metrics,
    labels::{self, CANCELLED, DENIED, GRANTED, INVALID},
    namespaces::Namespace,
};
use crate::lock::{AcquireCall, LockError, LockKey, Mode};

/// Sequence of numbers that distinguish calls which begin to wait at the same instant.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Timer of an acquire.
#[derive(Default)]
pub struct AcquireTimer(Option<RunningAcquire>);

struct RunningAcquire {
    metrics: Arc<Inner>,
    /// Namespace of the call's first lock.
    namespace: Arc<Namespace>,
    mode: usize,
    started_at: Instant,
    /// True if the call is for a single lock and has not waited.
    is_uncontended: AtomicBool,
}

/// Entry of a waiting call in the gauges of waits, removed when dropped.
pub struct WaitingGauge {
    namespace: Arc<Namespace>,
    number: (Instant, u64),
    _waiters: GaugeEntry,
}

impl Metrics {
    /// Starts the timer of an acquire.
    #[must_use]
    pub fn start_acquire(&self, call: &AcquireCall) -> AcquireTimer {
        AcquireTimer(self.0.as_ref().map(|inner| {
            let mode = call
                .targets
                .first()
                .map_or(Mode::Exclusive, |target| target.mode);
            RunningAcquire {
                metrics: Arc::clone(inner),
                namespace: inner.namespaces.admit(call.first().namespace()),
                mode: labels::mode(mode),
                started_at: Instant::now(),
                is_uncontended: AtomicBool::new(call.targets.len() == 1),
            }
        }))
    }

    /// Counts a request that was rejected as invalid or denied. No namespace gets its own series by
    /// it.
    pub fn acquire_rejected(&self, is_denied: bool) {
        if let Some(inner) = &self.0 {
            let outcome = if is_denied { DENIED } else { INVALID };
            inner.namespaces.get("").rejected(outcome);
        }
    }
}

impl AcquireTimer {
    /// Counts the call as waiting until the result is dropped.
    #[must_use]
    pub fn start_wait(&self, lock: &LockKey, mode: Mode) -> Option<WaitingGauge> {
        let running = self.0.as_ref()?;
        running.is_uncontended.store(false, Ordering::Relaxed);
        let namespace = running.metrics.namespaces.admit(lock.namespace());
        let number = (Instant::now(), NEXT_NUMBER.fetch_add(1, Ordering::Relaxed));
        namespace.waiting.lock().insert(number);
        Some(WaitingGauge {
            _waiters: GaugeEntry::new(namespace.waiters(labels::mode(mode))),
            namespace,
            number,
        })
    }

    /// Records the time since the broker received the grant of a lock for which the call waited.
    pub fn handed_over(&self, notified_at: Instant) {
        if let Some(running) = &self.0 {
            let elapsed = notified_at.elapsed().as_secs_f64();
            running.metrics.handover.observe(elapsed);
        }
    }

    /// Records that the call was granted.
    pub fn granted(&self) {
        if let Some(running) = &self.0
            && running.is_uncontended.load(Ordering::Relaxed)
        {
            let elapsed = running.started_at.elapsed().as_secs_f64();
            running.metrics.uncontended.observe(elapsed);
        }
        self.end(GRANTED);
    }

    /// Records that the caller has cancelled the call.
    pub fn abandoned(&self) {
        self.end(CANCELLED);
    }

    /// Records that the call failed.
    pub fn failed(&self, error: &LockError) {
        self.end(labels::outcome(error));
    }

    fn end(&self, outcome: usize) {
        if let Some(running) = &self.0 {
            let elapsed = running.started_at.elapsed().as_secs_f64();
            running.namespace.acquired(running.mode, outcome, elapsed);
        }
    }
}

impl Drop for WaitingGauge {
    fn drop(&mut self) {
        self.namespace.waiting.lock().remove(&self.number);
    }
}
