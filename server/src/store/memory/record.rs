//! One lock's record as a pure state machine: the specification of every store.
//!
//! Time, the broker and the era are arguments. The scripts under `store/redis/lua` say the same in
//! Lua, verb by verb; the differential test holds the two equal.

use std::collections::HashMap;

use super::{
    context::{Context, Grants},
    ended::Ended,
    handoff::Advanced,
    holders::{Held, Holders},
    queue::{Queue, Waiter},
    tombstones::{Dead, Tombstones},
    watch::Watched,
};
use crate::{
    lock::{
        Acquire, Attachment, AttemptId, Grant, KEEP_MS, LeaseId, LeaseRef, Mode, Release,
        RequestHash, SET_KEEP_MS, Ttl, Under, Via,
    },
    store::{
        Acquired, Cancelled, ChangeKind, Ending, HandOff, Outcome, Refused, Released, Renewed,
        Touched,
    },
};

/// A lock that was ever used, and not so long ago as to be forgotten.
#[derive(Debug, Default)]
pub struct Record {
    pub(super) fence: u64,
    /// What the holders' weights may add up to. Counts while somebody holds or waits.
    pub(super) limit: u32,
    /// The limit that callers cannot change; 0: none is set.
    pub(super) set_limit: u32,
    pub(super) holders: Holders,
    /// Nothing is granted before, by a lock_delay.
    pub(super) closed_until_ms: u64,
    pub(super) queue: Queue,
    pub(super) released: Ended,
    /// Leases from which the lock was released, and until when they may be shown with it.
    pub(super) parts: HashMap<LeaseId, u64>,
    pub(super) expired: Ended,
    pub(super) tombstones: Tombstones,
    /// What others may watch.
    pub watched: Watched,
    /// Leases whose time was found to be over, for the broker whose command found it.
    pub endings: Vec<Ending>,
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
        self.expire(context);
        let reply = |reply| Ok(Outcome::silent(reply));
        if self.tombstones.knows(Dead::Attempt(acquire.attempt), now) {
            return reply(Acquired::Cancelled);
        }
        if let Some(held) = self.holders.by_request(acquire.request) {
            self.expire_lease(context, held.lease_id);
        }
        if context.check_era().is_err() {
            self.take_back_hand_off(acquire.request);
        }
        if let Some(held) = self.holders.by_request(acquire.request) {
            let (lease_id, is_over) = (held.lease_id, held.validity(now).is_none());
            let there = Attachment::moved(held.stream, acquire.stream);
            let entry = self.holders.entry(acquire.request);
            let Some(entry) = entry.filter(|entry| {
                (lease_id, entry.arguments) == (acquire.lease_id, acquire.arguments)
            }) else {
                return reply(Acquired::RequestIdReused);
            };
            let Some(there) = there else {
                return reply(Acquired::StaleAttach);
            };
            if is_over {
                return reply(Acquired::Ended);
            }
            context.check_era()?;
            entry
                .attempts
                .add(acquire.attempt, context.broker, context.attempts_max);
            let moved = self.put_on(lease_id, there);
            let extended = self.extend(lease_id, now, None);
            let reply = extended.map_or(Acquired::Ended, Acquired::Granted);
            return Ok(Outcome {
                moved,
                ..Outcome::silent(reply)
            });
        }
        self.expire_lease(context, acquire.lease_id);
        if self.is_over(acquire, now) {
            return reply(Acquired::Ended);
        }
        let mut waits = None;
        if let Some(waiter) = self.queue.find(acquire.request) {
            if (waiter.lease_id, waiter.entry.arguments) != (acquire.lease_id, acquire.arguments) {
                return reply(Acquired::RequestIdReused);
            }
            waits = Attachment::moved(waiter.stream, acquire.stream);
            if waits.is_none() {
                return reply(Acquired::StaleAttach);
            }
        }
        // A call in line enters what its lease got by another one meanwhile, or keeps its place.
        if (waits.is_none() || context.check_era().is_ok())
            && let Some(entered) = self.enter_under(context, acquire)?
        {
            return reply(entered);
        }
        if let Some(there) = waits {
            if acquire.mode.weight() > self.limit {
                return Ok(self.refuse_waiting(context, acquire));
            }
            if acquire.wait_ms > 0 {
                if !self.queue.add_attempt(acquire, there, context) {
                    return reply(Acquired::TooManyAttempts);
                }
                self.wait_again(context, acquire, there);
            }
            return Ok(self.answer(context, acquire));
        }
        if let Under::Grant(_) = acquire.under {
            return reply(Acquired::NotFound);
        }
        self.acquire_new(context, acquire)
    }

    /// See [`Store::renew`](crate::store::Store::renew).
    pub fn renew(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Renewed, Refused> {
        context.check_late()?;
        let now = context.now();
        self.expire(context);
        self.expire_lease(context, lease.lease_id);
        let is_claim = self.is_provisional(lease.lease_id);
        if self.holds(lease) && !(is_claim && context.check_era().is_err()) {
            if self.is_out_of_reach(lease, via) {
                return Ok(Renewed::Elsewhere);
            }
            let extended = self.extend(lease.lease_id, now, ttl);
            return Ok(match (extended, self.revoked(lease.lease_id)) {
                (Some(grant), _) => Renewed::Extended(grant),
                (None, Some(reason)) => Renewed::Revoked { reason },
                (None, None) => Renewed::MaxHold,
            });
        }
        Ok(match self.ended(lease.lease_id, now) {
            Released::Already { .. } => Renewed::Released,
            Released::Expired => Renewed::Expired,
            Released::Revoked { reason } => Renewed::Revoked { reason },
            Released::Now { .. } | Released::Elsewhere | Released::NotFound => Renewed::NotFound,
        })
    }

    /// See [`Store::release`](crate::store::Store::release).
    pub fn release(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        release: Release,
        via: Via,
    ) -> Outcome<Released> {
        let now = context.now();
        self.expire(context);
        self.expire_lease(context, lease.lease_id);
        let released = match self.holds(lease) {
            true if self.is_out_of_reach(lease, via) => Released::Elsewhere,
            true => self.leave(lease, release, now),
            false => self.ended(lease.lease_id, now),
        };
        self.advanced(context, released)
    }

    /// See [`Store::cancel`](crate::store::Store::cancel).
    pub fn cancel(
        &mut self,
        context: &Context,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Outcome<Cancelled> {
        let now = context.now();
        self.expire(context);
        if let Some(held) = self.holders.by_request(request) {
            self.expire_lease(context, held.lease_id);
        }
        let is_held = self.holders.by_request(request).is_some();
        let entry = match is_held {
            true => self.holders.entry(request),
            false => self.queue.find(request).map(|waiter| &mut waiter.entry),
        };
        let is_known = entry.is_some();
        match entry.and_then(|entry| entry.attempts.remove(attempt)) {
            Some(false) => {}
            Some(true) => return Outcome::silent(Cancelled::Kept),
            None => {
                self.tombstones.bury(Dead::Attempt(attempt), now);
                return Outcome::silent(match is_known {
                    true => Cancelled::Kept,
                    false => Cancelled::Unknown,
                });
            }
        }
        if is_held {
            if let Some(freed) = self.leave_entry(request) {
                self.note_undone(&freed, now);
            }
            return self.advanced(context, Cancelled::Freed);
        }
        if let Some(waiter) = self.queue.remove(request) {
            self.note_waiter(ChangeKind::Abandoned, &waiter, now);
        }
        self.advanced(context, Cancelled::Dequeued)
    }

    /// See [`Store::touch`](crate::store::Store::touch).
    ///
    /// Tells of the grants in the slots from `from` on, which count from 1.
    pub fn touch(&mut self, context: &Context, from: usize) -> Result<Outcome<Touched>, Refused> {
        context.check_late()?;
        if context.grants == Grants::Never {
            return Err(Refused::NoEra);
        }
        let now = context.now();
        self.expire(context);
        let rejoin = self.queue.is_silent(context.broker, now);
        if self.queue.knows(context.broker) {
            self.queue.touch(context.broker, now);
        }
        let Advanced {
            hand_offs,
            may_enter,
            ..
        } = self.advance(context);
        let slots = self
            .holders
            .slots()
            .skip(from - 1)
            .take(context.told_slots_max);
        let after = from + context.told_slots_max;
        let held = slots.flatten().filter_map(|held| {
            let entry = &held.entries[0];
            (entry.attempts.broker() == Some(context.broker)).then(|| HandOff {
                broker: context.broker,
                request: entry.request,
                fencing_token: held.fencing_token,
                provisional: held.place.is_some(),
            })
        });
        let reply = Touched {
            rejoin: rejoin || may_enter,
            next_event_ms: self.next_event_ms(context),
            held: held.collect(),
            more_from: (self.holders.slots().count() >= after).then_some(after),
            era: None,
        };
        Ok(Outcome {
            hand_offs,
            ..Outcome::silent(reply)
        })
    }

    /// How long the record is kept after its last use.
    pub fn keep_ms(&self) -> u64 {
        match self.set_limit {
            0 => KEEP_MS,
            _ => SET_KEEP_MS,
        }
    }

    /// Until when somebody may hold the lock or wait for it, in milliseconds since 1970.
    pub fn horizon_ms(&self) -> u64 {
        let closed_until_ms = self.closed_until_ms;
        self.holders
            .latest_ms()
            .max(self.queue.until_ms())
            .max(closed_until_ms)
    }

    /// Nothing is known of the lock.
    pub fn is_blank(&self) -> bool {
        self.fence == 0
            && self.queue.len() == 0
            && self.tombstones.is_empty()
            && self.set_limit == 0
    }

    /// A call that waits can never be granted: the limit was lowered.
    fn refuse_waiting(&mut self, context: &Context, acquire: &Acquire) -> Outcome<Acquired> {
        if let Some(waiter) = self.queue.remove(acquire.request) {
            self.note_waiter(ChangeKind::Abandoned, &waiter, context.now());
        }
        let mut refused = self.advanced(context, Acquired::LimitMismatch { limit: 0 });
        refused.reply = Acquired::LimitMismatch {
            limit: self.limit_in_use(),
        };
        refused
    }

    /// A repeat of a call that waits: keeps its place, belongs to this broker from now on.
    fn wait_again(&mut self, context: &Context, acquire: &Acquire, stream: Option<Attachment>) {
        let now = context.now();
        if let Some(waiter) = self.queue.find(acquire.request) {
            waiter.stream = stream;
            waiter.until_ms = waiter.until_ms.max(now + acquire.wait_ms);
            waiter.passed_ms = 0;
        }
        self.queue.extend(now + acquire.wait_ms);
        self.queue.touch(context.broker, now);
    }

    fn acquire_new(
        &mut self,
        context: &Context,
        acquire: &Acquire,
    ) -> Result<Outcome<Acquired>, Refused> {
        let now = context.now();
        let mut advanced = Advanced {
            hand_offs: Vec::new(),
            is_blocked: true,
            may_enter: false,
        };
        match context.check_era() {
            Ok(()) => advanced = self.advance(context),
            Err(Refused::Recovering { .. }) if acquire.rejoin && acquire.wait_ms > 0 => {}
            Err(refused) => return Err(refused),
        }
        // Another request of the same lease was promised the lock.
        advanced.is_blocked |= self.holders.by_lease(acquire.lease_id).is_some();
        let reply = match self.check_limit(acquire) {
            Err(mismatch) => mismatch,
            Ok(()) if !advanced.is_blocked && self.fits(context, acquire.mode.weight()) => {
                self.grant(context, Waiter::new(context, acquire, now), None);
                self.granted(acquire, now)
            }
            Ok(()) if acquire.wait_ms > 0 && self.queue.len() >= context.waiters_max => {
                Acquired::QueueFull
            }
            Ok(()) => {
                if acquire.wait_ms > 0 {
                    self.queue.touch(context.broker, now);
                    let waiter = Waiter::new(context, acquire, now);
                    self.note_waiter(ChangeKind::Queued, &waiter, now);
                    self.queue.join(waiter);
                }
                self.waiting_or_held(context, acquire)
            }
        };
        Ok(Outcome {
            hand_offs: advanced.hand_offs,
            ..Outcome::silent(reply)
        })
    }

    /// Lets the queue move, then says how the request stands.
    fn answer(&mut self, context: &Context, acquire: &Acquire) -> Outcome<Acquired> {
        let hand_offs = self.advance(context).hand_offs;
        let mine = self.holders.by_request(acquire.request);
        let reply = match mine.is_some_and(|held| held.place.is_none()) {
            true => self.granted(acquire, context.now()),
            false => self.waiting_or_held(context, acquire),
        };
        Outcome {
            hand_offs,
            ..Outcome::silent(reply)
        }
    }

    /// Lets the queue move after what was done.
    pub(super) fn advanced<T>(&mut self, context: &Context, reply: T) -> Outcome<T> {
        Outcome {
            hand_offs: self.advance(context).hand_offs,
            ..Outcome::silent(reply)
        }
    }

    pub(super) fn extend(
        &mut self,
        lease_id: LeaseId,
        now: u64,
        ttl: Option<Ttl>,
    ) -> Option<Grant> {
        let is_claim = self.is_provisional(lease_id);
        self.holders.extend(lease_id, &mut self.queue, now, ttl)?;
        if is_claim {
            self.note_claim(lease_id, now);
        }
        self.grant_of(lease_id, now)
    }

    /// Why an operator has a holder end, if one has.
    pub(super) fn revoked(&self, lease_id: LeaseId) -> Option<String> {
        self.holders.by_lease(lease_id)?.revoked.clone()
    }

    /// Takes back a hand-off that the waiter has not claimed.
    fn take_back_hand_off(&mut self, request: RequestHash) {
        let Some(held) = self.holders.by_request(request) else {
            return;
        };
        let (lease_id, place) = (held.lease_id, held.place);
        if let Some(place) = place
            && let Some(held) = self.holders.remove(lease_id)
        {
            self.queue.fall_back(place, &held);
        }
    }

    fn is_provisional(&self, lease_id: LeaseId) -> bool {
        let is_provisional = |held: &Held| held.place.is_some();
        self.holders.by_lease(lease_id).is_some_and(is_provisional)
    }

    fn holds(&self, lease: &LeaseRef) -> bool {
        let held = self.holders.by_lease(lease.lease_id);
        held.is_some_and(|held| held.is(lease))
    }

    fn granted(&self, acquire: &Acquire, now: u64) -> Acquired {
        self.grant_of(acquire.lease_id, now)
            .map_or(Acquired::Ended, Acquired::Granted)
    }

    /// `None` past its `max_hold`.
    pub(super) fn grant_of(&self, lease_id: LeaseId, now: u64) -> Option<Grant> {
        let held = self.holders.by_lease(lease_id)?;
        Some(Grant {
            fencing_token: held.fencing_token,
            mode: Mode::from_stored(held.weight(), self.limit),
            ttl: held.validity(now)?,
            acquired_ms: held.acquired_ms,
            hold_count: held.hold_count(),
            queue_length: self.queue.len(),
            disconnect_grace_ms: held.terms.disconnect_grace_ms,
        })
    }

    fn waiting_or_held(&self, context: &Context, acquire: &Acquire) -> Acquired {
        if acquire.wait_ms == 0 {
            return Acquired::Held(self.contention(context.now()));
        }
        let (place, is_last) = self.queue.place(acquire.request);
        Acquired::Queued {
            next_event_ms: self.next_event_ms(context),
            place,
            position: if is_last { self.queue.len() } else { 0 },
            last_fencing_token: self.fence,
            era: None,
        }
    }
}
