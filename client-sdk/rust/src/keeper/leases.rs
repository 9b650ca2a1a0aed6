//! Leases: kept by heartbeats, trusted no longer than was confirmed, given back once.

mod release;

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_proto::v1::{
    AttachLease, DetachLease, Grant, HeartbeatAck, Lease, LeaseAttached, LeaseEndReason,
    LeaseEnded, LeaseExtended, Refused, hold_request::Message as Request,
};
use tracing::warn;

use self::release::{Part, Release};
use super::{
    Keeper,
    link::About,
    moves::jittered,
    waits::{Wait, ttl_of},
};
use crate::{
    clock,
    core::{Core, Orders, Slot},
    error::{Error, LostReason, Refusal, is_open, lost, time},
    guard::Guard,
    order::Call,
    target::lock,
    trust::Trust,
};

const REPEAT_PAUSE: Duration = Duration::from_millis(100);

/// A lease of the stream, or on its way to the next one.
pub(super) struct Owned {
    lease: Lease,
    trust: Arc<Trust>,
    slot: Slot,
    attach_number: i32,
    is_here: bool,
    /// When it was granted.
    granted_at: Duration,
    /// When it came to this stream from another one.
    came_at: Option<Duration>,
    valid_until: Duration,
    ttl: Duration,
    interval: Duration,
    /// Guards that have not given back what they have.
    guards: usize,
    /// The call that it was granted to, while too little of its validity is known to hand it out.
    unborn: Option<Box<Wait>>,
    release: Option<Release>,
    parts: HashMap<u64, Part>,
}

impl Owned {
    pub(super) fn is_here(&self) -> bool {
        self.is_here
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn attach_number(&self) -> i32 {
        self.attach_number
    }

    pub(super) fn is_unborn(&self) -> bool {
        self.unborn.is_some()
    }

    pub(super) fn is_given_back(&self) -> bool {
        self.release.is_some()
    }

    /// When it ends by itself.
    pub(super) fn due_at(&self) -> Duration {
        match (&self.release, &self.unborn) {
            (Some(release), _) => release.gone_at(),
            (None, Some(_)) => self.granted_at + self.ttl,
            (None, None) => self.trust.until(),
        }
    }

    /// When it needs a heartbeat, the last one being so old.
    pub(super) fn beat_at(&self, last: Option<Duration>) -> Duration {
        let Some(last) = last else {
            return Duration::ZERO;
        };
        let interval = self.interval.min(self.ttl / 3);
        // One soon for all that have just come here, or were granted late: their broker is busy.
        let soon = last + interval / 4;
        if self.came_at.is_some_and(|came_at| came_at > last) {
            soon
        } else if self.granted_at > last {
            let counts_from = self.valid_until.saturating_sub(self.ttl);
            (counts_from + interval).clamp(soon, last + interval)
        } else {
            last + interval
        }
    }

    /// How long its broker may answer no heartbeat.
    pub(super) fn patience(&self) -> Duration {
        self.ttl / 4
    }

    pub(super) fn unborn(self) -> Option<(Slot, Wait)> {
        Some((self.slot, *self.unborn?))
    }

    /// A guard for what a call has added to the lease.
    pub(super) fn enter(
        &mut self,
        answer: Lease,
        call: &Call,
        reach: (Orders, Arc<Core>),
    ) -> Guard {
        self.guards += 1;
        self.merge(answer, call);
        self.guard(call, reach)
    }

    /// Merges the grants of the call's own locks; the answer may omit grants added by other calls.
    fn merge(&mut self, mut answer: Lease, call: &Call) {
        answer.grants.retain(|grant| is_asked(call, grant));
        let others = self.lease.grants.drain(..);
        answer
            .grants
            .extend(others.filter(|grant| !is_asked(call, grant)));
        self.lease = answer;
    }

    fn guard(&self, call: &Call, reach: (Orders, Arc<Core>)) -> Guard {
        let grants = self.lease.grants.iter();
        let grants = grants.filter(|grant| is_asked(call, grant));
        let (grants, trust) = (grants.cloned().collect(), Arc::clone(&self.trust));
        let request_id = call.request_id.clone();
        Guard::new(&self.lease.lease_id, grants, request_id, trust, reach)
    }

    /// It is over. Whether nobody had it yet.
    fn over(&mut self, why: LostReason) -> bool {
        self.trust.end(why.clone());
        // Dropping the senders notifies those that wait for an answer.
        self.parts.clear();
        let unborn = self.unborn.take();
        let is_unborn = unborn.is_some();
        if let Some(mut wait) = unborn {
            wait.answer(Err(Error::LeaseLost(why)));
        }
        is_unborn
    }

    /// The client closes: it is over. A release of it that nobody has answered is left.
    pub(super) fn closed(mut self) -> Option<Release> {
        self.over(LostReason::Closed);
        self.release
    }
}

fn is_asked(call: &Call, grant: &Grant) -> bool {
    let granted = grant.target.as_ref().map(lock);
    let mut asked = call.targets.iter().map(lock);
    granted.is_some_and(|granted| asked.any(|asked| asked == granted))
}

impl Keeper {
    /// Takes on the lease that was granted to a call, with validity since `sent`.
    pub(super) fn own(&mut self, lease: Lease, mut wait: Wait, sent: Duration) {
        let Some(slot) = wait.slot.take() else { return };
        let (lease_id, ttl) = (lease.lease_id.clone(), ttl_of(&lease));
        let interval = time(lease.heartbeat_interval);
        let owned = Owned {
            trust: Arc::default(),
            slot,
            attach_number: wait.attach_number(),
            is_here: true,
            granted_at: clock::now(),
            came_at: None,
            valid_until: sent + ttl,
            ttl,
            interval: if interval.is_zero() {
                ttl / 3
            } else {
                interval
            },
            guards: 1,
            unborn: Some(Box::new(wait)),
            release: None,
            parts: HashMap::new(),
            lease,
        };
        self.leases.insert(lease_id.clone(), owned);
        self.hand_out(&lease_id);
        self.look_at_lease(&lease_id);
    }

    /// Hands a lease out for the first time, if half of its validity is left. Otherwise the next
    /// heartbeat does, which is due soon.
    fn hand_out(&mut self, lease_id: &str) {
        let now = clock::now();
        let Some(owned) = self.leases.get_mut(lease_id) else {
            return;
        };
        if now + owned.ttl / 2 > owned.valid_until {
            return;
        }
        if let Some(mut wait) = owned.unborn.take() {
            owned.trust.begin(owned.valid_until, owned.ttl);
            wait.answer(Ok(owned.guard(&wait.call, wait.reach())));
        }
    }

    pub(super) fn acknowledged(&mut self, ack: HeartbeatAck) {
        let sent = self
            .link
            .as_ref()
            .and_then(|link| link.beat_sent(ack.sequence));
        let Some(sent) = sent else { return };
        for extended in ack.leases {
            self.extended(sent, &extended);
        }
    }

    fn extended(&mut self, sent: Duration, extended: &LeaseExtended) {
        let Some(owned) = self.leases.get_mut(&extended.lease_id) else {
            return;
        };
        if usize::try_from(extended.grant_count) != Ok(owned.lease.grants.len()) {
            return;
        }
        owned.ttl = time(extended.ttl);
        owned.valid_until = owned.valid_until.max(sent + owned.ttl);
        if owned.unborn.is_some() {
            self.hand_out(&extended.lease_id);
        } else if owned.release.is_none() && !owned.trust.extend(sent + owned.ttl, owned.ttl) {
            self.lapse(&extended.lease_id);
        }
        self.look_at_lease(&extended.lease_id);
    }

    /// Stops renewing a lease whose validity has passed. The lock is released only after the guarded work has
    /// stopped; see [`Self::keep_lost`].
    pub(super) fn lapse(&mut self, lease_id: &str) {
        let Some(mut owned) = self.leases.remove(lease_id) else {
            return;
        };
        warn!(lease_id, "a lock is lost: no renewal was confirmed in time");
        if owned.is_here {
            self.detach(lease_id.to_owned());
        }
        let is_unborn = owned.over(LostReason::Expired);
        self.acquire_under(lease_id);
        self.keep_lost(lease_id, owned, is_unborn);
    }

    pub(super) fn detach(&mut self, lease_id: String) {
        if let Some(link) = &mut self.link {
            link.call(About::Nothing, |call_id| {
                Request::Detach(DetachLease { call_id, lease_id })
            });
        }
    }

    /// Puts a lease on this stream.
    pub(super) fn attach(&mut self, lease_id: &str) {
        let (Some(link), Some(owned)) = (&mut self.link, self.leases.get_mut(lease_id)) else {
            return;
        };
        if owned.release.is_some() {
            return self.release(lease_id);
        }
        if !owned.trust.is_valid() {
            return self.lapse(lease_id);
        }
        owned.attach_number += 1;
        let (lease, attach_number) = (Some(owned.lease.clone()), owned.attach_number);
        link.call(About::Attach(lease_id.to_owned()), |call_id| {
            Request::Attach(AttachLease {
                call_id,
                lease,
                attach_number,
            })
        });
    }

    pub(super) fn attached(&mut self, attached: &LeaseAttached) {
        self.answered(attached.call_id);
        let lease_id = &attached.lease_id;
        let Some(owned) = self.leases.get_mut(lease_id) else {
            // Lost on the way.
            return self.detach(lease_id.clone());
        };
        (owned.is_here, owned.came_at) = (true, Some(clock::now()));
        self.look_at = Duration::ZERO;
        if owned.release.is_some() {
            return self.release(lease_id);
        }
        let parts: Vec<_> = owned.parts.keys().copied().collect();
        for part in parts {
            self.release_part(lease_id, part);
        }
        self.acquire_under(lease_id);
    }

    pub(super) fn attach_refused(&mut self, lease_id: &str, message: &Refused) {
        if is_open(message) {
            let about = About::Attach(lease_id.to_owned());
            self.again
                .push((clock::now() + jittered(REPEAT_PAUSE), about));
            return;
        }
        match self.leases.get(lease_id) {
            Some(owned) if owned.release.is_some() => self.release(lease_id),
            Some(_) => self.lose(lease_id, lost(message.reason(), &message.message)),
            None => {}
        }
    }

    pub(super) fn ended(&mut self, ended: &LeaseEnded) {
        let why = match ended.reason() {
            LeaseEndReason::Released => LostReason::Released,
            LeaseEndReason::Expired => LostReason::Expired,
            LeaseEndReason::Revoked => LostReason::Revoked(ended.message.clone()),
            LeaseEndReason::StoreLost => LostReason::StoreLost,
            LeaseEndReason::MaxHold => LostReason::MaxHold,
            LeaseEndReason::Moved => LostReason::Moved,
            LeaseEndReason::CredentialExpired => LostReason::CredentialExpired,
            LeaseEndReason::Unspecified => LostReason::Other(ended.message.clone()),
        };
        self.lose(&ended.lease_id, why);
    }

    fn lose(&mut self, lease_id: &str, why: LostReason) {
        let Some(mut owned) = self.leases.remove(lease_id) else {
            return;
        };
        if let Some(release) = owned.release.take() {
            return release.lost(why);
        }
        warn!(lease_id, %why, "a lock is lost");
        let is_to_be_given_back = why.leaves_the_lock();
        let is_unborn = owned.over(why);
        self.acquire_under(lease_id);
        if is_to_be_given_back {
            self.keep_lost(lease_id, owned, is_unborn);
        }
    }

    /// Keeps a lost lease until the work under it has stopped. Then its lock is released, before the lease
    /// expires in the store.
    fn keep_lost(&mut self, lease_id: &str, mut owned: Owned, is_unborn: bool) {
        owned.is_here = false;
        self.lost.insert(lease_id.to_owned(), owned);
        if is_unborn {
            self.give_back_lost(lease_id);
        }
    }

    /// No heartbeat has made enough of a late grant.
    pub(super) fn not_born(&mut self, lease_id: &str) {
        let Some(mut owned) = self.leases.remove(lease_id) else {
            return;
        };
        self.detach(lease_id.to_owned());
        if let Some(mut wait) = owned.unborn.take() {
            let why = "the lock was granted so late that nobody could rely on it";
            wait.answer(Err(Error::Unavailable(Refusal::new(why))));
        }
    }

    /// Everything that is not on a stream any more.
    pub(super) fn off_stream(&mut self) {
        self.again.clear();
        self.waits_off_stream();
        for owned in self.leases.values_mut() {
            owned.is_here = false;
        }
        let unborn = self.leases.extract_if(|_, owned| owned.unborn.is_some());
        let unborn: Vec<_> = unborn.filter_map(|(_, owned)| owned.into_wait()).collect();
        for wait in unborn {
            self.waits.insert(wait.call.request_id.clone(), wait);
        }
    }

    /// Brings everything to a new stream.
    pub(super) fn take_up(&mut self) {
        let leases: Vec<_> = self.leases.keys().cloned().collect();
        for lease_id in leases {
            self.attach(&lease_id);
        }
        let waits: Vec<_> = self.waits.keys().cloned().collect();
        for request_id in waits {
            self.acquire(&request_id);
        }
    }
}
