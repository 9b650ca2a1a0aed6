//! The holder, and what a record shows of itself.

use super::{attempts::Attempts, queue::Queue, record::Record};
use crate::lock::{
    ArgumentsHash, Contention, FencingToken, Grant, Holder, LeaseId, LeaseRef, LockState, Owner,
    RequestHash, SHOWN_MAX, Ttl, Waiting, expiry_ms,
};

#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease_id: LeaseId,
    pub(super) request: RequestHash,
    pub(super) arguments: ArgumentsHash,
    pub(super) attempts: Attempts,
    pub(super) owner: Owner,
    pub(super) fencing_token: FencingToken,
    pub(super) ttl_ms: u64,
    pub(super) acquired_ms: u64,
    pub(super) expires_ms: u64,
    /// The place in line that a provisional hand-off falls back to.
    pub(super) place: Option<u64>,
}

impl Held {
    pub(super) fn is(&self, lease: &LeaseRef) -> bool {
        (self.lease_id, self.fencing_token) == (lease.lease_id, lease.fencing_token)
    }

    /// Renews, and claims a provisional hand-off, which gives up its place in line. Never shortens.
    pub(super) fn extend(&mut self, queue: &mut Queue, now: u64, ttl: Option<Ttl>) -> Grant {
        if self.place.take().is_some() {
            queue.remove(self.request);
        }
        self.ttl_ms = ttl.map_or(self.ttl_ms, Ttl::as_millis);
        self.expires_ms = self.expires_ms.max(now + expiry_ms(self.ttl_ms));
        self.grant()
    }

    pub(super) fn grant(&self) -> Grant {
        Grant {
            fencing_token: self.fencing_token,
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
            fencing_token: held.fencing_token,
            since_ms: held.acquired_ms,
            remaining_ms: held.expires_ms - now,
        });
        Contention {
            holder,
            queue_length: self.queue.len(),
        }
    }
}
