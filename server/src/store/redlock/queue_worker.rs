//! Worker of one local queue: requests the lock from the nodes for the first call, when a grant is
//! likely.

use std::{sync::Arc, time::Duration};

use rand::Rng as _;
use tokio::{select, time::Instant};

use super::{
    RedlockState,
    local_queue::QueueHead,
    quorum_acquire::QuorumOutcome,
    votes::{Contended, QuorumFailure},
};
use crate::{
    lock::{AcquireCommand, AttemptId, Grant, LockKey, expiry_ms},
    store::{Acquired, Event, HandOff, MovedLease, NotifyMode, StoreError},
};

/// Random delay after several calls each got the lock at some nodes. Multiplied by the number of
/// consecutive failures of this kind.
const SPLIT_BACKOFF_MS: std::ops::Range<u64> = 5..50;
/// Random delay after the lock is expected to become free. The clocks of the nodes and of the
/// broker differ, and other brokers wait for the same moment.
const EXPECTED_FREE_DELAY_MS: std::ops::Range<u64> = 1..10;
/// Maximum pause between two requests for the first call.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Delay before nodes that did not answer receive another request.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Time for which a grant stays recorded here after the nodes have removed it.
const RECORD_RETENTION: Duration = Duration::from_secs(10);

impl RedlockState {
    /// Runs the worker while calls wait for the lock.
    pub(super) async fn run_queue(self: Arc<Self>, lock: LockKey) {
        let mut splits = 0;
        loop {
            let head = select! {
                head = self.queues.wait_until_due(&lock) => head,
                () = self.stop.cancelled() => return,
            };
            let Some(head) = head else { return };
            let pause = self.try_head(&lock, head, &mut splits).await;
            self.queues.wake(&lock, pause);
        }
    }

    /// Requests the lock from the nodes for the first call, and returns the pause until the next
    /// request.
    async fn try_head(&self, lock: &LockKey, head: QueueHead, splits: &mut u64) -> Duration {
        let mut acquire = head.acquire.clone();
        let is_try = acquire.wait_ms == 0;
        // A late cancel of an earlier try must not affect this try, so it needs an attempt id of
        // its own.
        if !head.needs_reply || acquire.rejoin || is_try {
            acquire.attempt = AttemptId::random();
        }
        let notify = match head.has_followers {
            true => NotifyMode::Always,
            false => NotifyMode::IfHeld,
        };
        let acquired = self.nodes.acquire_on_quorum(&acquire, true, notify).await;
        let busy = match acquired {
            Ok(QuorumOutcome::Granted(grant, moved)) => {
                *splits = 0;
                self.hand_off(&acquire, &head, grant, moved);
                return match head.has_followers {
                    true => PAUSE_MAX,
                    false => Duration::ZERO,
                };
            }
            Ok(QuorumOutcome::Failed(QuorumFailure::Rejected(rejection))) => {
                self.dismiss_head(lock, &head, Ok(rejection));
                return Duration::ZERO;
            }
            Err(StoreError::Recovering { .. }) if acquire.rejoin => {
                self.reply_queued(lock, &head);
                return RETRY_DELAY;
            }
            Err(error) => {
                if head.needs_reply {
                    self.dismiss_head(lock, &head, Err(error));
                }
                return RETRY_DELAY;
            }
            Ok(QuorumOutcome::Failed(QuorumFailure::Contended(busy))) => busy,
        };
        if is_try && (!busy.is_split || Instant::now() >= head.until) {
            let mut contention = busy.contention;
            contention.queue_length = self.queues.length(lock).saturating_sub(1);
            self.dismiss_head(lock, &head, Ok(Acquired::Held(contention)));
            return Duration::ZERO;
        }
        if !is_try {
            self.reply_queued(lock, &head);
        }
        *splits = if busy.is_split { *splits + 1 } else { 0 };
        backoff(&busy, *splits)
    }

    /// Delivers the grant of a quorum to the first call. If the call has left the queue meanwhile,
    /// the grant is cancelled.
    fn hand_off(
        &self,
        acquire: &AcquireCommand,
        head: &QueueHead,
        grant: Grant,
        moved: Option<MovedLease>,
    ) {
        let (lock, by, token) = (&acquire.lock, acquire.attempt, grant.fencing_token);
        let lifetime = Duration::from_millis(expiry_ms(acquire.ttl.as_millis()));
        let until = head.until.max(Instant::now()) + lifetime + RECORD_RETENTION;
        let waiter = self
            .queues
            .take_granted(lock, head.sequence, by, token, until);
        let Some(waiter) = waiter else {
            let nodes = self.nodes.all();
            return self.nodes.cancel(nodes, lock, acquire.request, by);
        };
        self.send_moved(lock, moved);
        let granted = Acquired::Granted(Grant {
            queue_length: self.queues.length(lock),
            ..grant
        });
        // A caller that has gone cancels the attempt.
        let is_delivered = waiter
            .first_reply
            .is_some_and(|first_reply| first_reply.send(Ok(granted)).is_ok());
        if !is_delivered || waiter.attempts != [by] {
            let hand_off = HandOff {
                broker: self.broker,
                request: acquire.request,
                fencing_token: token,
                limit: acquire.mode.limit(),
                // Calls have no fencing tokens from the local queue to compare. Only the nodes can
                // confirm that the grant is still valid.
                is_provisional: true,
            };
            self.send_event(Event::HandOff(lock.clone(), hand_off, None));
        }
    }

    /// Removes the first call from the queue with this reply. A call that already received a reply
    /// is notified to repeat its request.
    fn dismiss_head(&self, lock: &LockKey, head: &QueueHead, result: Result<Acquired, StoreError>) {
        let waiter = self
            .queues
            .with_queue(lock, |queue| queue.take(head.sequence));
        if let Some(first_reply) = waiter.flatten().and_then(|waiter| waiter.first_reply) {
            // Sending fails if the call has ended.
            let _ = first_reply.send(result);
        } else if !head.needs_reply {
            self.send_event(Event::Rejoin(lock.clone()));
        }
    }

    /// Sends the first call its queue position, unless the call has a reply already.
    fn reply_queued(&self, lock: &LockKey, head: &QueueHead) {
        self.queues
            .with_queue(lock, |queue| queue.reply_queued(head.sequence));
    }
}

/// Returns the pause after a try that did not get the lock.
fn backoff(busy: &Contended, splits: u64) -> Duration {
    let mut rng = rand::thread_rng();
    let pause_ms = match splits {
        0 => busy.free_in_ms + rng.gen_range(EXPECTED_FREE_DELAY_MS),
        splits => rng.gen_range(SPLIT_BACKOFF_MS) * splits,
    };
    Duration::from_millis(pause_ms).min(PAUSE_MAX)
}
