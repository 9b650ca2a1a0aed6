//! Changes of a lock for watches, recorded where they are made.

use super::{holders::HolderSlot, queue::Waiter, record::Record};
use crate::{
    lock::{Closure, LeaseId, Mode},
    store::{Change, ChangeKind},
};

/// Changes that have not been sent yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ChangeLog {
    /// True if at least one broker watches.
    pub is_on: bool,
    /// Changes in the order in which they were made.
    pub changes: Vec<Change>,
}

impl Record {
    /// Records the claim of a hand-off by another broker, which makes the hand-off a grant.
    pub(super) fn record_claim(&mut self, lease_id: LeaseId, now: u64) {
        let held = self.holders.by_lease(lease_id);
        if let Some(change) =
            held.map(|held| of_holder(ChangeKind::Acquired, held, self.limit, now))
        {
            self.record_change(change);
        }
    }

    /// Records the removal of a holder whose last attempt was cancelled. An unclaimed hand-off was
    /// never announced as a grant, so its waiter has left the queue.
    pub(super) fn record_rollback(&mut self, freed: &HolderSlot, now: u64) {
        let kind = match freed.queue_sequence {
            Some(_) => ChangeKind::Abandoned,
            None => ChangeKind::Released,
        };
        self.record_holder(kind, freed, now);
    }

    pub(super) fn record_holder(&mut self, kind: ChangeKind, held: &HolderSlot, now: u64) {
        self.record_change(of_holder(kind, held, self.limit, now));
    }

    pub(super) fn record_waiter(&mut self, kind: ChangeKind, waiter: &Waiter, now: u64) {
        self.record_change(Change {
            kind,
            lease_id: None,
            owner: waiter.owner.clone(),
            mode: Mode::from_stored(waiter.entry.weight, self.limit),
            fencing_token: 0,
            since_ms: waiter.since_ms,
            remaining_ms: waiter.until_ms.saturating_sub(now),
        });
    }

    /// Records that the lock was closed or opened.
    pub(super) fn record_closure(&mut self, kind: ChangeKind, closure: &Closure, now: u64) {
        self.record_change(Change {
            kind,
            lease_id: None,
            owner: closure.owner.clone(),
            mode: Mode::Exclusive,
            fencing_token: 0,
            since_ms: now,
            remaining_ms: closure.until_ms.saturating_sub(now),
        });
    }

    fn record_change(&mut self, change: Change) {
        if self.change_log.is_on {
            self.change_log.changes.push(change);
        }
    }
}

fn of_holder(kind: ChangeKind, held: &HolderSlot, limit: u32, now: u64) -> Change {
    Change {
        kind,
        lease_id: Some(held.lease_id),
        owner: held.owner.clone(),
        mode: Mode::from_stored(held.weight(), limit),
        fencing_token: held.fencing_token.get(),
        since_ms: held.acquired_ms,
        remaining_ms: held.expires_ms.saturating_sub(now),
    }
}
