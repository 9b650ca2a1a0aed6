//! Change feed of the console: one store subscription for all browsers, at most two batches per
//! second, and active only while a browser is connected.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    broker::{
        Broker,
        watch::{WatchEvent, WatchSubscription},
    },
    lock::LockKey,
};

/// Minimum interval between two batches.
pub(super) const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of locks named in a batch. A batch of more locks applies to all locks.
const NAMED_MAX: usize = 256;
/// Interval at which an idle feed checks that a browser is still connected.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a failed watch of the store is started again.
const RETRY: Duration = Duration::from_secs(5);

/// The changes since the previous batch.
#[derive(Debug, Default)]
pub(super) struct ChangeBatch {
    number: u64,
    locks: HashSet<LockKey>,
    /// True if more locks changed than a batch can name, or if changes were missed.
    is_of_all: bool,
}

/// The change feed, which all browsers share.
#[derive(Clone)]
pub(super) struct ChangeFeed {
    batches: watch::Sender<Arc<ChangeBatch>>,
    is_running: Arc<Mutex<bool>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl ChangeFeed {
    pub(super) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            batches: watch::Sender::default(),
            is_running: Arc::default(),
            tasks,
            stop,
        }
    }

    /// Subscribes to future batches. Returns once the watch of the store has started or failed.
    pub(super) async fn listen(&self, broker: &Broker) -> watch::Receiver<Arc<ChangeBatch>> {
        let batches = self.batches.subscribe();
        let mut is_running = self.is_running.lock().await;
        if !std::mem::replace(&mut *is_running, true) {
            // If the store has no watches or is unreachable, browsers update on their timers.
            let watch = broker.watch_uncounted().await.ok();
            let flush_task = self.clone().flush(broker.clone(), watch);
            self.tasks
                .spawn(self.stop.clone().run_until_cancelled_owned(flush_task));
        }
        batches
    }

    async fn flush(self, broker: Broker, mut watch: Option<WatchSubscription>) {
        let mut last_flush = Instant::now();
        while !broker.is_draining() && !self.is_idle().await {
            let Some(subscription) = &mut watch else {
                sleep(RETRY).await;
                watch = broker.watch_uncounted().await.ok();
                continue;
            };
            match timeout_at(Instant::now() + IDLE_CHECK_INTERVAL, subscription.next()).await {
                Ok(Some(event)) => {
                    let batch = coalesce(subscription, event, last_flush + FLUSH_INTERVAL).await;
                    last_flush = Instant::now();
                    self.batches.send_modify(|latest| {
                        let number = latest.number + 1;
                        *latest = Arc::new(ChangeBatch { number, ..batch });
                    });
                }
                Ok(None) => watch = None,
                Err(_) => {}
            }
        }
        *self.is_running.lock().await = false;
    }

    /// Returns true if no browser is connected. The feed is then marked as stopped, so that the
    /// next subscriber starts it again.
    async fn is_idle(&self) -> bool {
        let mut is_running = self.is_running.lock().await;
        *is_running = self.batches.receiver_count() > 0;
        !*is_running
    }
}

/// Collects the first event and all events that follow until `until`.
async fn coalesce(
    subscription: &mut WatchSubscription,
    first: WatchEvent,
    until: Instant,
) -> ChangeBatch {
    let mut batch = ChangeBatch::default();
    batch.add(first);
    while let Ok(Some(event)) = timeout_at(until, subscription.next()).await {
        batch.add(event);
    }
    batch
}

impl ChangeBatch {
    fn add(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Changed(lock, _) if self.locks.len() < NAMED_MAX => {
                self.locks.insert(lock);
            }
            WatchEvent::Changed(..) | WatchEvent::Gap => self.is_of_all = true,
        }
    }

    /// Returns true if a lock for which `is_relevant` is true may have changed since batch
    /// `last_batch`.
    pub(super) fn affects(&self, last_batch: u64, is_relevant: impl Fn(&LockKey) -> bool) -> bool {
        let has_missed = self.number > last_batch + 1;
        has_missed || self.is_of_all || self.locks.iter().any(is_relevant)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::{Mode, Owner},
        store::{Change, ChangeKind, stub::lock},
    };

    #[test]
    fn a_batch_of_too_many_locks_refreshes_all() {
        let change = Arc::new(Change {
            kind: ChangeKind::Released,
            lease_id: None,
            owner: Owner::default(),
            mode: Mode::Exclusive,
            fencing_token: 0,
            since_ms: 0,
            remaining_ms: 0,
        });
        let changed =
            |number: usize| WatchEvent::Changed(lock(&number.to_string()), change.clone());
        let (mut batch, other_lock) = (ChangeBatch::default(), lock("other"));
        (0..NAMED_MAX).for_each(|number| batch.add(changed(number)));
        assert!(!batch.affects(0, |lock| *lock == other_lock));
        batch.add(changed(NAMED_MAX));
        assert!(batch.affects(0, |lock| *lock == other_lock));
        assert_eq!(batch.locks.len(), NAMED_MAX);
    }
}
