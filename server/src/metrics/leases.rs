//! Leases: how many locks are held, and how near to their end they are renewed.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Metrics, labels, namespaces::Namespace};
use crate::lock::{LockKey, Mode, Ttl};

/// A lock that is held, until dropped.
pub struct HeldCount {
    namespace: Arc<Namespace>,
    mode: usize,
}

/// How much of a lease's validity is left when its heartbeats come.
pub struct Slack {
    namespace: Option<Arc<Namespace>>,
    /// When the renewal was sent that counts, and one that is not answered yet.
    renewed: Instant,
    asked: Instant,
}

impl Metrics {
    /// A lock is held from now on.
    #[must_use]
    pub fn hold(&self, lock: &LockKey, mode: Mode) -> Option<HeldCount> {
        let namespace = self.0.as_ref()?.namespaces.admit(lock.namespace());
        let mode = labels::mode(mode);
        namespace.leases(mode).inc();
        Some(HeldCount { namespace, mode })
    }

    /// Of a lease that begins now.
    #[must_use]
    pub fn slack(&self, lock: Option<&LockKey>) -> Slack {
        let named = self.0.as_ref().zip(lock);
        let now = Instant::now();
        Slack {
            namespace: named.map(|(all, lock)| all.namespaces.admit(lock.namespace())),
            renewed: now,
            asked: now,
        }
    }
}

impl Slack {
    /// A heartbeat came.
    pub fn beat(&self, ttl: Ttl) {
        if let Some(namespace) = &self.namespace {
            let gone = self.renewed.elapsed().as_secs_f64() * 1_000.0;
            let of = std::time::Duration::from_millis(ttl.as_millis());
            let left = 1.0 - gone / (of.as_secs_f64() * 1_000.0);
            namespace.slack().observe(left.max(0.0));
        }
    }

    /// A renewal is sent.
    pub fn ask(&mut self) {
        if self.namespace.is_some() {
            self.asked = Instant::now();
        }
    }

    /// The store has taken it.
    pub fn renew(&mut self) {
        self.renewed = self.asked;
    }
}

impl Drop for HeldCount {
    fn drop(&mut self) {
        self.namespace.leases(self.mode).dec();
    }
}

impl std::fmt::Debug for HeldCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldCount").finish_non_exhaustive()
    }
}
