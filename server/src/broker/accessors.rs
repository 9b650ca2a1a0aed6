//! Status of the broker for health checks and the operator console.

use super::Broker;
use crate::lock::BrokerId;

impl Broker {
    /// Returns the id of this process among the brokers of its store.
    pub fn id(&self) -> BrokerId {
        self.store.broker()
    }

    /// Returns the number of open lease streams.
    pub fn open_streams(&self) -> usize {
        self.streams.count()
    }

    /// Returns the remaining time without new grants, see
    /// [`Store::recovering_ms`](crate::store::Store::recovering_ms).
    pub fn recovering_ms(&self) -> Option<u64> {
        self.store.recovering_ms()
    }

    /// Waits until a drain begins.
    pub async fn until_drain(&self) {
        self.draining.cancelled().await;
    }
}
