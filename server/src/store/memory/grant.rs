//! Grants to waiters when the lock has room.

use super::{
    context::Context,
    holders::HolderSlot,
    queue::{NextWaiter, SkippedWaiters, Waiter},
    record::Record,
};
use crate::{
    lock::{FencingToken, LeaseId, PROVISIONAL_GRANT_MS, Ttl, expiry_ms},
    store::{ChangeKind, HandOff},
};

/// Result of granting the lock to waiters.
pub(super) struct GrantRound {
    pub(super) hand_offs: Vec<HandOff>,
    /// True if the next waiter was not granted the lock, so that new requests must queue behind it.
    pub(super) is_blocked: bool,
    /// True if a waiter of this broker was skipped and must repeat its request: its lease holds the
    /// lock, or it needs more than the limit or a longer span than allowed.
    pub(super) must_repeat: bool,
}

impl Record {
    pub(super) fn remove_holder(&mut self, lease_id: LeaseId) -> Option<HolderSlot> {
        let held = self.holders.remove(lease_id)?;
        if let Some(sequence) = held.queue_sequence {
            self.queue.remove_at(sequence);
        }
        Some(held)
    }

    pub(super) fn fits(&self, context: &Context, weight: u32) -> bool {
        self.closed_until_ms() <= context.now()
            && self.holders.len() < context.bounds.holders_max
            && self.holders.used() + weight <= self.limit
    }

    /// Grants the lock to waiters in the order of the queue while they fit.
    pub(super) fn grant_waiters(&mut self, context: &Context) -> GrantRound {
        let mut advanced = GrantRound {
            hand_offs: Vec::new(),
            is_blocked: self.queue.len() > 0,
            must_repeat: false,
        };
        if !advanced.is_blocked || context.check_era().is_err() {
            return advanced;
        }
        let mut from = 0;
        loop {
            advanced.is_blocked = true;
            if !self.fits(context, 1) {
                return advanced;
            }
            let mut passed = SkippedWaiters::default();
            let holders = &self.holders;
            let holds = |lease_id| holders.by_lease(lease_id).is_some();
            let queue = &mut self.queue;
            let next = queue.next(from, self.limit, context, holds, &mut passed);
            for waiter in passed.removed {
                self.record_waiter(ChangeKind::Abandoned, &waiter, context.now());
            }
            advanced.must_repeat |= passed.must_repeat;
            advanced.is_blocked = next.is_some();
            let Some(next) = next.filter(|next| self.fits(context, next.weight)) else {
                return advanced;
            };
            from = next.sequence + 1;
            advanced.hand_offs.extend(self.hand_off(context, &next));
        }
    }

    fn hand_off(&mut self, context: &Context, next: &NextWaiter) -> Option<HandOff> {
        let waiter = self.queue.hand_off(next, context.broker, context.now())?;
        let request = waiter.entry.request;
        let queue_sequence = next.is_provisional.then_some(next.sequence);
        let fencing_token = self.grant(context, waiter, queue_sequence);
        Some(HandOff {
            broker: next.broker,
            request,
            fencing_token,
            limit: self.limit,
            is_provisional: next.is_provisional,
        })
    }

    /// Grants the lock and returns the new fencing token.
    pub(super) fn grant(
        &mut self,
        context: &Context,
        waiter: Waiter,
        queue_sequence: Option<u64>,
    ) -> FencingToken {
        let fencing_token = context.token_after(self.last_fencing_token);
        self.grant_with_token(context, waiter, queue_sequence, fencing_token);
        fencing_token
    }

    /// Grants the lock with this fencing token. All grants are made here.
    pub(super) fn grant_with_token(
        &mut self,
        context: &Context,
        waiter: Waiter,
        queue_sequence: Option<u64>,
        fencing_token: FencingToken,
    ) {
        let now = context.now();
        let validity = waiter
            .options
            .effective_ttl(Ttl::from_stored(waiter.ttl_ms));
        let validity_ms = context.cut_ttl_ms(validity.as_millis(), waiter.options.lock_delay_ms);
        let expiry = expiry_ms(validity_ms);
        self.last_fencing_token = fencing_token.get();
        self.closure = None;
        let held = HolderSlot {
            lease_id: waiter.lease_id,
            entries: vec![waiter.entry],
            owner: waiter.owner,
            options: waiter.options,
            revoke_reason: None,
            has_lock_delay: false,
            added_to_lease: waiter.added_to_lease,
            stream: waiter.stream,
            fencing_token,
            ttl_ms: waiter.ttl_ms,
            acquired_ms: now,
            expires_ms: now
                + match queue_sequence {
                    Some(_) => expiry.min(PROVISIONAL_GRANT_MS),
                    None => expiry,
                },
            queue_sequence,
        };
        if queue_sequence.is_none() {
            self.record_holder(ChangeKind::Acquired, &held, now);
        }
        self.holders.add(held);
    }
}
