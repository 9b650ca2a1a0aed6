//! Metrics and status of the broker.

use std::time::Duration;

use tokio::time::timeout;

use super::Broker;
use crate::{
    lock::HeldLock,
    metrics::{BrokerStatus, Metrics},
    quotas::QuotaPermit,
};

/// Timeout of the health check of the store. A slower store counts as down.
const STORE_TIMEOUT: Duration = Duration::from_millis(200);

impl Broker {
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the current status, after a health check of the store.
    pub async fn status(&self) -> BrokerStatus {
        let result = timeout(STORE_TIMEOUT, self.store.deployment_key()).await;
        BrokerStatus {
            is_store_up: matches!(result, Ok(Ok(_))),
            is_draining: self.is_draining(),
            hold_streams: self.streams.count(),
            watch_streams: self.watch_hub.count(),
        }
    }

    /// Counts these locks as held, and records each hold in the quota permit of its lock.
    pub(super) fn count_held(&self, permits: &mut [QuotaPermit], locks: &[HeldLock]) {
        for permit in permits {
            let is_same_lock = |held: &&HeldLock| held.lock == *permit.lock();
            let grant = locks.iter().find(is_same_lock).map(|held| held.grant);
            let held = grant.and_then(|grant| self.metrics.hold(permit.lock(), grant.mode));
            permit.mark_held(held);
        }
    }
}
