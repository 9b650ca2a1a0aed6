//! Counts of the events of a world, which show that a run has reached them.

use leasehold_server::store::Acquired;

use super::properties::Observations;
use crate::differential::steps::StoreReply;

impl Observations {
    /// Counts a reply of the store, and its hand-offs.
    pub(super) fn count_reply(&mut self, reply: &StoreReply) {
        self.count(match reply.rejection() {
            Some(_) => "not executed",
            None => event_of(reply),
        });
        for hand_off in reply.hand_offs() {
            self.count(match hand_off.is_provisional {
                true => "provisional hand-off",
                false => "hand-off",
            });
        }
    }

    /// Counts an event.
    pub(super) fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }
}

fn event_of(reply: &StoreReply) -> &'static str {
    match reply {
        StoreReply::Acquire(Ok(outcome)) => event_of_acquire(&outcome.reply),
        StoreReply::Touch(Ok(touched)) if touched.reply.rejoin => "touched: rejoin",
        StoreReply::Touch(_) => "touched",
        StoreReply::Renew(_) => "renewed",
        StoreReply::Release(_) => "released",
        StoreReply::Cancel(_) => "rolled back",
        StoreReply::SetLimit(_) => "limit set",
        StoreReply::SetClosure(_) => "closed or opened by an operator",
        StoreReply::Acquire(_)
        | StoreReply::Vote(_)
        | StoreReply::Attach(_)
        | StoreReply::Revoke(_)
        | StoreReply::Get(_)
        | StoreReply::Check(_)
        | StoreReply::Failed(_) => "other",
    }
}

fn event_of_acquire(acquired: &Acquired) -> &'static str {
    match acquired {
        Acquired::Granted(_) => "granted",
        Acquired::Queued { .. } => "queued",
        Acquired::Held(_) => "held",
        Acquired::Ended => "ended",
        Acquired::Cancelled => "cancelled before it arrived",
        Acquired::TooManyAttempts => "too many attempts",
        Acquired::QueueFull => "queue full",
        Acquired::LimitMismatch { .. } => "limit mismatch",
        Acquired::StaleAttach
        | Acquired::UpgradeDenied
        | Acquired::TooManyEntries
        | Acquired::NotFound
        | Acquired::RequestIdReused => "rejected",
    }
}
