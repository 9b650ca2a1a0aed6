//! Rollback of abandoned attempts in background tasks.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use crate::{
    broker::{PERMIT_HOLD_MAX, with_permit},
    lock::{AcquireCommand, AttemptId, LockKey, RequestHash, expiry_ms},
    store::{Store, StoreError},
};

/// Time in which a caller whose connection broke can repeat its call, at any broker, before its
/// queue position or its lock is released.
pub(in crate::broker) const REPEAT_GRACE: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(8);
/// Number of concurrent rollbacks, which protects a slow store from being flooded with
/// cancellations.
const CONCURRENT_MAX: usize = 16;

/// Queue of attempts to roll back. Unbounded, so that `Drop` can send without waiting.
#[derive(Debug, Clone)]
pub(in crate::broker) struct RollbackQueue(mpsc::UnboundedSender<Attempt>);

/// An attempt to roll back.
#[derive(Debug, Clone)]
pub(in crate::broker) struct Attempt {
    lock: LockKey,
    request: RequestHash,
    attempt: AttemptId,
    /// Time in which the caller can repeat the call.
    pub(super) grace: Duration,
    /// Time after which the store has removed the attempt without a cancellation.
    expires_after: Duration,
}

impl RollbackQueue {
    /// Starts the task that rolls back queued attempts. A drain stops the task and all rollbacks in
    /// progress, so that callers find their queue positions at another broker.
    pub(in crate::broker) fn start(
        store: Arc<dyn Store>,
        tasks: &TaskTracker,
        draining: CancellationToken,
    ) -> Self {
        let (sender, mut attempts) = mpsc::unbounded_channel::<Attempt>();
        let tracker = tasks.clone();
        let semaphore = Arc::new(Semaphore::new(CONCURRENT_MAX));
        tasks.spawn(async move {
            loop {
                let attempt = tokio::select! {
                    biased;
                    () = draining.cancelled() => return,
                    attempt = attempts.recv() => attempt,
                };
                let Some(attempt) = attempt else { return };
                let rollback = attempt.roll_back(Arc::clone(&store), Arc::clone(&semaphore));
                tracker.spawn(draining.clone().run_until_cancelled_owned(rollback));
            }
        });
        Self(sender)
    }

    /// Schedules the rollback of the attempt after its grace period.
    pub(super) fn schedule(&self, attempt: Attempt) {
        // The receiver is gone only during a drain.
        let _ = self.0.send(attempt);
    }
}

impl Attempt {
    pub(super) fn new(acquire: &AcquireCommand, grace: Duration) -> Self {
        let expires_after_ms = acquire.wait_ms + expiry_ms(acquire.ttl.as_millis());
        Self {
            lock: acquire.lock.clone(),
            request: acquire.request,
            attempt: acquire.attempt,
            grace,
            expires_after: Duration::from_millis(expires_after_ms),
        }
    }

    /// Cancels the attempt now, without retries.
    pub(super) async fn cancel(&self, store: &dyn Store) -> Result<(), StoreError> {
        match store.cancel(&self.lock, self.request, self.attempt).await {
            Ok(cancelled) => debug!(
                lock = self.lock.to_string(),
                done = ?cancelled,
                "rolled back an attempt"
            ),
            Err(error) => {
                debug!(lock = self.lock.to_string(), %error, "could not roll back an attempt");
                return Err(error);
            }
        }
        Ok(())
    }

    async fn roll_back(self, store: Arc<dyn Store>, semaphore: Arc<Semaphore>) {
        tokio::time::sleep(self.grace).await;
        let deadline = Instant::now() + self.expires_after;
        let mut delay = RETRY_DELAY;
        while Instant::now() < deadline {
            let Ok(permit) = semaphore.acquire().await else {
                return;
            };
            let cancel = self.cancel(&*store);
            if with_permit(permit, PERMIT_HOLD_MAX, cancel).await.is_ok() {
                return;
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::store::stub::{StubStore, acquire, lock};

    #[tokio::test(start_paused = true)]
    async fn concurrent_rollbacks_are_bounded() {
        let (store, tasks) = (Arc::new(StubStore::default()), TaskTracker::new());
        let rollback_queue = RollbackQueue::start(store.clone(), &tasks, CancellationToken::new());
        for number in 0..=CONCURRENT_MAX {
            rollback_queue.schedule(Attempt::new(&acquire(&lock("a"), number), REPEAT_GRACE));
        }
        sleep(REPEAT_GRACE + PERMIT_HOLD_MAX / 2).await;
        assert_eq!(store.commands_sent(), CONCURRENT_MAX);
        sleep(PERMIT_HOLD_MAX).await;
        assert_eq!(
            store.commands_sent(),
            CONCURRENT_MAX + 1,
            "late ones let others pass"
        );
    }
}
