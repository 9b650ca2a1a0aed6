//! Local queues of all locks for which calls of this broker wait, and the records of their grants.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    select,
    time::{Instant, sleep_until},
};

use super::{
    grant_attempts::{GrantAttempt, GrantAttempts},
    local_queue::{EnqueueResult, LocalQueue, QueueHead, Waiter},
};
use crate::{
    lock::{AcquireCommand, AttemptId, BrokerId, FencingToken, LockKey, RequestHash},
    store::{Cancelled, Touched},
};

/// Map of the local queues.
#[derive(Default)]
pub(super) struct LocalQueues(Mutex<State>);

#[derive(Default)]
struct State {
    queues: HashMap<LockKey, LocalQueue>,
    grants: GrantAttempts,
}

/// Result of removing an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovedAttempt {
    /// No grant must be cancelled: the call was queued, or other attempts share its grant.
    WithoutGrant(Cancelled),
    /// This attempt must be cancelled at the nodes, which store it for a grant if there is one.
    AtNodes(AttemptId),
}

impl LocalQueues {
    /// Enqueues a call for its lock. The flag is true if the queue is new, so that the caller must
    /// start its worker.
    pub(super) fn enqueue(&self, acquire: &AcquireCommand) -> (EnqueueResult, bool) {
        let mut state = self.0.lock();
        let is_new = !state.queues.contains_key(&acquire.lock);
        let queue = state.queues.entry(acquire.lock.clone()).or_default();
        (queue.enqueue(acquire), is_new)
    }

    /// Applies `operation` to the queue of the lock, if there is one.
    pub(super) fn with_queue<R>(
        &self,
        lock: &LockKey,
        operation: impl FnOnce(&mut LocalQueue) -> R,
    ) -> Option<R> {
        self.0.lock().queues.get_mut(lock).map(operation)
    }

    /// Waits until a request to the nodes is due, and returns the first call. Returns `None` if no
    /// call waits; the queue is then removed.
    pub(super) async fn wait_until_due(&self, lock: &LockKey) -> Option<QueueHead> {
        loop {
            let (at, changed) = {
                let mut state = self.0.lock();
                let queue = state.queues.get_mut(lock)?;
                queue.remove_timed_out();
                if queue.len() == 0 {
                    state.queues.remove(lock);
                    return None;
                }
                match queue.next_request() {
                    Some(at) => (at, Arc::clone(&queue.changed)),
                    None => return queue.head(),
                }
            };
            select! {
                () = sleep_until(at) => {}
                () = changed.notified() => {}
            }
        }
    }

    /// Schedules the next request for the lock after `delay`, unless an earlier one is scheduled.
    pub(super) fn wake(&self, lock: &LockKey, delay: Duration) {
        self.with_queue(lock, |queue| queue.wake(delay));
    }

    /// Schedules the next request for every lock now.
    pub(super) fn wake_all(&self) {
        let mut state = self.0.lock();
        let queues = state.queues.values_mut();
        queues.for_each(|queue| queue.wake(Duration::ZERO));
    }

    /// Removes a waiter that was granted the lock under `attempt`; `None` if the waiter has left.
    /// The grant is recorded until `until` if the call has other attempts.
    pub(super) fn take_granted(
        &self,
        lock: &LockKey,
        sequence: u64,
        attempt: AttemptId,
        token: FencingToken,
        until: Instant,
    ) -> Option<Waiter> {
        let mut state = self.0.lock();
        let waiter = state.queues.get_mut(lock)?.take(sequence)?;
        if waiter.attempts != [attempt] {
            let grant = GrantAttempt {
                request: waiter.acquire.request,
                token,
                granted_attempt: attempt,
                attempts: waiter.attempts.clone(),
            };
            state.grants.record(lock, grant, until);
        }
        Some(waiter)
    }

    /// Removes an attempt from the queue, or returns which attempt must be cancelled at the nodes.
    pub(super) fn remove_attempt(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> RemovedAttempt {
        let mut state = self.0.lock();
        let queue = state.queues.get_mut(lock);
        if let Some(cancelled) = queue.and_then(|queue| queue.remove_attempt(request, attempt)) {
            return RemovedAttempt::WithoutGrant(cancelled);
        }
        match state.grants.remove_attempt(lock, request, attempt) {
            Some(granted_attempt) => RemovedAttempt::AtNodes(granted_attempt),
            None => RemovedAttempt::WithoutGrant(Cancelled::Kept),
        }
    }

    /// Returns the number of waiters of the lock.
    pub(super) fn length(&self, lock: &LockKey) -> u32 {
        self.with_queue(lock, |queue| queue.len()).unwrap_or(0)
    }

    /// Returns the reply to a touch: whether calls wait for the lock, and the recent grants to
    /// waiters.
    pub(super) fn touched(&self, lock: &LockKey, broker: BrokerId) -> Touched {
        let state = self.0.lock();
        Touched {
            rejoin: !state.queues.contains_key(lock),
            next_event_ms: None,
            held: state.grants.recent_grants(lock, broker),
            more_from: None,
            era: None,
        }
    }
}
