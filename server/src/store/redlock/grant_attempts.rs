//! Grants to waiting calls, with the attempt that the nodes store for each grant.
//!
//! A waiting call sends requests to the nodes repeatedly, each time as a new attempt, so that the
//! cancel of a failed attempt never affects a later one.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use crate::{
    lock::{AttemptId, BrokerId, EXCLUSIVE_WEIGHT, FencingToken, LockKey, RequestHash},
    store::HandOff,
};

/// All grants that can still be cancelled.
#[derive(Default)]
pub(super) struct GrantAttempts {
    by_lock: HashMap<LockKey, Vec<GrantAttempt>>,
    /// End times of the records in the order of their insertion, which is nearly the order of the
    /// times.
    ends: VecDeque<(Instant, LockKey, AttemptId)>,
}

/// Record of one grant.
pub(super) struct GrantAttempt {
    pub(super) request: RequestHash,
    pub(super) token: FencingToken,
    /// Attempt that the nodes store for the grant.
    pub(super) granted_attempt: AttemptId,
    /// Attempts of the call that wait for the grant.
    pub(super) attempts: Vec<AttemptId>,
}

impl GrantAttempts {
    /// Records a grant until `until`. After that time the nodes have removed the grant, unless its
    /// caller has received it.
    pub(super) fn record(&mut self, lock: &LockKey, grant: GrantAttempt, until: Instant) {
        self.remove_expired(Instant::now());
        self.ends
            .push_back((until, lock.clone(), grant.granted_attempt));
        self.by_lock.entry(lock.clone()).or_default().push(grant);
    }

    /// Removes an attempt, and returns the attempt to cancel at the nodes. Returns `None` if other
    /// attempts share the grant.
    pub(super) fn remove_attempt(
        &mut self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Option<AttemptId> {
        let mut grants = self.by_lock.get_mut(lock).into_iter().flatten();
        let has_attempt = |grant: &&mut GrantAttempt| {
            grant.request == request && grant.attempts.contains(&attempt)
        };
        let Some(grant) = grants.find(has_attempt) else {
            return Some(attempt);
        };
        if grant.attempts.len() > 1 {
            grant.attempts.retain(|other| *other != attempt);
            return None;
        }
        // The record is kept, because the cancel may fail and be repeated.
        Some(grant.granted_attempt)
    }

    /// Returns the grants that calls of this broker may not have received.
    pub(super) fn recent_grants(&self, lock: &LockKey, broker: BrokerId) -> Vec<HandOff> {
        let grant = self.by_lock.get(lock).into_iter().flatten();
        let hand_off = |grant: &GrantAttempt| HandOff {
            broker,
            request: grant.request,
            fencing_token: grant.token,
            limit: EXCLUSIVE_WEIGHT,
            is_provisional: true,
        };
        grant.map(hand_off).collect()
    }

    fn remove_expired(&mut self, now: Instant) {
        while let Some((_, lock, by)) = self.ends.pop_front_if(|(until, ..)| *until <= now) {
            let Some(grant) = self.by_lock.get_mut(&lock) else {
                continue;
            };
            grant.retain(|grant| grant.granted_attempt != by);
            if grant.is_empty() {
                self.by_lock.remove(&lock);
            }
        }
    }
}
