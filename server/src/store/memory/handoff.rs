//! Granting: who gets the lock when there is room, and how a holder's time ends.

use super::{
    context::Context,
    holders::Held,
    queue::{Next, PassedOver, Waiter},
    record::Record,
};
use crate::{
    lock::{CLAIM_MS, FencingToken, LeaseId, Ttl, expiry_ms},
    store::{ChangeKind, Ending, EndingKind, HandOff},
};

/// What came of letting the line move.
pub(super) struct Advanced {
    /// The grants made.
    pub(super) hand_offs: Vec<HandOff>,
    /// Somebody is next for whom there is no room.
    pub(super) is_blocked: bool,
    /// A waiter of this broker was passed over that is to ask again, since its lease holds the lock.
    pub(super) may_enter: bool,
}

impl Record {
    /// Takes the lock off holders whose time is over, at most so many. The command that follows goes on.
    pub(super) fn expire(&mut self, context: &Context) {
        let now = context.now();
        for held in self.holders.expire(now, context.ends_max) {
            self.end_holder(&held, now);
        }
    }

    /// The same for one lease, which the command is about.
    pub(super) fn expire_lease(&mut self, context: &Context, lease_id: LeaseId) {
        let now = context.now();
        let held = self.holders.by_lease(lease_id);
        if held.is_some_and(|held| held.expires_ms <= now)
            && let Some(held) = self.holders.remove(lease_id)
        {
            self.end_holder(&held, now);
        }
    }

    /// An unclaimed hand-off falls back to its place in line, and nothing is remembered of it.
    fn end_holder(&mut self, held: &Held, now: u64) {
        match held.place {
            Some(place) => self.queue.fall_back(place, held),
            None => self.end_lease(held, now),
        }
    }

    /// Ends a lease as if it expired now.
    pub(super) fn lapse(&mut self, lease_id: LeaseId, now: u64) {
        if let Some(mut held) = self.free(lease_id) {
            held.expires_ms = now;
            self.end_lease(&held, now);
        }
    }

    fn end_lease(&mut self, held: &Held, now: u64) {
        let kind = match held.revoked {
            Some(_) => ChangeKind::Revoked,
            None => ChangeKind::Expired,
        };
        self.note_holder(kind, held, now);
        self.endings.push(ending(held));
        self.close_after(held);
        self.remember_expired(held, now);
    }

    /// Closes the lock for the lock_delay of a holder whose time is over.
    pub(super) fn close_after(&mut self, held: &Held) {
        let closes_until_ms = held.closes_until_ms().unwrap_or(0);
        self.closed_until_ms = self.closed_until_ms.max(closes_until_ms);
    }

    pub(super) fn free(&mut self, lease_id: LeaseId) -> Option<Held> {
        let held = self.holders.remove(lease_id)?;
        if let Some(place) = held.place {
            self.queue.take(place);
        }
        Some(held)
    }

    pub(super) fn fits(&self, context: &Context, weight: u32) -> bool {
        self.closed_until_ms <= context.now()
            && self.holders.len() < context.holders_max
            && self.holders.used() + weight <= self.limit
    }

    /// Grants the lock in the order of the line, as far as there is room.
    pub(super) fn advance(&mut self, context: &Context) -> Advanced {
        let mut advanced = Advanced {
            hand_offs: Vec::new(),
            is_blocked: self.queue.len() > 0,
            may_enter: false,
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
            let mut passed = PassedOver::default();
            let holders = &self.holders;
            let holds = |lease_id| holders.by_lease(lease_id).is_some();
            let queue = &mut self.queue;
            let next = queue.next(from, self.limit, context, holds, &mut passed);
            for waiter in passed.gone {
                self.note_waiter(ChangeKind::Abandoned, &waiter, context.now());
            }
            advanced.may_enter |= passed.may_enter;
            advanced.is_blocked = next.is_some();
            let Some(next) = next.filter(|next| self.fits(context, next.weight)) else {
                return advanced;
            };
            from = next.place + 1;
            advanced.hand_offs.extend(self.hand_off(context, &next));
        }
    }

    fn hand_off(&mut self, context: &Context, next: &Next) -> Option<HandOff> {
        let waiter = self.queue.hand(next, context.broker, context.now())?;
        let request = waiter.entry.request;
        let place = next.is_provisional.then_some(next.place);
        let fencing_token = self.grant(context, waiter, place);
        Some(HandOff {
            broker: next.broker,
            request,
            fencing_token,
            provisional: next.is_provisional,
        })
    }

    /// The one place where a lock is granted.
    pub(super) fn grant(
        &mut self,
        context: &Context,
        waiter: Waiter,
        place: Option<u64>,
    ) -> FencingToken {
        let now = context.now();
        let validity = waiter.terms.cut(Ttl::from_stored(waiter.ttl_ms));
        let expiry = expiry_ms(validity.as_millis());
        let fencing_token = FencingToken::after(self.fence, context.now_us);
        self.fence = fencing_token.get();
        let held = Held {
            lease_id: waiter.lease_id,
            entries: vec![waiter.entry],
            owner: waiter.owner,
            terms: waiter.terms,
            revoked: None,
            closes: false,
            added: waiter.added,
            stream: waiter.stream,
            fencing_token,
            ttl_ms: waiter.ttl_ms,
            acquired_ms: now,
            expires_ms: now
                + match place {
                    Some(_) => expiry.min(CLAIM_MS),
                    None => expiry,
                },
            place,
        };
        if place.is_none() {
            self.note_holder(ChangeKind::Acquired, &held, now);
        }
        self.holders.add(held);
        fencing_token
    }
}

/// What is told of a holder whose time is over.
fn ending(held: &Held) -> Ending {
    let max_hold_ms = held.terms.max_hold_ms;
    let is_cut = max_hold_ms > 0 && held.acquired_ms + max_hold_ms <= held.expires_ms;
    Ending {
        lease_id: held.lease_id,
        owner: held.owner.clone(),
        fencing_token: held.fencing_token.get(),
        held_ms: held.expires_ms.saturating_sub(held.acquired_ms),
        kind: match held.revoked {
            Some(_) => EndingKind::Revoked,
            None if is_cut => EndingKind::MaxHold,
            None => EndingKind::Expired,
        },
        reason: held.revoked.clone().unwrap_or_default(),
    }
}
