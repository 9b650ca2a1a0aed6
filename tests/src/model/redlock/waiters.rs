//! Calls in the local queue of a broker. The same steps as those of `redlock::queue_worker` in the
//! server, except for the order of the calls.

use leasehold_server::{
    lock::{AcquireCommand, AttemptId},
    store::{StoreError, redlock::model::LostVote},
};

use super::{
    broker::{Received, WaiterGrant},
    calls::JoinReply,
    election::{Elected, Election, RoundTimeout},
    world::RedlockWorld,
};
use crate::model::{
    broker::GrantedLock,
    keys::{AttemptKey, TaskKey},
};

/// Time for which a call that does not wait tries again while several calls each hold the lock at
/// some nodes.
pub(super) const TRY_TIMEOUT_US: u64 = 500_000;

/// A call in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// Command of the newest attempt.
    pub acquire: AcquireCommand,
    pub until_us: u64,
    /// True if the call has no reply yet.
    pub needs_reply: bool,
    /// True for a call that does not wait.
    pub is_try: bool,
    /// The acquisition in progress.
    pub election: Option<Election>,
    /// True if the call has left the queue during an acquisition.
    pub has_left: bool,
    /// Number of acquisitions.
    pub tries: u8,
}

impl Waiter {
    #[must_use]
    pub fn new(acquire: AcquireCommand, until_us: u64, needs_reply: bool) -> Self {
        Self {
            is_try: acquire.wait_ms == 0,
            acquire,
            until_us,
            needs_reply,
            election: None,
            has_left: false,
            tries: 0,
        }
    }
}

impl RedlockWorld {
    /// Returns true if calls wait at the broker.
    pub(super) fn has_waiters(&self, broker: usize) -> bool {
        let mut waiters = self.brokers[broker].waiters.values();
        waiters.any(|waiter| !waiter.has_left)
    }

    /// Requests the lock for a call in the queue. Returns false if the call does not wait.
    pub(super) fn try_waiter(&mut self, broker: usize, attempt: AttemptKey) -> bool {
        let now_us = self.now_us;
        let waiters = &mut self.brokers[broker].waiters;
        let Some(waiter) = waiters.get_mut(&attempt) else {
            return false;
        };
        if waiter.election.is_some() {
            return false;
        }
        if waiter.until_us <= now_us && !waiter.needs_reply {
            waiters.remove(&attempt);
            return true;
        }
        let mut acquire = waiter.acquire.clone();
        // A late cancel of an earlier try must not affect this try.
        if !waiter.needs_reply || acquire.rejoin || waiter.is_try {
            waiter.tries += 1;
            acquire.attempt = attempt.try_id(waiter.tries);
        }
        let election = self.start_election(broker, TaskKey::Election(attempt), acquire, true);
        if let Some(waiter) = self.brokers[broker].waiters.get_mut(&attempt) {
            waiter.election = Some(election);
        }
        true
    }

    /// Removes a call from the queue. Returns false if it does not wait.
    pub(super) fn leave_queue(&mut self, broker: usize, attempt: AttemptKey) -> bool {
        let waiters = &mut self.brokers[broker].waiters;
        let Some(waiter) = waiters.get_mut(&attempt).filter(|waiter| !waiter.has_left) else {
            return false;
        };
        match waiter.election {
            Some(_) => waiter.has_left = true,
            None => drop(waiters.remove(&attempt)),
        }
        true
    }

    /// Handles a vote for a call in the queue.
    pub(super) fn on_waiter_vote(
        &mut self,
        broker: usize,
        attempt: AttemptKey,
        received: Received<'_>,
    ) {
        let key = TaskKey::Election(attempt);
        let Some(mut election) = self.take_election(broker, attempt) else {
            return;
        };
        let elected = self.on_vote(broker, key, &mut election, received);
        self.continue_waiter(broker, attempt, election, elected);
    }

    /// Ends the wait for votes for a call in the queue, if the time of the round is up.
    pub(super) fn time_out_waiter_round(&mut self, broker: usize, attempt: AttemptKey) -> bool {
        let Some(mut election) = self.take_election(broker, attempt) else {
            return false;
        };
        let key = TaskKey::Election(attempt);
        let timeout = self.time_out_round(broker, key, &mut election);
        let is_due = timeout != RoundTimeout::NotDue;
        let elected = match timeout {
            RoundTimeout::Elected(elected) => Some(elected),
            RoundTimeout::NotDue | RoundTimeout::NextRound => None,
        };
        self.continue_waiter(broker, attempt, election, elected);
        is_due
    }

    fn take_election(&mut self, broker: usize, attempt: AttemptKey) -> Option<Election> {
        let waiter = self.brokers[broker].waiters.get_mut(&attempt)?;
        waiter.election.take()
    }

    fn continue_waiter(
        &mut self,
        broker: usize,
        attempt: AttemptKey,
        election: Election,
        elected: Option<Elected>,
    ) {
        let Some(elected) = elected else {
            if let Some(waiter) = self.brokers[broker].waiters.get_mut(&attempt) {
                waiter.election = Some(election);
            }
            return;
        };
        let waiter = &self.brokers[broker].waiters[&attempt];
        let (has_left, needs_reply) = (waiter.has_left, waiter.needs_reply);
        let is_try = waiter.is_try;
        let rejoins = waiter.acquire.rejoin;
        let is_over = self.now_us >= waiter.until_us;
        if has_left {
            self.brokers[broker].waiters.remove(&attempt);
        }
        match elected {
            Elected::Granted(_) if has_left => {
                for node in 0..self.nodes.len() {
                    let key = TaskKey::Election(attempt);
                    self.cancel_at(broker, key, node, &election.acquire);
                }
            }
            Elected::Granted(granted) => {
                self.hand_off(broker, attempt, election.acquire.attempt, granted);
            }
            Elected::Lost(LostVote::Rejected(rejection)) => {
                self.dismiss(broker, attempt, JoinReply::Rejected(rejection));
            }
            Elected::Failed(StoreError::Recovering { .. }) if rejoins && needs_reply => {
                self.reply_queued(broker, attempt);
            }
            Elected::Failed(error) if needs_reply => {
                self.dismiss(broker, attempt, JoinReply::Failed(error));
            }
            Elected::Failed(_) => {}
            Elected::Lost(LostVote::Contended { is_split }) if is_try => {
                if !is_split || is_over {
                    self.dismiss(broker, attempt, JoinReply::Held);
                }
            }
            Elected::Lost(LostVote::Contended { .. }) if needs_reply => {
                self.reply_queued(broker, attempt);
            }
            Elected::Lost(LostVote::Contended { .. }) => {}
        }
    }

    fn hand_off(
        &mut self,
        broker: usize,
        attempt: AttemptKey,
        granted_attempt: AttemptId,
        granted: GrantedLock,
    ) {
        let waiter = self.brokers[broker].waiters.remove(&attempt);
        let needs_reply = waiter.is_some_and(|waiter| waiter.needs_reply);
        let token = granted.token;
        if granted_attempt != attempt.id() {
            let grant = WaiterGrant {
                token,
                granted_attempt,
            };
            self.brokers[broker].waiter_grants.insert(attempt, grant);
        }
        let reply = JoinReply::Granted(granted);
        let is_delivered = needs_reply && self.on_join_reply(broker, attempt, reply);
        if !is_delivered {
            self.signal_hand_off(broker, attempt.call, token);
        }
    }

    /// Removes a call from the queue. A call that has a reply already repeats its request.
    fn dismiss(&mut self, broker: usize, attempt: AttemptKey, reply: JoinReply) {
        let waiter = self.brokers[broker].waiters.remove(&attempt);
        match waiter {
            Some(waiter) if waiter.needs_reply => {
                self.on_join_reply(broker, attempt, reply);
            }
            Some(_) | None => self.signal_rejoin(broker),
        }
    }

    fn reply_queued(&mut self, broker: usize, attempt: AttemptKey) {
        if let Some(waiter) = self.brokers[broker].waiters.get_mut(&attempt) {
            waiter.needs_reply = false;
            self.on_join_reply(broker, attempt, JoinReply::Queued);
        }
    }
}
