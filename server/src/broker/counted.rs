//! What is counted of a broker: by the broker itself, and by whoever looks at it.

use std::time::Duration;

use tokio::time::timeout;

use super::Broker;
use crate::{
    lock::HeldLock,
    metrics::{Metrics, Standing},
    quotas::Place,
};

/// A store that does not say within that time whether it can be asked cannot.
const STORE_SOON: Duration = Duration::from_millis(200);

impl Broker {
    /// What is counted here.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How the broker stands now.
    pub async fn standing(&self) -> Standing {
        let up = timeout(STORE_SOON, self.store.deployment_key()).await;
        Standing {
            is_store_up: matches!(up, Ok(Ok(_))),
            is_draining: self.is_draining(),
            hold_streams: self.streams.count(),
            watch_streams: self.watchers.count(),
        }
    }

    /// These locks are held from now on, each in its place.
    pub(super) fn count_held(&self, places: &mut [Place], locks: &[HeldLock]) {
        for place in places {
            let is_its = |held: &&HeldLock| held.lock == *place.lock();
            let grant = locks.iter().find(is_its).map(|held| held.grant);
            let held = grant.and_then(|grant| self.metrics.hold(place.lock(), grant.mode));
            place.held(held);
        }
    }
}
