//! Looks after leases that are on no stream of this broker: when the time of one is over the lock is touched, so
//! that its end is known, though nobody else may ask for the lock.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::time::{MissedTickBehavior, interval};

use super::Broker;

/// How late an end may be noticed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Touches at the store at the same time.
const AT_ONCE: usize = 8;

impl Broker {
    /// Runs until the broker drains: others may have renewed what was here.
    pub(super) async fn look_after_run_out(self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = self.draining.cancelled() => return,
            }
            let run_out = self.quotas.run_out();
            let store = &self.store;
            let touches = stream::iter(run_out).for_each_concurrent(AT_ONCE, |lock| async move {
                // A failed touch is made up for by whoever asks for the lock next.
                let _ = store.touch(&lock).await;
            });
            tokio::select! {
                () = touches => {}
                () = self.draining.cancelled() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::sleep;

    use super::*;
    use crate::store::stub::{Stub, lease_id, lock};

    #[tokio::test(start_paused = true)]
    async fn so_many_locks_that_have_run_out_are_touched_at_once() {
        let store = Arc::new(Stub::default());
        let broker = Broker::alone(store.clone());
        let locks = (0..=AT_ONCE).map(|number| lock(&number.to_string()));
        broker
            .quotas
            .held_on(lease_id(0), locks.collect(), Duration::ZERO);
        sleep(2 * LOOK_EVERY).await;
        assert_eq!(store.asked(), AT_ONCE);
    }
}
