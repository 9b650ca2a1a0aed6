//! Granting: who gets the lock when it is free, and how a holder's time ends.

use super::{
    context::Context,
    holder::Held,
    queue::{Next, Waiter},
    record::Record,
};
use crate::{
    lock::{CLAIM_MS, EXPIRED_MAX, EXPIRED_MS, FencingToken, Grant, expiry_ms},
    store::{HandOff, Outcome},
};

impl Record {
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
            && let Some(next) = self.queue.next(context.broker, context.now())
        {
            hand_offs.push(self.hand_off(context, next));
        }
        Outcome { reply, hand_offs }
    }

    fn hand_off(&mut self, context: &Context, next: Next) -> HandOff {
        let (request, broker) = (next.waiter.request, next.waiter.attempts.broker());
        let grant = self.grant(context, next.waiter, next.place);
        HandOff {
            broker: broker.unwrap_or(context.broker),
            request,
            fencing_token: grant.fencing_token,
            provisional: next.place.is_some(),
        }
    }

    /// The one place where a lock is granted.
    pub(super) fn grant(&mut self, context: &Context, waiter: Waiter, place: Option<u64>) -> Grant {
        let now = context.now();
        let expiry = expiry_ms(waiter.ttl_ms);
        let fencing_token = FencingToken::after(self.fence, context.now_us);
        self.fence = fencing_token.get();
        let held = Held {
            lease_id: waiter.lease_id,
            request: waiter.request,
            arguments: waiter.arguments,
            attempts: waiter.attempts,
            owner: waiter.owner,
            fencing_token,
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
