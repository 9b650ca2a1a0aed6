//! Expiry of leases that are on no stream of this broker. Their locks are touched after the expiry,
//! so that the end of the lease is recorded even if no other caller requests the lock.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::time::{MissedTickBehavior, interval};

use super::Broker;

/// Interval between checks, and thus the maximum delay until an expiry is recorded.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// Number of concurrent touches.
const CONCURRENT_MAX: usize = 8;

impl Broker {
    /// Runs until the broker drains. From then on its leases may be renewed at other brokers.
    pub(super) async fn sweep_expired_leases(self) {
        let mut ticker = interval(SWEEP_INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return,
                _ = ticker.tick() => {}
            }
            let expired = self.quotas.drain_expired();
            let store = &self.store;
            let touches =
                stream::iter(expired).for_each_concurrent(CONCURRENT_MAX, |lock| async move {
                    // Errors are ignored: the next command for the lock detects the expiry.
                    let _ = store.touch(&lock).await;
                });
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return,
                () = touches => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::sleep;

    use super::*;
    use crate::store::stub::{StubStore, lease_id, lock};

    #[tokio::test(start_paused = true)]
    async fn concurrent_touches_of_expired_locks_are_bounded() {
        let store = Arc::new(StubStore::default());
        let broker = Broker::unlimited(store.clone());
        let locks = (0..=CONCURRENT_MAX).map(|number| lock(&number.to_string()));
        broker
            .quotas
            .track_until_expiry(lease_id(0), locks.collect(), Duration::ZERO);
        sleep(2 * SWEEP_INTERVAL).await;
        assert_eq!(store.commands_sent(), CONCURRENT_MAX);
    }
}
