//! Metrics of leases: the number of held locks, and the slack of renewals.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{GaugeEntry, Metrics, labels, namespaces::Namespace};
use crate::lock::{LockKey, Mode, Ttl};

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
    pub fn hold(&self, lock: &LockKey, mode: Mode) -> Option<GaugeEntry> {
        let namespace = self.0.as_ref()?.namespaces.admit(lock.namespace());
        Some(GaugeEntry::new(namespace.leases(labels::mode(mode))))
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
            let ttl = Duration::from_millis(ttl.as_millis());
            let remaining_ratio = 1.0 - self.renewed.elapsed().div_duration_f64(ttl);
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
