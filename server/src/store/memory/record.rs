//! Record of one lock as a pure state machine: the specification of every store.
//!
//! Time, broker and era are arguments. The Lua scripts under `store/redis/lua` implement the same
//! commands, and the differential test verifies that both behave identically.

use std::collections::BTreeMap;

use super::{
    context::{Context, Grants},
    ended_leases::EndedLeases,
    grant::GrantRound,
    holders::{HolderSlot, Holders, WeightChange},
    queue::{Queue, Waiter},
    tombstones::{TombstoneKey, Tombstones},
    watch::ChangeLog,
};
use crate::{
    lock::{
        AcquireCommand, Attachment, AttemptId, BrokerId, Closure, ExpectedAttachment, Grant,
        IDLE_RECORD_TTL_MS, LeaseBinding, LeaseId, LeaseRef, Mode, ReleaseScope, RequestHash, Ttl,
        span_ms,
    },
    store::{
        Acquired, Cancelled, ChangeKind, HandOff, LeaseEndEvent, LeaseRejection, LeaseReply,
        Outcome, Rejected, Released, Touched, Vote,
    },
};

/// The record of a lock that was used recently.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Record {
    pub(super) last_fencing_token: u64,
    /// Maximum total weight of the holders. Valid while the lock has holders or waiters.
    pub(super) limit: u32,
    /// Limit that callers cannot change, if one is fixed.
    pub(super) set_limit: Option<u32>,
    pub(super) holders: Holders,
    /// Period in which nothing is granted. Kept until the next grant, even after it has passed.
    pub(super) closure: Option<Closure>,
    pub(super) queue: Queue,
    pub(super) released: EndedLeases,
    /// Leases from which the lock, or an entry of it, was released, with the time until which they
    /// may be presented with this lock.
    pub(super) partial_releases: BTreeMap<LeaseId, u64>,
    pub(super) expired: EndedLeases,
    pub(super) tombstones: Tombstones,
    /// Brokers to notify when the lock becomes free, at a node of a RedLock store.
    pub(super) release_subscribers: Vec<BrokerId>,
    /// Changes for watches.
    pub change_log: ChangeLog,
    /// Ended leases, to be reported to the broker whose command found them.
    pub end_events: Vec<LeaseEndEvent>,
}

impl Record {
    /// See [`Store::acquire`](crate::store::Store::acquire).
    pub fn acquire(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
    ) -> Result<Outcome<Acquired>, Rejected> {
        if let Some(rejected) = self.reject_cancelled(context, acquire)? {
            return Ok(Outcome::reply_only(rejected));
        }
        match self.find_existing(context, acquire, None)? {
            Some(outcome) => Ok(outcome),
            None => self.acquire_new(context, acquire),
        }
    }

    /// Rejects an attempt that was cancelled before it arrived.
    pub(super) fn reject_cancelled(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
    ) -> Result<Option<Acquired>, Rejected> {
        context.check_deadline()?;
        self.expire(context);
        let attempt = TombstoneKey::Attempt(acquire.attempt);
        let is_cancelled = self.tombstones.contains(attempt, context.now());
        Ok(is_cancelled.then_some(Acquired::Cancelled))
    }

    /// Returns the reply to a call whose lease or request the record has: a repeat, a re-entry or a
    /// call that waits. A `vote` may raise the token of its holder.
    pub(super) fn find_existing(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
        vote: Option<&Vote>,
    ) -> Result<Option<Outcome<Acquired>>, Rejected> {
        let reply = |reply| Ok(Some(Outcome::reply_only(reply)));
        if let Some(held) = self.holders.by_request(acquire.request) {
            self.expire_lease(context, held.lease_id);
        }
        if context.check_era().is_err() {
            self.cancel_hand_off(acquire.request);
        }
        if let Some(held) = self.holders.by_request(acquire.request) {
            let (lease_id, has_ended) = (held.lease_id, held.validity(context).is_none());
            let span = held.check_span(context, None);
            let attachment = Attachment::supersede(held.stream, acquire.stream);
            let entry = self.holders.entry(acquire.request);
            let Some(entry) = entry.filter(|entry| {
                (lease_id, entry.arguments) == (acquire.lease_id, acquire.arguments)
            }) else {
                return reply(Acquired::RequestIdReused);
            };
            let Ok(attachment) = attachment else {
                return reply(Acquired::StaleAttach);
            };
            if has_ended {
                return reply(Acquired::Ended);
            }
            context.check_era()?;
            span?;
            entry
                .attempts
                .add(acquire.attempt, context.broker, context.bounds.attempts_max);
            let moved = self.attach_to(lease_id, attachment);
            if let Some(vote) = vote {
                self.raise_token(context, acquire.request, vote);
            }
            let extended = self.extend(context, lease_id, None);
            let reply = extended.map_or(Acquired::Ended, Acquired::Granted);
            return Ok(Some(Outcome {
                moved,
                ..Outcome::reply_only(reply)
            }));
        }
        self.expire_lease(context, acquire.lease_id);
        if self.has_ended(acquire, context) {
            return reply(Acquired::Ended);
        }
        let (mut is_waiting, mut attachment) = (false, None);
        if let Some(waiter) = self.queue.find(acquire.request) {
            if (waiter.lease_id, waiter.entry.arguments) != (acquire.lease_id, acquire.arguments) {
                return reply(Acquired::RequestIdReused);
            }
            let Ok(newer) = Attachment::supersede(waiter.stream, acquire.stream) else {
                return reply(Acquired::StaleAttach);
            };
            (is_waiting, attachment) = (true, newer);
        }
        // A waiting call enters if its lease has acquired the lock by another call meanwhile.
        // Otherwise it keeps its queue position.
        if (!is_waiting || context.check_era().is_ok())
            && let Some(entered) = self.reenter(context, acquire)?
        {
            return reply(entered);
        }
        if is_waiting {
            if acquire.mode.weight() > self.limit {
                return Ok(Some(self.reject_waiting(context, acquire)));
            }
            context.check_span(acquire.ttl.as_millis(), acquire.options.lock_delay_ms)?;
            if acquire.wait_ms > 0 {
                if !self.queue.add_attempt(acquire, attachment, context) {
                    return reply(Acquired::TooManyAttempts);
                }
                self.continue_wait(context, acquire, attachment);
            }
            return Ok(Some(self.grant_and_answer(context, acquire)));
        }
        match acquire.binding {
            LeaseBinding::Reentry(_) => reply(Acquired::NotFound),
            LeaseBinding::New | LeaseBinding::Existing => Ok(None),
        }
    }

    /// See [`Store::renew`](crate::store::Store::renew).
    pub fn renew(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Grant>, Rejected> {
        context.check_deadline()?;
        self.expire(context);
        self.expire_lease(context, lease.lease_id);
        let is_claim = self.is_provisional(lease.lease_id);
        if self.holds(lease) && !(is_claim && context.check_era().is_err()) {
            if self.is_on_other_stream(lease, via) {
                return Ok(Err(LeaseRejection::Elsewhere));
            }
            let held = self.holders.by_lease(lease.lease_id);
            if let Some(held) = held.filter(|held| held.validity(context).is_some()) {
                held.check_span(context, ttl)?;
            }
            let extended = self.extend(context, lease.lease_id, ttl);
            return Ok(extended.ok_or_else(|| self.hold_limit_rejection(lease.lease_id)));
        }
        Ok(Err(self.ended(lease, context)))
    }

    /// Renews a lease for a client that has received it, at a node of a RedLock store. See
    /// [`Renewal::is_for_client`](crate::store::Renewal::is_for_client).
    pub fn renew_for_client(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Grant>, Rejected> {
        let renewed = self.renew(context, lease, ttl, via)?;
        if renewed.is_ok()
            && let Some(held) = self.holders.by_lease_mut(lease.lease_id)
        {
            held.entries[0].attempts.add_unlisted(context.broker);
        }
        Ok(renewed)
    }

    /// See [`Store::release`](crate::store::Store::release).
    pub fn release(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Outcome<LeaseReply<Released>> {
        self.expire(context);
        self.expire_lease(context, lease.lease_id);
        let released = match self.holds(lease) {
            true if self.is_on_other_stream(lease, via) => Err(LeaseRejection::Elsewhere),
            true => self.release_entries(lease, release, context),
            false => Err(self.ended(lease, context)),
        };
        // A repeated release succeeds.
        let released = match released {
            Err(LeaseRejection::Released) => Ok(Released {
                already_released: true,
                hold_count: 0,
            }),
            Ok(_) | Err(_) => released,
        };
        self.grant_and_reply(context, released)
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
        let has_entry = entry.is_some();
        match entry.and_then(|entry| entry.attempts.remove(attempt)) {
            Some(false) => {}
            Some(true) => return Outcome::reply_only(Cancelled::Kept),
            None => {
                self.tombstones
                    .insert(TombstoneKey::Attempt(attempt), context);
                return Outcome::reply_only(match has_entry {
                    true => Cancelled::Kept,
                    false => Cancelled::Unknown,
                });
            }
        }
        if is_held {
            if let Some(freed) = self.remove_entry(request, WeightChange::ToRemaining) {
                self.record_rollback(&freed, now);
            }
            return self.grant_and_reply(context, Cancelled::Freed);
        }
        if let Some(waiter) = self.queue.remove(request) {
            self.record_waiter(ChangeKind::Abandoned, &waiter, now);
        }
        self.grant_and_reply(context, Cancelled::Dequeued)
    }

    /// See [`Store::touch`](crate::store::Store::touch).
    ///
    /// Returns the grants in the slots from `from` on. Slots are numbered from 1.
    pub fn touch(&mut self, context: &Context, from: usize) -> Result<Outcome<Touched>, Rejected> {
        context.check_deadline()?;
        if context.grants == Grants::Never {
            return Err(Rejected::NoEra);
        }
        let now = context.now();
        self.expire(context);
        let rejoin = self.queue.is_silent(context.broker, now);
        if self.queue.contains_broker(context.broker) {
            self.queue.touch(context.broker, now);
        }
        let GrantRound {
            hand_offs,
            must_repeat,
            ..
        } = self.grant_waiters(context);
        let slots = self
            .holders
            .slots()
            .skip(from - 1)
            .take(context.bounds.touch_slots_max);
        let after = from + context.bounds.touch_slots_max;
        let held = slots.flatten().filter_map(|held| {
            let entry = &held.entries[0];
            (entry.attempts.broker() == Some(context.broker)).then(|| HandOff {
                broker: context.broker,
                request: entry.request,
                fencing_token: held.fencing_token,
                limit: self.limit,
                is_provisional: held.queue_sequence.is_some(),
            })
        });
        let reply = Touched {
            rejoin: rejoin || must_repeat,
            next_event_ms: self.next_event_ms(context),
            held: held.collect(),
            more_from: (self.holders.slots().count() >= after).then_some(after),
            era: None,
        };
        Ok(Outcome {
            hand_offs,
            ..Outcome::reply_only(reply)
        })
    }

    /// Returns the time, in milliseconds since 1970, after which the record is deleted unless it is
    /// used again. `None` if the lock has a set limit, which is kept until it is removed.
    pub fn deleted_after_ms(&self, now_ms: u64) -> Option<u64> {
        let last = now_ms
            .max(self.holders.latest_ms())
            .max(self.queue.until_ms())
            .max(self.closed_until_ms())
            // Without its record the next token would be the time, which may still be smaller.
            .max(self.last_fencing_token / 1_000);
        self.set_limit
            .is_none()
            .then_some(last + IDLE_RECORD_TTL_MS)
    }

    /// Returns true if the record contains nothing and can be deleted.
    pub fn is_empty(&self) -> bool {
        self.last_fencing_token == 0
            && self.queue.len() == 0
            && self.tombstones.is_empty()
            && self.set_limit.is_none()
            && !self.has_closure()
    }

    /// Rejects a waiting call that can never be granted, because the limit was lowered.
    fn reject_waiting(&mut self, context: &Context, acquire: &AcquireCommand) -> Outcome<Acquired> {
        if let Some(waiter) = self.queue.remove(acquire.request) {
            self.record_waiter(ChangeKind::Abandoned, &waiter, context.now());
        }
        let mut outcome = self.grant_and_reply(context, Acquired::LimitMismatch { limit: None });
        outcome.reply = Acquired::LimitMismatch {
            limit: self.limit_in_use(),
        };
        outcome
    }

    /// Continues the wait of a repeated call. The call keeps its queue position, and belongs to
    /// this broker from now on.
    fn continue_wait(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
        stream: Option<Attachment>,
    ) {
        let now = context.now();
        if let Some(waiter) = self.queue.find(acquire.request) {
            waiter.stream = stream;
            waiter.until_ms = waiter.until_ms.max(now + acquire.wait_ms);
            waiter.lapsed_at_ms = None;
        }
        self.queue.extend(now + acquire.wait_ms);
        self.queue.touch(context.broker, now);
    }

    fn acquire_new(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
    ) -> Result<Outcome<Acquired>, Rejected> {
        let now = context.now();
        let may_grant = match context.check_era() {
            Ok(()) => true,
            Err(Rejected::Recovering { .. }) if acquire.rejoin && acquire.wait_ms > 0 => false,
            Err(rejected) => return Err(rejected),
        };
        context.check_span(acquire.ttl.as_millis(), acquire.options.lock_delay_ms)?;
        let mut advanced = match may_grant {
            true => self.grant_waiters(context),
            false => GrantRound {
                hand_offs: Vec::new(),
                is_blocked: true,
                must_repeat: false,
            },
        };
        // Another request of the same lease has an unclaimed hand-off.
        advanced.is_blocked |= self.holders.by_lease(acquire.lease_id).is_some();
        let reply = match self.check_limit(acquire) {
            Err(mismatch) => mismatch,
            Ok(()) if !advanced.is_blocked && self.fits(context, acquire.mode.weight()) => {
                self.grant(context, Waiter::new(context, acquire, now), None);
                self.granted(context, acquire)
            }
            Ok(()) if acquire.wait_ms > 0 && self.queue.len() >= context.bounds.waiters_max => {
                Acquired::QueueFull
            }
            Ok(()) => {
                if acquire.wait_ms > 0 {
                    self.queue.touch(context.broker, now);
                    let waiter = Waiter::new(context, acquire, now);
                    self.record_waiter(ChangeKind::Queued, &waiter, now);
                    self.queue.push(waiter);
                }
                self.waiting_or_held(context, acquire)
            }
        };
        Ok(Outcome {
            hand_offs: advanced.hand_offs,
            ..Outcome::reply_only(reply)
        })
    }

    /// Grants the lock to waiters, then returns the state of the request.
    fn grant_and_answer(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
    ) -> Outcome<Acquired> {
        let hand_offs = self.grant_waiters(context).hand_offs;
        let holder = self.holders.by_request(acquire.request);
        let reply = match holder.is_some_and(|held| held.queue_sequence.is_none()) {
            true => self.granted(context, acquire),
            false => self.waiting_or_held(context, acquire),
        };
        Outcome {
            hand_offs,
            ..Outcome::reply_only(reply)
        }
    }

    /// Grants the lock to waiters after a command, and returns the reply of the command.
    pub(super) fn grant_and_reply<T>(&mut self, context: &Context, reply: T) -> Outcome<T> {
        Outcome {
            hand_offs: self.grant_waiters(context).hand_offs,
            ..Outcome::reply_only(reply)
        }
    }

    pub(super) fn extend(
        &mut self,
        context: &Context,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Option<Grant> {
        let is_claim = self.is_provisional(lease_id);
        self.holders
            .extend(lease_id, &mut self.queue, context, ttl)?;
        if is_claim {
            self.record_claim(lease_id, context.now());
        }
        self.grant_of(context, lease_id)
    }

    /// Returns the reason for which a holder is not extended further.
    pub(super) fn hold_limit_rejection(&self, lease_id: LeaseId) -> LeaseRejection {
        let held = self.holders.by_lease(lease_id);
        match held.and_then(|held| held.revoke_reason.clone()) {
            Some(reason) => LeaseRejection::Revoked { reason },
            None => LeaseRejection::MaxHold,
        }
    }

    /// Cancels a hand-off that the waiter has not claimed.
    fn cancel_hand_off(&mut self, request: RequestHash) {
        let Some(held) = self.holders.by_request(request) else {
            return;
        };
        let (lease_id, sequence) = (held.lease_id, held.queue_sequence);
        if let Some(sequence) = sequence
            && let Some(held) = self.holders.remove(lease_id)
        {
            self.queue.return_to_queue(sequence, &held);
        }
    }

    fn is_provisional(&self, lease_id: LeaseId) -> bool {
        let is_provisional = |held: &HolderSlot| held.queue_sequence.is_some();
        self.holders.by_lease(lease_id).is_some_and(is_provisional)
    }

    fn holds(&self, lease: &LeaseRef) -> bool {
        let held = self.holders.by_lease(lease.lease_id);
        held.is_some_and(|held| held.matches(lease))
    }

    pub(super) fn granted(&self, context: &Context, acquire: &AcquireCommand) -> Acquired {
        self.grant_of(context, acquire.lease_id)
            .map_or(Acquired::Ended, Acquired::Granted)
    }

    /// Returns the grant of a lease, or `None` if its `max_hold` has been reached.
    pub(super) fn grant_of(&self, context: &Context, lease_id: LeaseId) -> Option<Grant> {
        let held = self.holders.by_lease(lease_id)?;
        Some(Grant {
            fencing_token: held.fencing_token,
            mode: Mode::from_stored(held.weight(), self.limit),
            ttl: held.validity(context)?,
            acquired_ms: held.acquired_ms,
            hold_count: held.hold_count(),
            queue_length: self.queue.len(),
            disconnect_grace_ms: held.options.disconnect_grace_ms,
            span_ms: span_ms(held.ttl_ms, held.options.lock_delay_ms),
        })
    }

    fn waiting_or_held(&self, context: &Context, acquire: &AcquireCommand) -> Acquired {
        if acquire.wait_ms == 0 {
            return Acquired::Held(self.contention(context.now()));
        }
        let sequence = self.queue.sequence(acquire.request);
        let last = sequence.filter(|sequence| self.queue.is_last(*sequence));
        Acquired::Queued {
            next_event_ms: self.next_event_ms(context),
            sequence,
            position: last.map(|_| self.queue.len()),
            last_fencing_token: self.last_fencing_token,
            era: None,
        }
    }
}

#[cfg(test)]
mod tests;
