//! Local queues of all locks for which calls of this broker wait, and the records of their grants.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::{
    select,
    time::{Instant, sleep_until},
};

use super::{
    grant_attempts::{CancelTarget, GrantAttempt, GrantAttempts},
    local_queue::{EnqueueResult, FirstReplySender, LeaveResult, LocalQueue, QueueHead},
};
use crate::{
    lock::{AcquireCommand, AttemptId, BrokerId, LockKey, RequestHash, WaiterInfo},
    store::HandOff,
};

/// Map of the local queues.
#[derive(Default)]
pub(super) struct LocalQueues(Mutex<State>);

#[derive(Default)]
struct State {
    queues: HashMap<LockKey, LocalQueue>,
    grants: GrantAttempts,
}

impl LocalQueues {
    /// Enqueues a call for its lock. The flag is true if the queue is new, so that the caller must
    /// start its worker.
    pub(super) fn enqueue(&self, acquire: &AcquireCommand) -> (EnqueueResult, bool) {
        let mut state = self.0.lock();
        let is_new = !state.queues.contains_key(&acquire.lock);
        let line = state.queues.entry(acquire.lock.clone());
        (
            line.or_insert_with(LocalQueue::new).enqueue(acquire),
            is_new,
        )
    }

    /// Waits until a request to the nodes is due, and returns the first call. Returns `None` if no
    /// call waits; the queue is then removed.
    pub(super) async fn wait_until_due(&self, lock: &LockKey) -> Option<QueueHead> {
        loop {
            let (at, changed) = {
                let mut state = self.0.lock();
                let line = state.queues.get_mut(lock)?;
                line.remove_timed_out();
                if line.is_empty() {
                    state.queues.remove(lock);
                    return None;
                }
                let (at, changed) = line.next_request();
                if at <= Instant::now() {
                    return line.head();
                }
                (at, changed)
            };
            select! {
                () = sleep_until(at) => {}
                () = changed.notified() => {}
            }
        }
    }

    /// Schedules the next request for the lock after `pause`.
    pub(super) fn sleep_until(&self, lock: &LockKey, pause: Duration) {
        if let Some(line) = self.0.lock().queues.get_mut(lock) {
            line.sleep_until(pause);
        }
    }

    /// Schedules the next request for the lock after `delay`, unless an earlier one is scheduled.
    pub(super) fn wake(&self, lock: &LockKey, delay: Duration) {
        if let Some(line) = self.0.lock().queues.get_mut(lock) {
            line.wake(delay);
        }
    }

    /// Schedules the next request for every lock now.
    pub(super) fn wake_all(&self) {
        let mut state = self.0.lock();
        state
            .queues
            .values_mut()
            .for_each(|line| line.wake(Duration::ZERO));
    }

    /// Stores the sender of the first call's reply. If that call has left, the sender is dropped.
    pub(super) fn defer_reply(&self, lock: &LockKey, sequence: u64, first: FirstReplySender) {
        if let Some(line) = self.0.lock().queues.get_mut(lock) {
            line.defer_reply(sequence, first);
        }
    }

    /// Removes a waiter from the queue; `None` if the waiter has left.
    pub(super) fn take(&self, lock: &LockKey, sequence: u64) -> Option<Vec<AttemptId>> {
        self.0.lock().queues.get_mut(lock)?.take(sequence)
    }

    /// Removes a waiter that was granted the lock. The grant returned by `note` is recorded until
    /// `until`.
    pub(super) fn take_granted(
        &self,
        lock: &LockKey,
        sequence: u64,
        note: impl FnOnce(&[AttemptId]) -> Option<GrantAttempt>,
        until: Instant,
    ) -> Option<Vec<AttemptId>> {
        let mut state = self.0.lock();
        let attempts = state.queues.get_mut(lock)?.take(sequence)?;
        if let Some(grant_attempt) = note(&attempts) {
            state.grants.record(lock, grant_attempt, until);
        }
        Some(attempts)
    }

    /// Removes an attempt from the queue, or returns which attempt must be cancelled at the nodes.
    pub(super) fn remove_attempt(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> (LeaveResult, CancelTarget) {
        let mut state = self.0.lock();
        let line = state.queues.get_mut(lock);
        match line.map_or(LeaveResult::NotQueued, |line| {
            line.remove_attempt(request, attempt)
        }) {
            LeaveResult::NotQueued => (
                LeaveResult::NotQueued,
                state.grants.remove_attempt(lock, request, attempt),
            ),
            result @ (LeaveResult::LastAttempt | LeaveResult::OtherAttempts) => {
                (result, CancelTarget::Attempt(attempt))
            }
        }
    }

    /// Returns the queue position of the waiter with this sequence number; 0 if the waiter has
    /// left.
    pub(super) fn position(&self, lock: &LockKey, sequence: u64) -> u32 {
        let state = self.0.lock();
        state
            .queues
            .get(lock)
            .map_or(0, |line| line.position(sequence))
    }

    /// Returns the number of waiters of the lock.
    pub(super) fn length(&self, lock: &LockKey) -> u32 {
        self.0.lock().queues.get(lock).map_or(0, LocalQueue::len)
    }

    /// Returns the number of waiters of the lock, and the first waiters.
    pub(super) fn waiter_infos(&self, lock: &LockKey) -> (u32, Vec<WaiterInfo>) {
        let state = self.0.lock();
        let line = state.queues.get(lock);
        line.map_or((0, Vec::new()), |line| (line.len(), line.waiter_infos()))
    }

    /// Returns true if calls wait for the lock, and the recent grants to waiters.
    pub(super) fn waiting_and_grants(
        &self,
        lock: &LockKey,
        broker: BrokerId,
    ) -> (bool, Vec<HandOff>) {
        let state = self.0.lock();
        (
            state.queues.contains_key(lock),
            state.grants.recent_grants(lock, broker),
        )
    }
}
