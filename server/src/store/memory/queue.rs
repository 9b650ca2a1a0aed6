//! The line before a lock: places, and which brokers still look after their waiters.

use std::collections::{BTreeMap, HashMap};

use super::{context::Context, entry::Entry, holders::Held};
use crate::lock::{
    Acquire, Attachment, BrokerId, LeaseId, Owner, RequestHash, SILENT_MS, STALL_MS, Terms, Under,
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
    pub(super) lease_id: LeaseId,
    pub(super) weight: u32,
    /// Another broker must claim it: it keeps its place in line until then.
    pub(super) is_provisional: bool,
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

    /// Hands a waiter the lock while it keeps its place.
    pub(super) fn promise(&mut self, place: u64) -> Option<Waiter> {
        let waiter = self.waiters.get_mut(&place)?;
        waiter.is_promised = true;
        Some(waiter.clone())
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
        self.last = Touch {
            ms: now,
            heard_ms: self.heard_ms(now),
        };
        self.brokers.insert(broker, self.last);
    }

    pub(super) fn knows(&self, broker: BrokerId) -> bool {
        self.brokers.contains_key(&broker)
    }

    /// The broker is unknown here, or was silent for too long.
    pub(super) fn is_silent(&self, broker: BrokerId, now: u64) -> bool {
        self.silent_ms(broker, now).is_none_or(|ms| ms > SILENT_MS)
    }

    /// Takes out waiters that can never fit.
    pub(super) fn refuse_above(&mut self, limit: u32) -> Vec<Waiter> {
        let never = |waiter: &&Waiter| !waiter.is_promised && waiter.entry.weight > limit;
        let never = self.waiters.values().filter(never);
        let never: Vec<_> = never.map(|waiter| waiter.entry.request).collect();
        let refused = never.into_iter().filter_map(|request| self.remove(request));
        refused.collect()
    }

    /// Takes out waiters that are past their time or can never fit, into `gone`, and finds the first, at `from` or
    /// behind it, that can be granted the lock: `None` if nobody waits whose broker is known to live.
    pub(super) fn next(
        &mut self,
        mut from: u64,
        limit: u32,
        context: &Context,
        gone: &mut Vec<Waiter>,
    ) -> Option<Next> {
        let (me, now) = (context.broker, context.now());
        while let Some((&place, waiter)) = self.waiters.range(from..).next() {
            from = place + 1;
            let broker = waiter.entry.attempts.broker().unwrap_or(me);
            let (until_ms, passed_ms) = (waiter.until_ms, waiter.passed_ms);
            let next = Next {
                place,
                lease_id: waiter.lease_id,
                weight: waiter.entry.weight,
                is_provisional: broker != me,
            };
            if waiter.is_promised {
                continue;
            }
            if until_ms <= now || next.weight > limit {
                gone.extend(self.take(place));
            } else if broker == me {
                return Some(next);
            } else {
                match self.silent_ms(broker, now) {
                    None => gone.extend(self.take(place)),
                    Some(ms) if ms > 2 * SILENT_MS => gone.extend(self.take(place)),
                    Some(ms) if ms > SILENT_MS => {}
                    Some(_) if self.brokers[&broker].ms < passed_ms => {}
                    Some(_) => return Some(next),
                }
            }
        }
        None
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
