//! Grants that calls got while they waited: under which attempt the nodes know them.
//!
//! A call that waits asks the nodes often, each time as a new attempt: what is taken back of one that
//! failed must never touch a later one.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use crate::{
    lock::{AttemptId, BrokerId, FencingToken, LockKey, RequestHash},
    store::HandOff,
};

/// The grants, until nobody can take them back any more.
#[derive(Default)]
pub(super) struct AllTaken {
    by_lock: HashMap<LockKey, Vec<Taken>>,
    /// In the order in which they came, which is nearly that of their ends.
    ends: VecDeque<(Instant, LockKey, AttemptId)>,
}

/// One grant.
pub(super) struct Taken {
    pub(super) request: RequestHash,
    pub(super) token: FencingToken,
    /// The attempt that the nodes know.
    pub(super) by: AttemptId,
    /// Those that wait for it.
    pub(super) attempts: Vec<AttemptId>,
}

/// What an attempt that is taken back means to the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeBack {
    /// Nothing: others share the grant.
    Nothing,
    /// That this one is taken back.
    Attempt(AttemptId),
}

impl AllTaken {
    /// Notes a grant. After `until` the nodes have forgotten it, unless its caller knows of it.
    pub(super) fn note(&mut self, lock: &LockKey, taken: Taken, until: Instant) {
        self.forget(Instant::now());
        self.ends.push_back((until, lock.clone(), taken.by));
        self.by_lock.entry(lock.clone()).or_default().push(taken);
    }

    /// Takes an attempt back.
    pub(super) fn leave(
        &mut self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> TakeBack {
        let all = self.by_lock.get_mut(lock).into_iter().flatten();
        let mut of_request = all.filter(|taken| taken.request == request);
        let Some(taken) = of_request.find(|taken| taken.attempts.contains(&attempt)) else {
            return TakeBack::Attempt(attempt);
        };
        if taken.attempts.len() > 1 {
            taken.attempts.retain(|other| *other != attempt);
            return TakeBack::Nothing;
        }
        // It stays known: taking it back may fail, and be repeated.
        TakeBack::Attempt(taken.by)
    }

    /// What calls of this broker may not have heard of.
    pub(super) fn held(&self, lock: &LockKey, broker: BrokerId) -> Vec<HandOff> {
        let taken = self.by_lock.get(lock).into_iter().flatten();
        let hand_off = |taken: &Taken| HandOff {
            broker,
            request: taken.request,
            fencing_token: taken.token,
            provisional: true,
        };
        taken.map(hand_off).collect()
    }

    fn forget(&mut self, now: Instant) {
        while let Some((_, lock, by)) = self.ends.pop_front_if(|(until, ..)| *until <= now) {
            let Some(taken) = self.by_lock.get_mut(&lock) else {
                continue;
            };
            taken.retain(|taken| taken.by != by);
            if taken.is_empty() {
                self.by_lock.remove(&lock);
            }
        }
    }
}
