//! Takes back attempts that nobody waits for any more, in tasks of its own.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::in_turn;
use crate::{
    lock::{Acquire, AttemptId, LockKey, RequestHash, expiry_ms},
    store::{Store, StoreError},
};

/// How long a caller whose connection broke has to come again, at any broker, before its place in
/// line or its lock is given up.
pub(super) const GRACE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(8);
/// Undos at the store at the same time: a store that is slow already gets no flood of them.
const AT_ONCE: usize = 16;

/// Where attempts to take back are sent; sending never waits, so that a `Drop` can do it.
#[derive(Debug, Clone)]
pub(super) struct Undo(mpsc::UnboundedSender<Attempt>);

/// What is taken back.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    lock: LockKey,
    request: RequestHash,
    attempt: AttemptId,
    /// How long its caller has to come again.
    pub(super) grace: Duration,
    /// After this the store has dropped it by itself.
    gone_after: Duration,
}

impl Undo {
    /// Starts the task that takes back what is sent. A drain ends it, and what it has begun: it never
    /// cancels, so that callers find their places at another broker.
    pub(super) fn start(
        store: Arc<dyn Store>,
        tasks: &TaskTracker,
        draining: CancellationToken,
    ) -> Self {
        let (sender, mut attempts) = mpsc::unbounded_channel::<Attempt>();
        let tracker = tasks.clone();
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        tasks.spawn(async move {
            loop {
                let attempt = tokio::select! {
                    attempt = attempts.recv() => attempt,
                    () = draining.cancelled() => return,
                };
                let Some(attempt) = attempt else { return };
                let undone = attempt.take_back(Arc::clone(&store), Arc::clone(&slots));
                tracker.spawn(draining.clone().run_until_cancelled_owned(undone));
            }
        });
        Self(sender)
    }

    /// Takes the attempt back a moment from now.
    pub(super) fn later(&self, attempt: Attempt) {
        // The receiver is gone only while the broker drains.
        let _ = self.0.send(attempt);
    }
}

impl Attempt {
    pub(super) fn of(acquire: &Acquire, grace: Duration) -> Self {
        let gone_after_ms = acquire.wait_ms + expiry_ms(acquire.ttl.as_millis());
        Self {
            lock: acquire.lock.clone(),
            request: acquire.request,
            attempt: acquire.attempt,
            grace,
            gone_after: Duration::from_millis(gone_after_ms),
        }
    }

    /// Takes it back now.
    pub(super) async fn cancel(&self, store: &dyn Store) -> Result<(), StoreError> {
        match store.cancel(&self.lock, self.request, self.attempt).await {
            Ok(done) => debug!(lock = self.lock.to_string(), ?done, "took back an attempt"),
            Err(error) => {
                debug!(lock = self.lock.to_string(), %error, "could not take back an attempt");
                return Err(error);
            }
        }
        Ok(())
    }

    async fn take_back(self, store: Arc<dyn Store>, slots: Arc<Semaphore>) {
        tokio::time::sleep(self.grace).await;
        let give_up = Instant::now() + self.gone_after;
        let mut retry = RETRY;
        while Instant::now() < give_up {
            let Ok(slot) = slots.acquire().await else {
                return;
            };
            if in_turn(slot, self.cancel(&*store)).await.is_ok() {
                return;
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::{
        broker::TURN_MAX,
        store::stub::{Stub, acquire, lock},
    };

    #[tokio::test(start_paused = true)]
    async fn so_many_attempts_are_taken_back_at_once() {
        let (store, tasks) = (Arc::new(Stub::default()), TaskTracker::new());
        let undo = Undo::start(store.clone(), &tasks, CancellationToken::new());
        for number in 0..=AT_ONCE {
            undo.later(Attempt::of(&acquire(&lock("a"), number), GRACE));
        }
        sleep(GRACE + TURN_MAX / 2).await;
        assert_eq!(store.asked(), AT_ONCE);
        sleep(TURN_MAX).await;
        assert_eq!(store.asked(), AT_ONCE + 1, "late ones let others pass");
    }
}
