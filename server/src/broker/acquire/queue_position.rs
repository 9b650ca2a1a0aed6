//! Queue position of a call on a stream, and the updates of it that the client receives.

use std::sync::Arc;

use super::StreamCallContext;
use crate::{
    broker::{
        lease_stream::{EventSink, QueueUpdate, StreamEvent},
        waiters::SnapshotReceiver,
    },
    lock::{AcquireCommand, CONTENTION_HOLDERS_MAX, LeaseId, LockKey, LockState, Recovery, Ttl},
    store::Store,
};

/// Queue position of one call.
pub(super) struct QueuePositionTracker {
    call_id: i64,
    lock: LockKey,
    ttl: Ttl,
    events: EventSink,
    snapshots: SnapshotReceiver,
    store: Arc<dyn Store>,
    /// Ordering number of the request in its queue, by which the request is found among the waiters
    /// of a snapshot. `None` before the request is queued.
    sequence: Option<u64>,
    /// Lowest position so far. New waiters join behind this one, so the position never rises.
    position: u32,
    last_sent: Option<SentUpdate>,
}

/// The parts of an update by which the next one is found to differ.
#[derive(Debug, PartialEq, Eq)]
struct SentUpdate {
    position: u32,
    holders: Vec<LeaseId>,
    /// End of the closure, in milliseconds since 1970.
    closed_until_ms: Option<u64>,
    recovery: Option<Recovery>,
}

impl QueuePositionTracker {
    /// Creates the position of a call that is not queued yet.
    pub(super) fn new(
        context: &StreamCallContext,
        acquire: &AcquireCommand,
        snapshots: SnapshotReceiver,
        store: Arc<dyn Store>,
    ) -> Self {
        Self {
            call_id: context.call_id,
            lock: acquire.lock.clone(),
            ttl: acquire.ttl,
            events: context.events.clone(),
            snapshots,
            store,
            sequence: None,
            position: u32::MAX,
            last_sent: None,
        }
    }

    /// Waits for the next snapshot of the lock and sends the client what has changed. Cancel safe.
    pub(super) async fn next_snapshot(&mut self) {
        self.snapshots.changed().await;
        self.observe_latest();
    }

    /// Records that the request was queued, with its position if that is known.
    pub(super) fn on_queued(&mut self, sequence: Option<u64>, position: Option<u32>) {
        if sequence != self.sequence {
            (self.sequence, self.position) = (sequence, u32::MAX);
        }
        if let Some(position) = position {
            self.position = self.position.min(position);
        }
        self.observe_latest();
    }

    fn observe_latest(&mut self) {
        if let Some(state) = self.snapshots.latest() {
            self.observe(&state);
        }
    }

    /// Sends the client of a queued request an update if the position, the holders, the closure or
    /// the recovery of the store have changed.
    fn observe(&mut self, state: &LockState) {
        let Some(sequence) = self.sequence else {
            return;
        };
        self.position = self.position.min(position_in(state, sequence));
        let position = self.position;
        let holders = state.holders.iter().take(CONTENTION_HOLDERS_MAX);
        let recovery = self.store.recovery_of(&self.lock);
        let update = SentUpdate {
            position,
            holders: holders.clone().map(|holder| holder.lease_id).collect(),
            closed_until_ms: state.closure.as_ref().map(|active| active.closure.until_ms),
            recovery: recovery.map(|active| active.recovery),
        };
        if self.last_sent.as_ref() == Some(&update) {
            return;
        }
        self.last_sent = Some(update);
        // Ignored: the stream detects that its client has disconnected.
        (self.events)(StreamEvent::Queued(Box::new(QueueUpdate {
            call_id: self.call_id,
            lock: self.lock.clone(),
            ttl: self.ttl,
            position,
            queue_length: state.queue_length.max(position),
            holders: holders.cloned().collect(),
            closure: state.closure.clone(),
            recovery,
        })));
    }
}

/// Returns the exact position among the waiters of the snapshot. Behind these, the position is
/// an estimate for a queue that no waiter has left.
fn position_in(state: &LockState, sequence: u64) -> u32 {
    let waiters = &state.waiters;
    let index = waiters.partition_point(|waiter| waiter.sequence < sequence);
    let offset = match waiters.last() {
        Some(last) if index == waiters.len() => sequence - last.sequence,
        Some(_) | None => 1,
    };
    let position = u64::try_from(index)
        .unwrap_or(u64::MAX)
        .saturating_add(offset);
    u32::try_from(position).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::{
        broker::waiters::SnapshotSender,
        lock::{LockName, Mode, Namespace, Owner, RecoveryCause, WaiterInfo},
        store::{RecoveryState, stub::StubStore},
    };

    fn state(sequences: &[u64], queue_length: u32) -> LockState {
        let waiters = sequences.iter().map(|&sequence| WaiterInfo {
            sequence,
            owner: Owner::default(),
            mode: Mode::Exclusive,
            since_ms: 0,
            remaining_ms: 1,
        });
        LockState {
            holders: vec![],
            holder_count: 0,
            waiters: waiters.collect(),
            queue_length,
            closure: None,
            permit_usage: None,
            last_fencing_token: 1,
        }
    }

    /// Returns the tracker of a call that is not queued yet, and the updates that it sends.
    fn tracker(store: Arc<dyn Store>) -> (QueuePositionTracker, Arc<Mutex<Vec<QueueUpdate>>>) {
        let updates = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&updates);
        let events: EventSink = Arc::new(move |message| {
            if let StreamEvent::Queued(update) = message {
                recorded.lock().push(*update);
            }
            true
        });
        let namespace = Namespace::parse("").expect("the default");
        let tracker = QueuePositionTracker {
            call_id: 1,
            lock: LockKey::new(namespace, LockName::parse("a").expect("a name")),
            ttl: Ttl::from_stored(1_000),
            events,
            snapshots: SnapshotSender::default().subscribe(),
            store,
            sequence: None,
            position: u32::MAX,
            last_sent: None,
        };
        (tracker, updates)
    }

    #[test]
    fn a_position_is_sent_when_it_changes_and_never_increases() {
        let (mut tracker, updates) = tracker(Arc::new(StubStore::default()));
        tracker.on_queued(Some(9), Some(6));
        // A snapshot from before the request was queued. Two waiters have left the queue since.
        tracker.observe(&state(&[2, 4, 5], 5));
        tracker.observe(&state(&[2, 4, 5], 5));
        tracker.observe(&state(&[4, 5, 9, 10], 4));
        tracker.on_queued(Some(9), None);
        tracker.observe(&state(&[2, 4, 5, 9], 4));
        tracker.observe(&state(&[9], 1));
        tracker.on_queued(Some(12), Some(3));
        tracker.observe(&state(&[9, 10, 12], 3));
        let updates = updates.lock();
        let updates = updates.iter();
        let updates = updates.map(|update| (update.position, update.queue_length));
        let expected = [(6, 6), (3, 4), (1, 1), (3, 3)];
        assert_eq!(updates.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_position_is_sent_when_a_recovery_begins_changes_or_ends() {
        let store = Arc::new(StubStore::default());
        let (mut tracker, updates) = tracker(Arc::clone(&store) as Arc<dyn Store>);
        let active = |until_ms, now_ms| {
            let recovery = Recovery {
                cause: Some(RecoveryCause::Restarted),
                since_ms: Some(1),
                until_ms,
            };
            recovery.active_at(now_ms)
        };
        tracker.on_queued(Some(9), Some(1));
        let recoveries = [
            None,
            active(90, 10),
            active(90, 20),
            active(95, 30),
            None,
            None,
        ];
        for recovery in recoveries {
            store.set_recovery(RecoveryState::of_server(String::new, recovery));
            tracker.observe(&state(&[9], 1));
        }
        let updates = updates.lock();
        let reported = updates.iter().map(|update| update.recovery);
        let expected = [None, active(90, 10), active(95, 30), None];
        assert_eq!(reported.collect::<Vec<_>>(), expected);
    }
}
