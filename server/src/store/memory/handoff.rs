//! Granting: who gets the lock when it is free, and how a holder's time ends.

use super::{
    context::Context,
    holder::Held,
    queue::{Verdict, Waiter},
    record::Record,
};
use crate::{
    lock::{CLAIM_MS, EXPIRED_MAX, EXPIRED_MS, Grant, Ttl, expiry_ms},
    store::{HandOff, Outcome},
};

impl Record {
    /// Renews the holder, and claims a provisional hand-off. Never shortens.
    pub(super) fn extend(&mut self, now: u64, ttl: Option<Ttl>) -> Grant {
        let held = self.holder.as_mut().expect("only called for a holder");
        if held.place.take().is_some() {
            self.queue.remove(held.request);
        }
        held.ttl_ms = ttl.map_or(held.ttl_ms, Ttl::as_millis);
        held.expires_ms = held.expires_ms.max(now + expiry_ms(held.ttl_ms));
        held.grant()
    }

    /// Takes the lock off a holder whose time is over. An unclaimed hand-off falls back to its place
    /// in line, and nothing is remembered of it. True if there was one.
    pub(super) fn expire(&mut self, now: u64) -> bool {
        let Some(held) = self.holder.take_if(|held| held.expires_ms <= now) else {
            return false;
        };
        match held.place {
            Some(place) => self.queue.fall_back(place, held.attempts, held.expires_ms),
            None => {
                self.expired.remember(held.lease_id, held.expires_ms);
                self.expired
                    .forget(|seq, at, last| seq + EXPIRED_MAX > last && at + EXPIRED_MS > now);
            }
        }
        true
    }

    pub(super) fn free(&mut self) {
        if let Some(held) = self.holder.take().filter(|held| held.place.is_some()) {
            self.queue.remove(held.request);
        }
    }

    /// Hands a free lock to the first waiter that can take it.
    pub(super) fn advance<T>(&mut self, context: &Context, reply: T) -> Outcome<T> {
        let mut hand_offs = Vec::new();
        if self.holder.is_none()
            && context.check_era().is_ok()
            && let Verdict::Grant { place, provisional } =
                self.queue.next(context.broker, context.now())
        {
            hand_offs.push(self.hand_off(context, place, provisional));
        }
        Outcome { reply, hand_offs }
    }

    pub(super) fn hand_off(&mut self, context: &Context, place: u64, provisional: bool) -> HandOff {
        let waiter = match provisional {
            true => self.queue.at(place).clone(),
            false => self.queue.take(place),
        };
        let (request, broker) = (waiter.request, waiter.attempts.broker());
        let grant = self.grant(context, waiter, provisional.then_some(place));
        HandOff {
            broker: broker.unwrap_or(context.broker),
            request,
            fencing_token: grant.fencing_token,
            provisional,
        }
    }

    /// The one place where a lock is granted.
    pub(super) fn grant(&mut self, context: &Context, waiter: Waiter, place: Option<u64>) -> Grant {
        let now = context.now();
        let expiry = expiry_ms(waiter.ttl_ms);
        self.fence = context.now_us.max(self.fence + 1);
        let held = Held {
            lease_id: waiter.lease_id,
            request: waiter.request,
            arguments: waiter.arguments,
            attempts: waiter.attempts,
            owner: waiter.owner,
            fencing_token: self.fence,
            ttl_ms: waiter.ttl_ms,
            acquired_ms: now,
            expires_ms: now
                + if place.is_some() {
                    expiry.min(CLAIM_MS)
                } else {
                    expiry
                },
            place,
        };
        self.holder.insert(held).grant()
    }
}
