//! Expiry of holders: ends expired leases and reports them, and lapses hand-offs that were not
//! claimed.

use super::{closure::HoldEnd, context::Context, holders::HolderSlot, record::Record};
use crate::{
    lock::{EXPIRED_MS, LeaseId},
    store::{ChangeKind, LeaseEndCause, LeaseEndEvent},
};

impl Record {
    /// Ends the holders that have expired, at most `expirations_max` of the context. The next
    /// command continues.
    pub(super) fn expire(&mut self, context: &Context) {
        let now = context.now();
        for held in self.holders.expire(now, context.bounds.expirations_max) {
            self.end_holder(&held, context);
        }
    }

    /// Ends the lease to which the command applies, if the lease has expired.
    pub(super) fn expire_lease(&mut self, context: &Context, lease_id: LeaseId) {
        let now = context.now();
        let held = self.holders.by_lease(lease_id);
        if held.is_some_and(|held| held.expires_ms <= now)
            && let Some(held) = self.holders.remove(lease_id)
        {
            self.end_holder(&held, context);
        }
    }

    /// Ends the hold of an expired holder. An unclaimed hand-off returns to its queue position, and
    /// its end is not recorded.
    fn end_holder(&mut self, held: &HolderSlot, context: &Context) {
        match held.queue_sequence {
            Some(sequence) => self.queue.return_to_queue(sequence, held),
            None => self.end_lease(held, context),
        }
    }

    /// Ends a lease as if it expired now.
    pub(super) fn expire_now(&mut self, lease_id: LeaseId, context: &Context) {
        if let Some(mut held) = self.remove_holder(lease_id) {
            held.expires_ms = context.now();
            self.end_lease(&held, context);
        }
    }

    fn end_lease(&mut self, held: &HolderSlot, context: &Context) {
        let kind = match held.revoke_reason {
            Some(_) => ChangeKind::Revoked,
            None => ChangeKind::Expired,
        };
        self.record_holder(kind, held, context.now());
        self.end_events.push(end_event(held));
        self.close_after(held, HoldEnd::Expired, context.now());
        self.record_expired(held, context);
    }

    /// Returns true if the lease has expired and its end is retained.
    pub(super) fn was_expired(&self, lease_id: LeaseId, context: &Context) -> bool {
        let expired_max = context.bounds.expired_max;
        self.expired
            .is_recent_and_young(&lease_id, expired_max, context.now(), EXPIRED_MS)
    }

    /// Retains the end of an expired lease, so that repeated commands get the right reply.
    fn record_expired(&mut self, held: &HolderSlot, context: &Context) {
        let (now, expired_max) = (context.now(), context.bounds.expired_max);
        self.expired
            .record(held.lease_id, held.expires_ms, held.revoke_reason.clone());
        self.expired
            .evict(|seq, at, last| seq + expired_max > last && at + EXPIRED_MS > now);
    }
}

/// Returns the reported end of an expired or revoked holder.
fn end_event(held: &HolderSlot) -> LeaseEndEvent {
    let max_hold_ms = held.options.max_hold_ms;
    let is_cut =
        max_hold_ms.is_some_and(|max_hold_ms| held.acquired_ms + max_hold_ms <= held.expires_ms);
    LeaseEndEvent {
        lease_id: held.lease_id,
        owner: held.owner.clone(),
        fencing_token: held.fencing_token.get(),
        held_ms: held.expires_ms.saturating_sub(held.acquired_ms),
        kind: match held.revoke_reason {
            Some(_) => LeaseEndCause::Revoked,
            None if is_cut => LeaseEndCause::MaxHold,
            None => LeaseEndCause::Expired,
        },
        reason: held.revoke_reason.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use crate::{
        lock::{BrokerId, EXPIRED_MAX, LeaseRef, expiry_ms},
        store::{
            Acquired, LeaseRejection, Renewal, Store as _,
            memory::Memory,
            stub::{acquire, lock},
        },
    };

    #[tokio::test(start_paused = true)]
    async fn remembered_expired_leases_are_bounded() {
        let store = Memory::new(Duration::ZERO).connect(BrokerId::random());
        let leases_max = usize::try_from(EXPIRED_MAX).expect("few");
        let mut leases = Vec::new();
        for number in 0..=leases_max {
            let call = acquire(&lock("a"), number);
            let Ok(Acquired::Granted(grant)) = store.acquire(&call).await else {
                panic!("{number} is not granted");
            };
            leases.push(LeaseRef {
                lock: call.lock,
                lease_id: call.lease_id,
                fencing_token: grant.fencing_token,
            });
            if number + 1 >= leases_max {
                advance(Duration::from_millis(expiry_ms(call.ttl.as_millis()))).await;
            }
        }
        let mut remembered = 0;
        for lease in &leases {
            let renewed = store.renew(lease, Renewal::default()).await;
            remembered += usize::from(renewed == Ok(Err(LeaseRejection::Expired)));
        }
        assert_eq!(remembered, leases_max);
    }
}
