//! Registry of the calls that wait at this broker, by lock: delivers hand-offs to them and
//! schedules the touches of their locks.

mod poller;
mod snapshots;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

pub(in crate::broker) use self::snapshots::{SnapshotReceiver, SnapshotSender};
use crate::{
    lock::{
        AcquireCommand, AttemptId, FencingToken, LeaseId, LockKey, LockState, RequestHash,
        SPAN_MIN_MS, cut_ttl_ms, expiry_ms,
    },
    store::EraId,
};

/// Capacity of the signal queue of a call. A signal that does not fit is dropped, and the next
/// touch repairs the state.
const SIGNALS_MAX: usize = 8;
/// Minimum time between two snapshots of a lock for queue updates.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// Notification for a waiting call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::broker) enum Signal {
    /// The lock was granted to the request of the call.
    HandOff {
        /// Fencing token of the grant.
        fencing_token: FencingToken,
        /// Limit of the lock when it was granted.
        limit: u32,
        /// True if the broker must claim the grant before the grant is reported to the caller.
        provisional: bool,
        /// Time at which the command that granted the lock was sent; `None` if it is unknown.
        sent: Option<Instant>,
        /// Time at which the broker received the hand-off.
        received_at: Instant,
    },
    /// The queue position of the call may be lost, so that `acquire` must be sent again.
    Rejoin,
}

/// All calls that wait at this broker, by lock.
#[derive(Debug, Default)]
pub(in crate::broker) struct WaiterRegistry {
    queues: Mutex<HashMap<LockKey, LockQueue>>,
}

/// Calls that wait for one lock.
#[derive(Debug, Default)]
struct LockQueue {
    calls: BTreeMap<RequestHash, Vec<Waiter>>,
    /// Time of the next touch; `None` until a call is queued in the store.
    touch_at: Option<Instant>,
    changed: Arc<Notify>,
    /// Era of the store in which the calls are queued.
    era: Option<EraId>,
    /// Time at which the last touch with a reply was sent.
    touch_sent_at: Option<Instant>,
    snapshot_at: Option<Instant>,
    snapshot: SnapshotSender,
}

#[derive(Debug)]
struct Waiter {
    attempt: AttemptId,
    lease_id: LeaseId,
    /// Time for which a touch reports a grant to the call.
    grant_reported_for: Duration,
    /// Time at which the last `acquire` that queued the call was sent; `None` if a later one had no
    /// reply, so that the call may have lost its queue position.
    queued_at: Option<Instant>,
    signals: mpsc::Sender<Signal>,
}

/// Registration of a waiting call, removed when dropped.
#[derive(Debug)]
pub(in crate::broker) struct Registration {
    waiters: Arc<WaiterRegistry>,
    lock: LockKey,
    request: RequestHash,
    attempt: AttemptId,
    signals: mpsc::Receiver<Signal>,
}

impl WaiterRegistry {
    /// Registers a call *before* `acquire` is sent to the store, so that a grant that arrives
    /// immediately is not lost.
    pub(in crate::broker) fn register(self: &Arc<Self>, acquire: &AcquireCommand) -> Registration {
        let (lock, request, attempt) = (&acquire.lock, acquire.request, acquire.attempt);
        let (sender, signals) = mpsc::channel(SIGNALS_MAX);
        let waiter = Waiter {
            attempt,
            lease_id: acquire.lease_id,
            grant_reported_for: grant_reported_for(acquire),
            queued_at: Some(Instant::now()),
            signals: sender,
        };
        self.queues
            .lock()
            .entry(lock.clone())
            .or_default()
            .calls
            .entry(request)
            .or_default()
            .push(waiter);
        Registration {
            waiters: Arc::clone(self),
            lock: lock.clone(),
            request,
            attempt,
            signals,
        }
    }

    /// Sends the signal to every attempt of a request. If there are several attempts, the time of
    /// the command is removed from the signal, so that attempts on streams claim the grant: only
    /// the store records which attempt has it.
    pub(in crate::broker) fn hand_off(
        &self,
        lock: &LockKey,
        request: RequestHash,
        mut signal: Signal,
    ) {
        let queues = self.queues.lock();
        let waiters = queues.get(lock).and_then(|queue| queue.calls.get(&request));
        let waiters = waiters.map_or(&[][..], |waiters| waiters);
        if let Signal::HandOff { sent, .. } = &mut signal
            && waiters.len() > 1
        {
            *sent = None;
        }
        for waiter in waiters {
            let _ = waiter.signals.try_send(signal);
        }
    }

    /// Signals every call of a lock to send `acquire` again.
    pub(in crate::broker) fn rejoin(&self, lock: &LockKey) {
        if let Some(queue) = self.queues.lock().get(lock) {
            queue.rejoin();
        }
    }

    /// Records that an `acquire` sent at `sent_at` has queued a call, in `era`.
    pub(in crate::broker) fn record_queued(
        &self,
        acquire: &AcquireCommand,
        sent_at: Instant,
        era: Option<EraId>,
    ) {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(&acquire.lock) {
            queue.set_queued_at(acquire, Some(sent_at));
            queue.record_era(era);
        }
    }

    /// Records that an `acquire` has not queued a call, or had no reply. The next touch with a reply
    /// then signals the call, if it still waits, to send `acquire` again.
    pub(in crate::broker) fn record_not_queued(&self, acquire: &AcquireCommand) {
        if let Some(queue) = self.queues.lock().get_mut(&acquire.lock) {
            queue.set_queued_at(acquire, None);
        }
    }

    /// Records a touch that was sent at `sent_at` and has a reply, in `era`. A grant to a waiting call
    /// whose notification was lost may have been made and have expired since the touch before. The
    /// calls to which that may have happened are signalled to send `acquire` again.
    pub(in crate::broker) fn record_touch(
        &self,
        lock: &LockKey,
        sent_at: Instant,
        era: Option<EraId>,
    ) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(lock) else {
            return;
        };
        queue.record_era(era);
        let previous_sent_at = queue.touch_sent_at.replace(sent_at);
        for waiter in queue.calls.values().flatten() {
            let is_checked = waiter.queued_at.is_some_and(|queued_at| {
                let checked_at = previous_sent_at.unwrap_or(queued_at).max(queued_at);
                checked_at.elapsed() < waiter.grant_reported_for
            });
            if !is_checked {
                let _ = waiter.signals.try_send(Signal::Rejoin);
            }
        }
    }

    /// Signals the other calls of a lease that has acquired the lock to send `acquire` again, which
    /// re-enters the lock.
    pub(in crate::broker) fn signal_reentry(&self, lock: &LockKey, lease_id: LeaseId) {
        if let Some(queue) = self.queues.lock().get(lock) {
            let waiters = queue.calls.values().flatten();
            for waiter in waiters.filter(|waiter| waiter.lease_id == lease_id) {
                let _ = waiter.signals.try_send(Signal::Rejoin);
            }
        }
    }

    /// Returns the number of locks that have waiters here.
    pub(in crate::broker) fn queue_count(&self) -> usize {
        self.queues.lock().len()
    }

    /// Schedules a touch of the lock at `at` or earlier. Returns true if no task polls the queue
    /// yet. The caller must then start that task.
    pub(in crate::broker) fn schedule_touch(&self, lock: &LockKey, at: Instant) -> bool {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(lock) else {
            return false;
        };
        let is_first = queue.touch_at.is_none();
        if queue.touch_at.is_none_or(|touch_at| at < touch_at) {
            queue.touch_at = Some(at);
            queue.changed.notify_one();
        }
        is_first
    }

    /// Schedules an immediate touch of all polled locks.
    pub(in crate::broker) fn touch_all_now(&self) {
        let now = Instant::now();
        let mut queues = self.queues.lock();
        // Sorted, so that equal histories lead to equal orders of commands.
        let mut queues: Vec<_> = queues.iter_mut().collect();
        queues.sort_by_key(|(lock, _)| *lock);
        for (_, queue) in queues {
            if queue.touch_at.is_some() {
                queue.touch_at = Some(now);
                queue.changed.notify_one();
            }
        }
    }

    /// Waits until the lock must be touched, and schedules the touch after that, `interval` later.
    /// Returns false, and removes the queue, if no calls wait any longer. The task that polls the
    /// queue must then end.
    pub(in crate::broker) async fn wait_until_touch_due(
        &self,
        lock: &LockKey,
        interval: Duration,
    ) -> bool {
        loop {
            let (touch_at, changed) = {
                let mut queues = self.queues.lock();
                let Some(queue) = queues.get_mut(lock) else {
                    return false;
                };
                let (Some(touch_at), false) = (queue.touch_at, queue.calls.is_empty()) else {
                    queues.remove(lock);
                    return false;
                };
                let now = Instant::now();
                if touch_at <= now {
                    queue.touch_at = Some(now + interval);
                    return true;
                }
                (touch_at, Arc::clone(&queue.changed))
            };
            tokio::select! {
                biased;
                () = changed.notified() => {}
                () = tokio::time::sleep_until(touch_at) => {}
            }
        }
    }

    /// Returns true if a call receives queue updates and the last snapshot is older than
    /// `SNAPSHOT_INTERVAL`. The caller must then read a snapshot.
    pub(in crate::broker) fn snapshot_due(&self, lock: &LockKey) -> bool {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(lock) else {
            return false;
        };
        let is_old = |at: Instant| at.elapsed() >= SNAPSHOT_INTERVAL;
        let is_due = queue.snapshot.has_receivers() && queue.snapshot_at.is_none_or(is_old);
        if is_due {
            queue.snapshot_at = Some(Instant::now());
        }
        is_due
    }

    /// Publishes a snapshot of a lock.
    pub(in crate::broker) fn publish_snapshot(&self, lock: &LockKey, state: LockState) {
        if let Some(queue) = self.queues.lock().get_mut(lock) {
            queue.snapshot.send(state);
        }
    }
}

impl LockQueue {
    fn set_queued_at(&mut self, acquire: &AcquireCommand, queued_at: Option<Instant>) {
        let waiters = self.calls.get_mut(&acquire.request);
        for waiter in waiters.into_iter().flatten() {
            if waiter.attempt == acquire.attempt {
                waiter.queued_at = queued_at;
            }
        }
    }

    /// Records the era in which the store answered for the lock. In a new era the store may have
    /// lost queue positions, so that every call of the lock is signalled to send `acquire` again.
    fn record_era(&mut self, era: Option<EraId>) {
        if era.is_some() && self.era != era && std::mem::replace(&mut self.era, era).is_some() {
            self.rejoin();
        }
    }

    fn rejoin(&self) {
        for waiter in self.calls.values().flatten() {
            let _ = waiter.signals.try_send(Signal::Rejoin);
        }
    }
}

impl Registration {
    /// Subscribes to the snapshots of the lock. The latest snapshot is available at once.
    pub(in crate::broker) fn subscribe_snapshots(&self) -> Option<SnapshotReceiver> {
        let queues = self.waiters.queues.lock();
        Some(queues.get(&self.lock)?.snapshot.subscribe())
    }

    /// Waits for the next signal. Cancel safe.
    pub(in crate::broker) async fn signal(&mut self) -> Signal {
        match self.signals.recv().await {
            Some(signal) => signal,
            // Unreachable in practice: the registry keeps the sender as long as this registration
            // exists.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut queues = self.waiters.queues.lock();
        let Some(queue) = queues.get_mut(&self.lock) else {
            return;
        };
        if let Some(calls) = queue.calls.get_mut(&self.request) {
            calls.retain(|call| call.attempt != self.attempt);
            if calls.is_empty() {
                queue.calls.remove(&self.request);
            }
        }
        if !queue.calls.is_empty() {
            return;
        }
        match queue.touch_at {
            Some(_) => queue.changed.notify_one(),
            None => drop(queues.remove(&self.lock)),
        }
    }
}

/// Returns the time for which a touch reports a grant to the call: the expiry of the lease, on a
/// clock that runs slower than that of the store by a fifth. The limit of spans may cut the validity
/// of the lease.
fn grant_reported_for(acquire: &AcquireCommand) -> Duration {
    let validity = acquire.options.effective_ttl(acquire.ttl);
    let lock_delay_ms = acquire.options.lock_delay_ms;
    let validity_ms = cut_ttl_ms(validity.as_millis(), lock_delay_ms, SPAN_MIN_MS);
    Duration::from_millis(expiry_ms(validity_ms)) * 5 / 6
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::store::stub::{acquire, lock};

    #[test]
    fn pending_signals_of_a_call_are_bounded() {
        let waiters = Arc::<WaiterRegistry>::default();
        let mut registration = waiters.register(&acquire(&lock("a"), 0));
        for _ in 0..=SIGNALS_MAX {
            waiters.rejoin(&lock("a"));
        }
        let mut received = 0;
        while registration.signal().now_or_never().is_some() {
            received += 1;
        }
        assert_eq!(received, SIGNALS_MAX);
    }
}
