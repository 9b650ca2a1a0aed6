//! Requests and their attempts, for holders and for waiters.

use crate::lock::{AcquireCommand, ArgumentsHash, AttemptId, BrokerId, RequestHash};

/// A request that holds the lock or waits for it. A lease that has entered the lock again has
/// several entries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) request: RequestHash,
    pub(super) arguments: ArgumentsHash,
    pub(super) weight: u32,
    pub(super) attempts: Attempts,
}

/// Attempts of a request that have not been cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Attempts {
    /// Listed attempts, the newest last; at most `attempts_max` of the context.
    listed: Vec<Attempt>,
    /// Broker of the first attempt of a holder that was removed from the full list, or of the first
    /// renewal by a client. The reply to an attempt that is not listed may have been delivered, so a
    /// cancel no longer frees the lock.
    unlisted: Option<BrokerId>,
}

/// One RPC that requests the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attempt {
    id: AttemptId,
    broker: BrokerId,
}

/// Activity of a broker, as recorded by its touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// The broker can receive hand-offs.
    Live,
    /// The broker has been silent, and may come back.
    Silent,
    /// The broker is unknown, or has been silent for too long.
    Gone,
}

impl Entry {
    pub(super) fn new(acquire: &AcquireCommand, broker: BrokerId) -> Self {
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
    /// Adds an attempt as the newest of a holder, unless it is listed already. At most
    /// `attempts_max` attempts are listed; the oldest is removed.
    pub(super) fn add(&mut self, id: AttemptId, broker: BrokerId, attempts_max: usize) {
        if self.contains(id) {
            return;
        }
        if self.listed.len() == attempts_max {
            let oldest = self.listed.remove(0);
            self.unlisted.get_or_insert(oldest.broker);
        }
        self.listed.push(Attempt { id, broker });
    }

    /// Records that the client has received the lease, perhaps by an attempt that is not listed.
    pub(super) fn add_unlisted(&mut self, broker: BrokerId) {
        self.unlisted.get_or_insert(broker);
    }

    /// Adds an attempt as the newest of a waiter, unless it is listed already. Attempts of brokers
    /// that are gone are removed to make room. Returns false if `most` attempts are left.
    pub(super) fn add_waiting(
        &mut self,
        id: AttemptId,
        broker: BrokerId,
        attempts_max: usize,
        presence: impl Fn(BrokerId) -> Presence,
    ) -> bool {
        if self.contains(id) {
            return true;
        }
        if self.listed.len() == attempts_max {
            let is_gone = |attempt: &Attempt| presence(attempt.broker) == Presence::Gone;
            self.listed.retain(|attempt| !is_gone(attempt));
        }
        let has_room = self.listed.len() < attempts_max;
        if has_room {
            self.listed.push(Attempt { id, broker });
        }
        has_room
    }

    /// Removes an attempt and returns true if the request has other attempts. Returns `None` if the
    /// attempt is not listed.
    pub(super) fn remove(&mut self, id: AttemptId) -> Option<bool> {
        let index = self.listed.iter().position(|attempt| attempt.id == id)?;
        self.listed.remove(index);
        Some(!self.listed.is_empty() || self.unlisted.is_some())
    }

    /// Returns the broker of the newest attempt, which is the broker of the waiter or holder.
    pub(super) fn broker(&self) -> Option<BrokerId> {
        let newest = self.listed.last().map(|attempt| attempt.broker);
        newest.or(self.unlisted)
    }

    /// Returns the brokers of all listed attempts, the newest first.
    pub(super) fn brokers(&self) -> impl Iterator<Item = BrokerId> {
        self.listed.iter().rev().map(|attempt| attempt.broker)
    }

    /// Makes the newest attempt of `broker` the newest of all, and removes the attempts of brokers
    /// that are gone.
    pub(super) fn move_to_broker(
        &mut self,
        broker: BrokerId,
        presence: impl Fn(BrokerId) -> Presence,
    ) {
        let is_gone = |attempt: &Attempt| presence(attempt.broker) == Presence::Gone;
        self.listed.retain(|attempt| !is_gone(attempt));
        let of_broker = |attempt: &Attempt| attempt.broker == broker;
        if let Some(index) = self.listed.iter().rposition(of_broker) {
            self.listed[index..].rotate_left(1);
        }
    }

    fn contains(&self, id: AttemptId) -> bool {
        self.listed.iter().any(|attempt| attempt.id == id)
    }
}
