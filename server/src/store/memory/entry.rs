//! One request at a lock: what it asks for, and which RPCs ask for it, at which brokers.

use crate::lock::{Acquire, ArgumentsHash, AttemptId, BrokerId, RequestHash};

/// A request that holds or waits. A lease that entered its lock several times has several.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) request: RequestHash,
    pub(super) arguments: ArgumentsHash,
    pub(super) weight: u32,
    pub(super) attempts: Attempts,
}

/// The attempts of a request that nobody has taken back.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts {
    /// Newest last; at most `attempts_max` of the context.
    listed: Vec<Attempt>,
    /// The broker of the first attempt of a holder that the list had no room for. The answer to that
    /// attempt may have been delivered, so no cancel frees the lock any more.
    unlisted: Option<BrokerId>,
}

/// One RPC that asks for the lock.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    id: AttemptId,
    broker: BrokerId,
}

/// Whether a broker looks after its waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It can be handed the lock.
    Live,
    /// It was silent, or did not claim its last hand-off, and may come back.
    Silent,
    /// It is unknown, or was silent for too long.
    Gone,
}

impl Entry {
    pub(super) fn new(acquire: &Acquire, broker: BrokerId) -> Self {
        let first = Attempt {
            id: acquire.attempt,
            broker,
        };
        Self {
            request: acquire.request,
            arguments: acquire.arguments,
            weight: acquire.mode.weight(),
            attempts: Attempts {
                listed: vec![first],
                unlisted: None,
            },
        }
    }
}

impl Attempts {
    /// Adds a newest attempt to those of a holder, unless it is known. `most` are listed.
    pub(super) fn add(&mut self, id: AttemptId, broker: BrokerId, most: usize) {
        if self.knows(id) {
            return;
        }
        if self.listed.len() == most {
            let oldest = self.listed.remove(0);
            self.unlisted.get_or_insert(oldest.broker);
        }
        self.listed.push(Attempt { id, broker });
    }

    /// Adds a newest attempt to those of a waiter, unless it is known. The attempts of brokers that are
    /// gone make room. Whether there was any among `most`.
    pub(super) fn add_waiting(
        &mut self,
        id: AttemptId,
        broker: BrokerId,
        most: usize,
        presence: impl Fn(BrokerId) -> Presence,
    ) -> bool {
        if self.knows(id) {
            return true;
        }
        if self.listed.len() == most {
            let is_gone = |attempt: &Attempt| presence(attempt.broker) == Presence::Gone;
            self.listed.retain(|attempt| !is_gone(attempt));
        }
        let has_room = self.listed.len() < most;
        if has_room {
            self.listed.push(Attempt { id, broker });
        }
        has_room
    }

    /// Takes an attempt back; whether others are left. `None` if it was not there.
    pub(super) fn remove(&mut self, id: AttemptId) -> Option<bool> {
        let index = self.listed.iter().position(|attempt| attempt.id == id)?;
        self.listed.remove(index);
        Some(!self.listed.is_empty() || self.unlisted.is_some())
    }

    /// The broker of the newest attempt: whose waiter or holder this is.
    pub(super) fn broker(&self) -> Option<BrokerId> {
        let newest = self.listed.last().map(|attempt| attempt.broker);
        newest.or(self.unlisted)
    }

    /// The brokers of all attempts, the newest first.
    pub(super) fn brokers(&self) -> impl Iterator<Item = BrokerId> {
        self.listed.iter().rev().map(|attempt| attempt.broker)
    }

    /// Makes the newest attempt of this broker the newest of all, and drops those of brokers that are gone.
    pub(super) fn hand_to(&mut self, broker: BrokerId, presence: impl Fn(BrokerId) -> Presence) {
        let is_gone = |attempt: &Attempt| presence(attempt.broker) == Presence::Gone;
        self.listed.retain(|attempt| !is_gone(attempt));
        let of_broker = |attempt: &Attempt| attempt.broker == broker;
        if let Some(index) = self.listed.iter().rposition(of_broker) {
            self.listed[index..].rotate_left(1);
        }
    }

    fn knows(&self, id: AttemptId) -> bool {
        self.listed.iter().any(|attempt| attempt.id == id)
    }
}
