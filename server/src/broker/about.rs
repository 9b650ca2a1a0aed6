//! What this replica says of itself to whoever looks.

use super::Broker;
use crate::lock::BrokerId;

impl Broker {
    /// The name of this process among the brokers of its store.
    pub fn id(&self) -> BrokerId {
        self.store.broker()
    }

    /// Open lease streams.
    pub fn open_streams(&self) -> usize {
        self.streams.count()
    }

    /// See [`Store::recovering_ms`](crate::store::Store::recovering_ms).
    pub fn recovering_ms(&self) -> Option<u64> {
        self.store.recovering_ms()
    }

    /// Ends when the drain begins.
    pub async fn drain_began(&self) {
        self.draining.cancelled().await;
    }
}
