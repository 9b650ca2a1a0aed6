//! Queue of one lock: the order of its waiters, and the activity of their brokers.

use std::collections::BTreeMap;

use super::{
    context::Context,
    entry::{Attempts, Entry, Presence},
    holders::HolderSlot,
};
use crate::lock::{
    AcquireCommand, Attachment, BROKER_SILENT_AFTER_MS, BrokerId, LeaseBinding, LeaseId,
    LeaseOptions, Owner, RequestHash, TOUCH_STALL_MS, expiry_ms,
};

/// A queued request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) lease_id: LeaseId,
    pub(super) entry: Entry,
    pub(super) owner: Owner,
    pub(super) options: LeaseOptions,
    /// True if the lease existed before this request.
    pub(super) added_to_lease: bool,
    pub(super) stream: Option<Attachment>,
    pub(super) ttl_ms: u64,
    pub(super) since_ms: u64,
    pub(super) until_ms: u64,
    /// Time at which a hand-off to this waiter lapsed. The waiter is skipped until its broker
    /// touches the lock.
    pub(super) lapsed_at_ms: Option<u64>,
    /// True while the waiter has an unclaimed hand-off.
    is_provisional: bool,
}

/// The queue. A provisional holder keeps its queue position.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Queue {
    last_sequence: u64,
    until_ms: u64,
    waiters: BTreeMap<u64, Waiter>,
    sequences: BTreeMap<RequestHash, u64>,
    touches: Touches,
}

/// Times of the last touch of each broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Touches {
    brokers: BTreeMap<BrokerId, Touch>,
    /// Last touch by any broker, on the store's clock and on the activity clock. The activity clock
    /// does not count gaps of more than [`TOUCH_STALL_MS`] between touches, and is used to measure
    /// silence.
    last: Touch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Touch {
    ms: u64,
    active_clock_ms: u64,
}

/// The waiter that is granted the lock next.
pub(super) struct NextWaiter {
    pub(super) sequence: u64,
    pub(super) weight: u32,
    /// Broker to notify. If this is not the broker that runs the command, it must claim the lock,
    /// and the waiter keeps its queue position until then.
    pub(super) broker: BrokerId,
    pub(super) is_provisional: bool,
}

/// Waiters skipped in the search for the next one.
#[derive(Debug, Default)]
pub(super) struct SkippedWaiters {
    /// Waiters that were removed from the queue.
    pub(super) removed: Vec<Waiter>,
    /// True if a skipped waiter of this broker must repeat its request: its lease holds the lock, or
    /// it needs more than the limit or a longer span than allowed.
    pub(super) must_repeat: bool,
}

impl Waiter {
    pub(super) fn new(context: &Context, acquire: &AcquireCommand, now: u64) -> Self {
        Self {
            lease_id: acquire.lease_id,
            entry: Entry::new(acquire, context.broker),
            owner: acquire.owner.clone(),
            options: acquire.options,
            added_to_lease: acquire.binding != LeaseBinding::New,
            stream: acquire.stream,
            ttl_ms: acquire.ttl.as_millis(),
            since_ms: now,
            until_ms: now + acquire.wait_ms,
            lapsed_at_ms: None,
            is_provisional: false,
        }
    }

    /// Returns true if the wait has timed out even by the clock of the waiter's broker, which may
    /// run slower by a fifth. The broker ends the wait earlier.
    fn has_timed_out(&self, now: u64) -> bool {
        self.since_ms + expiry_ms(self.until_ms - self.since_ms) <= now
    }

    /// Returns the attempts that remain valid for a call from `attachment`. A client that has moved
    /// from one stream to another has left the older stream, but a unary call may still be open.
    pub(super) fn attempts_at(&self, attachment: Option<Attachment>) -> Attempts {
        let stream = attachment.map(|attachment| attachment.stream);
        match self.stream {
            Some(current) if Some(current.stream) != stream => Attempts::default(),
            Some(_) | None => self.entry.attempts.clone(),
        }
    }
}

impl Queue {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.waiters.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.waiters
            .iter()
            .map(|(&sequence, waiter)| (sequence, waiter))
    }

    /// Returns the queue sequence number of a request.
    pub(super) fn sequence(&self, request: RequestHash) -> Option<u64> {
        self.sequences.get(&request).copied()
    }

    /// Returns true if no request has joined the queue after the one with `sequence`.
    pub(super) fn is_last(&self, sequence: u64) -> bool {
        sequence == self.last_sequence
    }

    pub(super) fn find(&mut self, request: RequestHash) -> Option<&mut Waiter> {
        self.waiters.get_mut(self.sequences.get(&request)?)
    }

    /// Appends a waiter. Its broker must have touched the lock before.
    pub(super) fn push(&mut self, waiter: Waiter) {
        self.last_sequence += 1;
        self.extend(waiter.until_ms);
        self.sequences
            .insert(waiter.entry.request, self.last_sequence);
        self.waiters.insert(self.last_sequence, waiter);
    }

    /// Returns an upper bound of the times at which waits end.
    pub(super) fn until_ms(&self) -> u64 {
        self.until_ms
    }

    /// Raises the upper bound of the times at which waits end.
    pub(super) fn extend(&mut self, until_ms: u64) {
        self.until_ms = self.until_ms.max(until_ms);
    }

    /// Removes a waiter from the queue.
    pub(super) fn remove_at(&mut self, sequence: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&sequence)?;
        self.sequences.remove(&waiter.entry.request);
        if self.waiters.is_empty() {
            *self = Self::default();
        }
        Some(waiter)
    }

    /// Hands the lock to a waiter. With a provisional grant the waiter keeps its queue position.
    pub(super) fn hand_off(
        &mut self,
        next: &NextWaiter,
        this_broker: BrokerId,
        now: u64,
    ) -> Option<Waiter> {
        let waiter = self.waiters.get_mut(&next.sequence)?;
        let attempts = &mut waiter.entry.attempts;
        if attempts.broker() != Some(next.broker) {
            attempts.move_to_broker(next.broker, |broker| {
                self.touches.presence(broker, this_broker, now)
            });
        }
        if !next.is_provisional {
            return self.remove_at(next.sequence);
        }
        waiter.is_provisional = true;
        Some(waiter.clone())
    }

    /// Adds an attempt of this broker to a waiter, which moves to the stream `attachment`. Returns
    /// false if the list is full of attempts whose brokers are not gone.
    pub(super) fn add_attempt(
        &mut self,
        acquire: &AcquireCommand,
        attachment: Option<Attachment>,
        context: &Context,
    ) -> bool {
        let (this_broker, now) = (context.broker, context.now());
        let sequence = self.sequences.get(&acquire.request);
        let waiter = sequence.and_then(|sequence| self.waiters.get_mut(sequence));
        waiter.is_some_and(|waiter| {
            let presence = |broker| self.touches.presence(broker, this_broker, now);
            waiter.entry.attempts = waiter.attempts_at(attachment);
            let attempts = &mut waiter.entry.attempts;
            attempts.add_waiting(
                acquire.attempt,
                this_broker,
                context.bounds.attempts_max,
                presence,
            )
        })
    }

    pub(super) fn remove(&mut self, request: RequestHash) -> Option<Waiter> {
        self.remove_at(*self.sequences.get(&request)?)
    }

    /// Returns a waiter to the queue after its hand-off lapsed.
    pub(super) fn return_to_queue(&mut self, sequence: u64, lapsed: &HolderSlot) {
        if let Some(waiter) = self.waiters.get_mut(&sequence) {
            waiter.entry = lapsed.entries[0].clone();
            waiter.lapsed_at_ms = Some(lapsed.expires_ms);
            waiter.is_provisional = false;
        }
    }

    /// Records that `broker` is alive.
    pub(super) fn touch(&mut self, broker: BrokerId, now: u64) {
        self.touches.touch(broker, now);
    }

    pub(super) fn contains_broker(&self, broker: BrokerId) -> bool {
        self.touches.brokers.contains_key(&broker)
    }

    /// Returns true if `broker` is unknown at this lock, or has been silent for longer than
    /// [`BROKER_SILENT_AFTER_MS`].
    pub(super) fn is_silent(&self, broker: BrokerId, now: u64) -> bool {
        let silent_ms = self.touches.silent_ms(broker, now);
        silent_ms.is_none_or(|ms| ms > BROKER_SILENT_AFTER_MS)
    }

    /// Returns the first waiter, at `from` or behind it, that can be granted the lock. Returns
    /// `None` if no waiter has a broker that is known to be alive.
    ///
    /// Removes waiters that have timed out, or whose brokers are gone. A waiter whose lease holds
    /// the lock is skipped, because it enters by repeating its request, and so is a waiter that can
    /// never fit, because its broker must be notified.
    pub(super) fn next(
        &mut self,
        mut from: u64,
        limit: u32,
        context: &Context,
        holds: impl Fn(LeaseId) -> bool,
        passed: &mut SkippedWaiters,
    ) -> Option<NextWaiter> {
        let (this_broker, now) = (context.broker, context.now());
        while let Some((&sequence, waiter)) = self.waiters.range(from..).next() {
            from = sequence + 1;
            if waiter.is_provisional {
                continue;
            }
            let weight = waiter.entry.weight;
            if waiter.has_timed_out(now) {
                passed.removed.extend(self.remove_at(sequence));
                continue;
            }
            let brokers: Vec<_> = waiter.entry.attempts.brokers().collect();
            if let Some(broker) = self
                .touches
                .live(&brokers, this_broker, now, waiter.lapsed_at_ms)
            {
                let (ttl_ms, lock_delay_ms) = (waiter.ttl_ms, waiter.options.lock_delay_ms);
                let can_fit = weight <= limit && context.check_span(ttl_ms, lock_delay_ms).is_ok();
                if !can_fit || holds(waiter.lease_id) {
                    passed.must_repeat |= broker == this_broker;
                    continue;
                }
                return Some(NextWaiter {
                    sequence,
                    weight,
                    broker,
                    is_provisional: broker != this_broker,
                });
            }
            let presence = |&broker| self.touches.presence(broker, this_broker, now);
            if brokers.iter().map(presence).all(|is| is == Presence::Gone) {
                passed.removed.extend(self.remove_at(sequence));
            }
        }
        None
    }
}

impl Touches {
    fn touch(&mut self, broker: BrokerId, now: u64) {
        self.last = Touch {
            ms: now,
            active_clock_ms: self.active_clock_ms(now),
        };
        self.brokers.insert(broker, self.last);
    }

    /// Returns the first of `brokers` that can receive a hand-off for a waiter whose last hand-off
    /// lapsed at `passed_ms`, if one did.
    fn live(
        &self,
        brokers: &[BrokerId],
        this_broker: BrokerId,
        now: u64,
        passed_ms: Option<u64>,
    ) -> Option<BrokerId> {
        let has_touched = |broker: BrokerId| {
            let touch = self.brokers.get(&broker);
            touch.is_some_and(|touch| passed_ms.is_none_or(|passed_ms| touch.ms >= passed_ms))
        };
        let is_live = |&broker: &BrokerId| {
            self.presence(broker, this_broker, now) == Presence::Live
                && (broker == this_broker || has_touched(broker))
        };
        brokers.iter().copied().find(is_live)
    }

    fn presence(&self, broker: BrokerId, this_broker: BrokerId, now: u64) -> Presence {
        if broker == this_broker {
            return Presence::Live;
        }
        match self.silent_ms(broker, now) {
            Some(0..=BROKER_SILENT_AFTER_MS) => Presence::Live,
            Some(ms) if ms <= 2 * BROKER_SILENT_AFTER_MS => Presence::Silent,
            Some(_) | None => Presence::Gone,
        }
    }

    /// Returns the time of the activity clock, which does not count gaps between touches above
    /// [`TOUCH_STALL_MS`].
    fn active_clock_ms(&self, now: u64) -> u64 {
        let gap = now.saturating_sub(self.last.ms);
        self.last.active_clock_ms + if gap > TOUCH_STALL_MS { 0 } else { gap }
    }

    fn silent_ms(&self, broker: BrokerId, now: u64) -> Option<u64> {
        let touch = self.brokers.get(&broker)?;
        Some(
            self.active_clock_ms(now)
                .saturating_sub(touch.active_clock_ms),
        )
    }
}
