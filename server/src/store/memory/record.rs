//! One lock's record as a pure state machine: the specification of every store.
//!
//! Time, the broker and the era are arguments. The scripts under `store/redis/lua` say the same in
//! Lua, verb by verb; the differential test holds the two equal.

use super::{
    context::{Context, Grants},
    ended::Ended,
    holder::Held,
    queue::{Queue, Waiter},
};
use crate::{
    lock::{
        Acquire, AttemptId, EXPIRED_MAX, EXPIRED_MS, LeaseRef, RELEASED_MAX, RequestHash,
        TOMBSTONE_MS, Ttl,
    },
    store::{Acquired, Cancelled, HandOff, Outcome, Refused, Released, Renewed, Touched},
};

/// Attempts cancelled before they arrived that a record remembers.
const TOMBSTONES_MAX: usize = 256;

/// A lock that was ever used, and not so long ago as to be forgotten.
#[derive(Debug, Default)]
pub struct Record {
    pub(super) fence: u64,
    pub(super) holder: Option<Held>,
    pub(super) queue: Queue,
    released: Ended,
    pub(super) expired: Ended,
    tombstones: Vec<(AttemptId, u64)>,
}

impl Record {
    /// See [`Store::acquire`](crate::store::Store::acquire).
    pub fn acquire(
        &mut self,
        context: &Context,
        acquire: &Acquire,
    ) -> Result<Outcome<Acquired>, Refused> {
        context.check_late()?;
        let now = context.now();
        self.expire(now);
        let reply = |reply| {
            Ok(Outcome {
                reply,
                hand_offs: Vec::new(),
            })
        };
        if self
            .tombstones
            .iter()
            .any(|t| t.0 == acquire.attempt && t.1 > now)
        {
            return reply(Acquired::Cancelled);
        }
        if let Some(held) = self
            .holder
            .as_mut()
            .filter(|h| h.request == acquire.request)
        {
            if (held.lease_id, held.arguments) != (acquire.lease_id, acquire.arguments) {
                return reply(Acquired::RequestIdReused);
            }
            held.attempts.add(acquire.attempt, context.broker);
            return reply(Acquired::Granted(held.extend(&mut self.queue, now, None)));
        }
        if self
            .released
            .knows(&acquire.lease_id, RELEASED_MAX, now, TOMBSTONE_MS)
            || self
                .expired
                .remembers(&acquire.lease_id, EXPIRED_MAX, now, EXPIRED_MS)
        {
            return reply(Acquired::Ended);
        }
        if let Some(waiter) = self.queue.find(acquire.request) {
            if (waiter.lease_id, waiter.arguments) != (acquire.lease_id, acquire.arguments) {
                return reply(Acquired::RequestIdReused);
            }
            return Ok(self.acquire_again(context, acquire));
        }
        self.acquire_new(context, acquire)
    }

    /// See [`Store::renew`](crate::store::Store::renew).
    pub fn renew(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
    ) -> Result<Renewed, Refused> {
        context.check_late()?;
        let now = context.now();
        self.expire(now);
        if let Some(held) = self.holder.as_mut().filter(|held| held.is(lease)) {
            return Ok(Renewed::Extended(held.extend(&mut self.queue, now, ttl)));
        }
        Ok(match self.ended(lease, now) {
            Released::Already => Renewed::Released,
            Released::Expired => Renewed::Expired,
            Released::Now | Released::NotFound => Renewed::NotFound,
        })
    }

    /// See [`Store::release`](crate::store::Store::release).
    pub fn release(&mut self, context: &Context, lease: &LeaseRef) -> Outcome<Released> {
        let now = context.now();
        self.expire(now);
        if !self.holder.as_ref().is_some_and(|held| held.is(lease)) {
            return self.advance(context, self.ended(lease, now));
        }
        self.free();
        self.released.remember(lease.lease_id, now);
        self.released
            .forget(|seq, at, last| seq + RELEASED_MAX > last || at + TOMBSTONE_MS > now);
        self.advance(context, Released::Now)
    }

    /// See [`Store::cancel`](crate::store::Store::cancel).
    pub fn cancel(
        &mut self,
        context: &Context,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Outcome<Cancelled> {
        let now = context.now();
        self.expire(now);
        let kept = |reply| Outcome {
            reply,
            hand_offs: Vec::new(),
        };
        let attempts = match self.holder.as_mut().filter(|held| held.request == request) {
            Some(held) => Some(&mut held.attempts),
            None => self.queue.find(request).map(|waiter| &mut waiter.attempts),
        };
        match attempts.map(|attempts| attempts.remove(attempt)) {
            Some(Some(0)) => {}
            Some(Some(_)) => return kept(Cancelled::Kept),
            Some(None) | None => {
                self.tombstones.retain(|t| t.1 > now);
                self.tombstones.push((attempt, now + TOMBSTONE_MS));
                let surplus = self.tombstones.len().saturating_sub(TOMBSTONES_MAX);
                self.tombstones.drain(..surplus);
                return kept(Cancelled::Unknown);
            }
        }
        if self
            .holder
            .as_ref()
            .is_some_and(|held| held.request == request)
        {
            self.free();
            return self.advance(context, Cancelled::Freed);
        }
        self.queue.remove(request);
        self.advance(context, Cancelled::Dequeued)
    }

    /// See [`Store::touch`](crate::store::Store::touch).
    pub fn touch(&mut self, context: &Context) -> Result<Outcome<Touched>, Refused> {
        context.check_late()?;
        if context.grants == Grants::Never {
            return Err(Refused::NoEra);
        }
        let now = context.now();
        self.expire(now);
        let rejoin = self.queue.is_silent(context.broker, now);
        if self.queue.knows(context.broker) {
            self.queue.touch(context.broker, now);
        }
        let mut outcome = self.advance(context, ());
        let held = self
            .holder
            .as_ref()
            .filter(|h| h.attempts.broker() == Some(context.broker));
        let held = held.map(|held| HandOff {
            broker: context.broker,
            request: held.request,
            fencing_token: held.fencing_token,
            provisional: held.place.is_some(),
        });
        outcome.hand_offs.retain(|h| held.as_ref() != Some(h));
        let reply = Touched {
            rejoin,
            next_event_ms: self.next_event_ms(context),
            held,
        };
        Ok(Outcome {
            reply,
            hand_offs: outcome.hand_offs,
        })
    }

    /// Until when somebody may hold the lock or wait for it, in milliseconds since 1970.
    pub fn horizon_ms(&self) -> u64 {
        self.holder
            .as_ref()
            .map_or(0, |held| held.expires_ms)
            .max(self.queue.until_ms())
    }

    /// Nothing is known of the lock.
    pub fn is_blank(&self) -> bool {
        self.fence == 0 && self.queue.len() == 0 && self.tombstones.is_empty()
    }

    /// A repeat of a call that waits: keeps its place, belongs to this broker from now on.
    fn acquire_again(&mut self, context: &Context, acquire: &Acquire) -> Outcome<Acquired> {
        let now = context.now();
        if acquire.wait_ms == 0 {
            return self.answer(context, acquire);
        }
        if let Some(waiter) = self.queue.find(acquire.request) {
            waiter.attempts.add(acquire.attempt, context.broker);
            waiter.until_ms = waiter.until_ms.max(now + acquire.wait_ms);
            waiter.passed_ms = 0;
        }
        self.queue.extend(now + acquire.wait_ms);
        self.queue.touch(context.broker, now);
        self.answer(context, acquire)
    }

    fn acquire_new(
        &mut self,
        context: &Context,
        acquire: &Acquire,
    ) -> Result<Outcome<Acquired>, Refused> {
        let now = context.now();
        let mut hand_offs = Vec::new();
        match context.check_era() {
            Ok(()) => {
                hand_offs = self.advance(context, ()).hand_offs;
                if self.holder.is_none() {
                    let waiter = Waiter::new(context, acquire, now);
                    let grant = self.grant(context, waiter, None);
                    return Ok(Outcome {
                        reply: Acquired::Granted(grant),
                        hand_offs,
                    });
                }
            }
            Err(Refused::Recovering { .. }) if acquire.rejoin && acquire.wait_ms > 0 => {}
            Err(refused) => return Err(refused),
        }
        if acquire.wait_ms > 0 && self.queue.len() >= context.waiters_max {
            return Ok(Outcome {
                reply: Acquired::QueueFull,
                hand_offs,
            });
        }
        if acquire.wait_ms > 0 {
            self.queue.touch(context.broker, now);
            self.queue.join(Waiter::new(context, acquire, now));
        }
        let reply = self.waiting_or_held(context, acquire);
        Ok(Outcome { reply, hand_offs })
    }

    /// Lets the queue move, then says how the request stands.
    fn answer(&mut self, context: &Context, acquire: &Acquire) -> Outcome<Acquired> {
        let mut outcome = self.advance(context, ());
        let mine = self
            .holder
            .as_ref()
            .filter(|held| held.request == acquire.request && held.place.is_none());
        let reply = match mine.map(Held::grant) {
            Some(grant) => {
                outcome.hand_offs.retain(|h| h.request != acquire.request);
                Acquired::Granted(grant)
            }
            None => self.waiting_or_held(context, acquire),
        };
        Outcome {
            reply,
            hand_offs: outcome.hand_offs,
        }
    }

    fn waiting_or_held(&self, context: &Context, acquire: &Acquire) -> Acquired {
        if acquire.wait_ms == 0 {
            return Acquired::Held(self.contention(context.now()));
        }
        Acquired::Queued {
            next_event_ms: self.next_event_ms(context),
        }
    }

    fn next_event_ms(&self, context: &Context) -> u64 {
        match (&self.holder, context.grants) {
            (Some(held), _) => held.expires_ms.saturating_sub(context.now()),
            (None, Grants::NotBefore(ms)) => ms.saturating_sub(context.now()),
            (None, Grants::Never) => 0,
        }
    }

    /// How a lease that does not hold the lock ended, as far as it is remembered.
    fn ended(&self, lease: &LeaseRef, now: u64) -> Released {
        if self
            .holder
            .as_ref()
            .is_some_and(|held| held.lease_id == lease.lease_id)
        {
            Released::NotFound
        } else if self
            .released
            .knows(&lease.lease_id, RELEASED_MAX, now, TOMBSTONE_MS)
        {
            Released::Already
        } else if self
            .expired
            .remembers(&lease.lease_id, EXPIRED_MAX, now, EXPIRED_MS)
        {
            Released::Expired
        } else {
            Released::NotFound
        }
    }
}
