//! What others may watch: the changes of a lock, noted where they are made.

use super::{holders::Held, queue::Waiter, record::Record};
use crate::{
    lock::{LeaseId, Mode},
    store::{Change, ChangeKind},
};

/// Changes that nobody has taken yet.
#[derive(Debug, Default)]
pub struct Watched {
    /// Somebody watches.
    pub is_on: bool,
    /// The changes, in their order.
    pub changes: Vec<Change>,
}

impl Record {
    /// A hand-off that another broker had to claim is a grant from then on.
    pub(super) fn note_claim(&mut self, lease_id: LeaseId, now: u64) {
        let held = self.holders.by_lease(lease_id);
        if let Some(change) =
            held.map(|held| of_holder(ChangeKind::Acquired, held, self.limit, now))
        {
            self.note(change);
        }
    }

    /// One whose last call was taken back. Nobody was told of a hand-off that was not claimed.
    pub(super) fn note_undone(&mut self, freed: &Held, now: u64) {
        let kind = match freed.place {
            Some(_) => ChangeKind::Abandoned,
            None => ChangeKind::Released,
        };
        self.note_holder(kind, freed, now);
    }

    pub(super) fn note_holder(&mut self, kind: ChangeKind, held: &Held, now: u64) {
        self.note(of_holder(kind, held, self.limit, now));
    }

    pub(super) fn note_waiter(&mut self, kind: ChangeKind, waiter: &Waiter, now: u64) {
        self.note(Change {
            kind,
            lease_id: None,
            owner: waiter.owner.clone(),
            mode: Mode::from_stored(waiter.entry.weight, self.limit),
            fencing_token: 0,
            since_ms: waiter.since_ms,
            remaining_ms: waiter.until_ms.saturating_sub(now),
        });
    }

    fn note(&mut self, change: Change) {
        if self.watched.is_on {
            self.watched.changes.push(change);
        }
    }
}

fn of_holder(kind: ChangeKind, held: &Held, limit: u32, now: u64) -> Change {
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
