//! Watches of lock changes. The broker subscribes at the store while it has at least one watch.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Broker;
use crate::{
    lock::{LockError, LockKey},
    quotas::SharedQuotaPermit,
    store::{Change, WATCHED_MS},
};

/// Number of changes that a watch may fall behind before it receives [`WatchEvent::Gap`] instead.
const WATCH_LAG_MAX: usize = 4_096;
/// Interval at which the subscription at the store is renewed.
const INTEREST_RENEWAL_INTERVAL: Duration = Duration::from_millis(WATCHED_MS / 3);

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A change of a lock.
    Changed(LockKey, Arc<Change>),
    /// Changes may have been missed.
    Gap,
}

/// All watches of this broker.
#[derive(Debug)]
pub(super) struct WatchHub {
    events: broadcast::Sender<WatchEvent>,
    /// True while a task renews the subscription at the store.
    is_renewing_interest: Mutex<bool>,
}

/// A subscription to the changes of all locks.
#[derive(Debug)]
pub struct WatchSubscription {
    events: broadcast::Receiver<WatchEvent>,
    draining: CancellationToken,
    /// Quota permit, if a caller opened the watch.
    _permit: Option<SharedQuotaPermit>,
}

impl Default for WatchHub {
    fn default() -> Self {
        Self {
            events: broadcast::Sender::new(WATCH_LAG_MAX),
            is_renewing_interest: Mutex::new(false),
        }
    }
}

impl WatchHub {
    /// Publishes changes that the store has reported for a lock.
    pub(super) fn publish_changes(&self, lock: &LockKey, changes: Vec<Change>) {
        if self.events.receiver_count() > 0 {
            for change in changes {
                self.publish(WatchEvent::Changed(lock.clone(), Arc::new(change)));
            }
        }
    }

    /// Returns the number of watches.
    pub(super) fn count(&self) -> usize {
        self.events.receiver_count()
    }

    /// Publishes that changes may have been missed.
    pub(super) fn publish_gap(&self) {
        self.publish(WatchEvent::Gap);
    }

    fn publish(&self, event: WatchEvent) {
        // Sending fails only if there are no watches.
        let _ = self.events.send(event);
    }

    fn subscribe(&self) -> broadcast::Receiver<WatchEvent> {
        let _guard = self.is_renewing_interest.lock();
        self.events.subscribe()
    }

    /// Returns true if the caller must start the task that renews the subscription.
    fn try_start(&self) -> bool {
        let mut is_renewing = self.is_renewing_interest.lock();
        !std::mem::replace(&mut *is_renewing, true)
    }

    /// Returns true if there are no watches, so that the task that renews the subscription must
    /// end.
    fn try_stop(&self) -> bool {
        let mut is_renewing = self.is_renewing_interest.lock();
        let is_unwatched = self.events.receiver_count() == 0;
        *is_renewing = !is_unwatched;
        is_unwatched
    }
}

impl Broker {
    /// Opens a watch for a caller, like [`Broker::watch_uncounted`]. `caller` is empty if callers
    /// are not authenticated.
    ///
    /// # Errors
    /// [`LockError::QuotaExceeded`], in addition to the errors of the store.
    pub async fn watch(&self, caller: &Arc<str>) -> Result<WatchSubscription, LockError> {
        let permit = self.quotas.watch(caller).map_err(LockError::from);
        let permit = permit.inspect_err(|error| self.metrics.over_quota(error))?;
        let watch = self.watch_uncounted().await?;
        Ok(WatchSubscription {
            _permit: Some(permit),
            ..watch
        })
    }

    /// Opens a watch of the changes that all brokers make, until it is dropped. The watch is for
    /// the broker's own use and counts towards no quota.
    pub async fn watch_uncounted(&self) -> Result<WatchSubscription, LockError> {
        if self.draining.is_cancelled() {
            return Err(LockError::Draining);
        }
        let events = self.watch_hub.subscribe();
        self.store.watch().await?;
        if self.watch_hub.try_start() {
            self.tasks.spawn(self.clone().renew_interest());
        }
        Ok(WatchSubscription {
            events,
            draining: self.draining.clone(),
            _permit: None,
        })
    }

    async fn renew_interest(self) {
        let mut has_failed = false;
        loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return,
                () = sleep(INTEREST_RENEWAL_INTERVAL) => {}
            }
            if self.watch_hub.try_stop() {
                return;
            }
            match self.store.watch().await {
                Ok(()) if std::mem::take(&mut has_failed) => self.watch_hub.publish_gap(),
                Ok(()) => {}
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        warn!(%error, "watch streams are paused: the store is unavailable");
                    }
                }
            }
        }
    }
}

impl WatchSubscription {
    /// Waits for the next event. Returns `None` when the broker drains. Cancel safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            event = self.events.recv() => match event {
                Ok(event) => Some(event),
                Err(RecvError::Lagged(_)) => Some(WatchEvent::Gap),
                Err(RecvError::Closed) => None,
            },
        }
    }
}
