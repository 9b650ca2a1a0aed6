//! Metrics of leases: the number of held locks, and the slack of renewals.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Metrics, labels, namespaces::Namespace};
use crate::lock::{LockKey, Mode, Ttl};

/// Gauge entry of a held lock, removed when dropped.
pub struct HeldLockGauge {
    namespace: Arc<Namespace>,
    mode: usize,
}

/// Recorder of the share of a lease's validity that is left when its heartbeats arrive.
pub struct RenewalSlack {
    namespace: Option<Arc<Namespace>>,
    /// Times at which the last confirmed renewal, and the last renewal at all, were sent.
    renewed: Instant,
    sent_at: Instant,
}

impl Metrics {
    /// Counts a lock as held until the result is dropped.
    #[must_use]
    pub fn hold(&self, lock: &LockKey, mode: Mode) -> Option<HeldLockGauge> {
        let namespace = self.0.as_ref()?.namespaces.admit(lock.namespace());
        let mode = labels::mode(mode);
        namespace.leases(mode).inc();
        Some(HeldLockGauge { namespace, mode })
    }

    /// Creates the renewal-slack recorder for a new lease.
    #[must_use]
    pub fn slack(&self, lock: Option<&LockKey>) -> RenewalSlack {
        let named = self.0.as_ref().zip(lock);
        let now = Instant::now();
        RenewalSlack {
            namespace: named.map(|(inner, lock)| inner.namespaces.admit(lock.namespace())),
            renewed: now,
            sent_at: now,
        }
    }
}

impl RenewalSlack {
    /// Records the slack at the arrival of a heartbeat.
    pub fn on_heartbeat(&self, ttl: Ttl) {
        if let Some(namespace) = &self.namespace {
            let elapsed_ms = self.renewed.elapsed().as_secs_f64() * 1_000.0;
            let ttl = std::time::Duration::from_millis(ttl.as_millis());
            let remaining_ratio = 1.0 - elapsed_ms / (ttl.as_secs_f64() * 1_000.0);
            namespace.slack().observe(remaining_ratio.max(0.0));
        }
    }

    /// Records that a renewal is sent.
    pub fn renewal_sent(&mut self) {
        if self.namespace.is_some() {
            self.sent_at = Instant::now();
        }
    }

    /// Records that the store has confirmed the renewal.
    pub fn renewal_confirmed(&mut self) {
        self.renewed = self.sent_at;
    }
}

impl Drop for HeldLockGauge {
    fn drop(&mut self) {
        self.namespace.leases(self.mode).dec();
    }
}

impl std::fmt::Debug for HeldLockGauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldLockGauge").finish_non_exhaustive()
    }
}
