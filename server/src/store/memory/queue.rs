//! The line before a lock: places, and which brokers still look after their waiters.

use std::collections::{BTreeMap, HashMap};

use super::{
    context::Context,
    entry::{Attempts, Entry, Presence},
    holders::Held,
};
use crate::lock::{
    Acquire, Attachment, BrokerId, LeaseId, Owner, RequestHash, SILENT_MS, STALL_MS, Terms, Under,
    expiry_ms,
};

/// A call in line.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) lease_id: LeaseId,
    pub(super) entry: Entry,
    pub(super) owner: Owner,
    pub(super) terms: Terms,
    /// The lease is there already.
    pub(super) added: bool,
    pub(super) stream: Option<Attachment>,
    pub(super) ttl_ms: u64,
    pub(super) since_ms: u64,
    pub(super) until_ms: u64,
    /// When a hand-off to it lapsed unclaimed: passed over until its broker touches. 0: never.
    pub(super) passed_ms: u64,
    /// Handed the lock, and not claimed it yet.
    is_promised: bool,
}

/// The line. A provisional holder keeps its place in it.
#[derive(Debug, Default)]
pub(super) struct Queue {
    tail: u64,
    until_ms: u64,
    waiters: BTreeMap<u64, Waiter>,
    places: HashMap<RequestHash, u64>,
    touches: Touches,
}

/// When brokers touched last.
#[derive(Debug, Default)]
struct Touches {
    brokers: HashMap<BrokerId, Touch>,
    /// The last touch by anyone: on the store's clock, and on the clock that stands still while
    /// nobody touches, by which silence is judged.
    last: Touch,
}

#[derive(Debug, Clone, Copy, Default)]
struct Touch {
    ms: u64,
    heard_ms: u64,
}

/// The waiter whose turn it is.
pub(super) struct Next {
    pub(super) place: u64,
    pub(super) weight: u32,
    /// Who is told. Another than the one that runs the command must claim the lock: the waiter keeps
    /// its place in line until then.
    pub(super) broker: BrokerId,
    pub(super) is_provisional: bool,
}

/// Waiters that were met on the way to the one whose turn it is.
#[derive(Debug, Default)]
pub(super) struct PassedOver {
    /// They have been taken out.
    pub(super) gone: Vec<Waiter>,
    /// The lease of one of this broker's holds the lock.
    pub(super) may_enter: bool,
}

impl Waiter {
    pub(super) fn new(context: &Context, acquire: &Acquire, now: u64) -> Self {
        Self {
            lease_id: acquire.lease_id,
            entry: Entry::new(acquire, context.broker),
            owner: acquire.owner.clone(),
            terms: acquire.terms,
            added: acquire.under != Under::NewLease,
            stream: acquire.stream,
            ttl_ms: acquire.ttl.as_millis(),
            since_ms: now,
            until_ms: now + acquire.wait_ms,
            passed_ms: 0,
            is_promised: false,
        }
    }

    /// Whether its time has passed even by the clock of its broker, which may run slower by a fifth. The
    /// broker ends the wait before.
    fn is_over(&self, now: u64) -> bool {
        self.since_ms + expiry_ms(self.until_ms - self.since_ms) <= now
    }

    /// Its attempts that count for a call from there. A client that has moved from one stream to another has
    /// left the older one; a unary call may be open still.
    pub(super) fn attempts_at(&self, there: Option<Attachment>) -> Attempts {
        let there = there.map(|there| there.stream);
        match self.stream {
            Some(here) if Some(here.stream) != there => Attempts::default(),
            Some(_) | None => self.entry.attempts.clone(),
        }
    }
}

impl Queue {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.waiters.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.waiters.iter().map(|(&place, waiter)| (place, waiter))
    }

    /// The place of a request, and whether it is the last that was taken.
    pub(super) fn place(&self, request: RequestHash) -> (u64, bool) {
        let place = self.places.get(&request).copied().unwrap_or(0);
        (place, place == self.tail)
    }

    pub(super) fn find(&mut self, request: RequestHash) -> Option<&mut Waiter> {
        self.waiters.get_mut(self.places.get(&request)?)
    }

    /// Joins at the tail. The broker has touched before.
    pub(super) fn join(&mut self, waiter: Waiter) {
        self.tail += 1;
        self.extend(waiter.until_ms);
        self.places.insert(waiter.entry.request, self.tail);
        self.waiters.insert(self.tail, waiter);
    }

    /// Until when anybody waits at the latest.
    pub(super) fn until_ms(&self) -> u64 {
        self.until_ms
    }

    /// Somebody waits until then.
    pub(super) fn extend(&mut self, until_ms: u64) {
        self.until_ms = self.until_ms.max(until_ms);
    }

    /// Takes a waiter out of the line.
    pub(super) fn take(&mut self, place: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&place)?;
        self.places.remove(&waiter.entry.request);
        if self.waiters.is_empty() {
            *self = Self::default();
        }
        Some(waiter)
    }

    /// Hands a waiter the lock. One whose grant is provisional keeps its place.
    pub(super) fn hand(&mut self, next: &Next, me: BrokerId, now: u64) -> Option<Waiter> {
        let waiter = self.waiters.get_mut(&next.place)?;
        let attempts = &mut waiter.entry.attempts;
        if attempts.broker() != Some(next.broker) {
            attempts.hand_to(next.broker, |broker| self.touches.presence(broker, me, now));
        }
        if !next.is_provisional {
            return self.take(next.place);
        }
        waiter.is_promised = true;
        Some(waiter.clone())
    }

    /// Adds an attempt of this broker to a waiter's, which is put there. False if the list is full of
    /// attempts whose brokers may live.
    pub(super) fn add_attempt(
        &mut self,
        acquire: &Acquire,
        there: Option<Attachment>,
        context: &Context,
    ) -> bool {
        let (me, now) = (context.broker, context.now());
        let place = self.places.get(&acquire.request);
        let waiter = place.and_then(|place| self.waiters.get_mut(place));
        waiter.is_some_and(|waiter| {
            let presence = |broker| self.touches.presence(broker, me, now);
            waiter.entry.attempts = waiter.attempts_at(there);
            let attempts = &mut waiter.entry.attempts;
            attempts.add_waiting(acquire.attempt, me, context.attempts_max, presence)
        })
    }

    pub(super) fn remove(&mut self, request: RequestHash) -> Option<Waiter> {
        self.take(*self.places.get(&request)?)
    }

    /// A hand-off lapsed unclaimed.
    pub(super) fn fall_back(&mut self, place: u64, lapsed: &Held) {
        if let Some(waiter) = self.waiters.get_mut(&place) {
            waiter.entry = lapsed.entries[0].clone();
            waiter.passed_ms = lapsed.expires_ms;
            waiter.is_promised = false;
        }
    }

    /// The broker lives.
    pub(super) fn touch(&mut self, broker: BrokerId, now: u64) {
        self.touches.touch(broker, now);
    }

    pub(super) fn knows(&self, broker: BrokerId) -> bool {
        self.touches.brokers.contains_key(&broker)
    }

    /// The broker is unknown here, or was silent for too long.
    pub(super) fn is_silent(&self, broker: BrokerId, now: u64) -> bool {
        let silent_ms = self.touches.silent_ms(broker, now);
        silent_ms.is_none_or(|ms| ms > SILENT_MS)
    }

    /// Takes out waiters that are past their time or can never fit, and finds the first, at `from` or
    /// behind it, that can be granted the lock: `None` if nobody waits whose broker is known to live. A
    /// waiter whose lease holds the lock is passed over: it enters by asking again.
    pub(super) fn next(
        &mut self,
        mut from: u64,
        limit: u32,
        context: &Context,
        holds: impl Fn(LeaseId) -> bool,
        passed: &mut PassedOver,
    ) -> Option<Next> {
        let (me, now) = (context.broker, context.now());
        while let Some((&place, waiter)) = self.waiters.range(from..).next() {
            from = place + 1;
            if waiter.is_promised {
                continue;
            }
            let weight = waiter.entry.weight;
            if waiter.is_over(now) || weight > limit {
                passed.gone.extend(self.take(place));
                continue;
            }
            let brokers: Vec<_> = waiter.entry.attempts.brokers().collect();
            if let Some(broker) = self.touches.live(&brokers, me, now, waiter.passed_ms) {
                if holds(waiter.lease_id) {
                    passed.may_enter |= broker == me;
                    continue;
                }
                return Some(Next {
                    place,
                    weight,
                    broker,
                    is_provisional: broker != me,
                });
            }
            let presence = |&broker| self.touches.presence(broker, me, now);
            if brokers.iter().map(presence).all(|is| is == Presence::Gone) {
                passed.gone.extend(self.take(place));
            }
        }
        None
    }
}

impl Touches {
    fn touch(&mut self, broker: BrokerId, now: u64) {
        self.last = Touch {
            ms: now,
            heard_ms: self.heard_ms(now),
        };
        self.brokers.insert(broker, self.last);
    }

    /// The first of these brokers that can be handed the lock of a waiter whose last hand-off lapsed
    /// then.
    fn live(
        &self,
        brokers: &[BrokerId],
        me: BrokerId,
        now: u64,
        passed_ms: u64,
    ) -> Option<BrokerId> {
        let has_touched = |broker: BrokerId| {
            let touch = self.brokers.get(&broker);
            touch.is_some_and(|touch| touch.ms >= passed_ms)
        };
        let is_live = |&broker: &BrokerId| {
            self.presence(broker, me, now) == Presence::Live
                && (broker == me || has_touched(broker))
        };
        brokers.iter().copied().find(is_live)
    }

    fn presence(&self, broker: BrokerId, me: BrokerId, now: u64) -> Presence {
        if broker == me {
            return Presence::Live;
        }
        match self.silent_ms(broker, now) {
            Some(0..=SILENT_MS) => Presence::Live,
            Some(ms) if ms <= 2 * SILENT_MS => Presence::Silent,
            Some(_) | None => Presence::Gone,
        }
    }

    /// The clock of silence: a gap between touches above [`STALL_MS`] does not count.
    fn heard_ms(&self, now: u64) -> u64 {
        let gap = now.saturating_sub(self.last.ms);
        self.last.heard_ms + if gap > STALL_MS { 0 } else { gap }
    }

    fn silent_ms(&self, broker: BrokerId, now: u64) -> Option<u64> {
        let touch = self.brokers.get(&broker)?;
        Some(self.heard_ms(now).saturating_sub(touch.heard_ms))
    }
}
