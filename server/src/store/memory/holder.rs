//! The holder, and what a record shows of itself.

use super::{attempts::Attempts, record::Record};
use crate::lock::{
    ArgumentsHash, Contention, FencingToken, Grant, Holder, LeaseId, LockState, Owner, RequestHash,
    SHOWN_MAX, Ttl, Waiting,
};

#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease_id: LeaseId,
    pub(super) request: RequestHash,
    pub(super) arguments: ArgumentsHash,
    pub(super) attempts: Attempts,
    pub(super) owner: Owner,
    pub(super) fencing_token: u64,
    pub(super) ttl_ms: u64,
    pub(super) acquired_ms: u64,
    pub(super) expires_ms: u64,
    /// The place in line that a provisional hand-off falls back to.
    pub(super) place: Option<u64>,
}

impl Held {
    pub(super) fn grant(&self) -> Grant {
        Grant {
            fencing_token: FencingToken::new(self.fencing_token).expect("tokens start above 0"),
            ttl: Ttl::from_stored(self.ttl_ms),
            acquired_ms: self.acquired_ms,
        }
    }
}

impl Record {
    /// See [`Store::get`](crate::store::Store::get).
    pub fn get(&self, now_us: u64) -> LockState {
        let now = now_us / 1_000;
        let waiters = self.queue.waiters().filter(|waiter| waiter.until_ms > now);
        let waiters = waiters.take(SHOWN_MAX).map(|waiter| Waiting {
            owner: waiter.owner.clone(),
            since_ms: waiter.since_ms,
            remaining_ms: waiter.until_ms - now,
        });
        LockState {
            holder: self.contention(now).holder,
            waiters: waiters.collect(),
            queue_length: self.queue.len(),
            last_fencing_token: self.fence,
        }
    }

    pub(super) fn contention(&self, now: u64) -> Contention {
        let held = self
            .holder
            .as_ref()
            .filter(|h| h.place.is_none() && h.expires_ms > now);
        let holder = held.map(|held| Holder {
            lease_id: held.lease_id,
            owner: held.owner.clone(),
            fencing_token: held.grant().fencing_token,
            since_ms: held.acquired_ms,
            remaining_ms: held.expires_ms - now,
        });
        Contention {
            holder,
            queue_length: self.queue.len(),
        }
    }
}
