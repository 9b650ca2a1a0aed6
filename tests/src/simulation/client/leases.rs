//! Leases of a client: what it relies on, renews and releases.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "few errors report the loss of a lease"
)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold_server::{
    broker::{
        ReleaseResult,
        lease_stream::{CallError, LeaseEndedReason, RenewedLease, StreamCommand},
    },
    lock::{
        ExpectedAttachment, FencingToken, HeldLock, Lease, LeaseId, LeaseRef, LeaseToken,
        LockError, LockKey, PresentedLease, ReleaseScope as Scope, RequestHash, Ttl,
    },
    trace::Span,
};
use tokio::time::timeout;

use super::{Client, Job, Reply, UnansweredRelease, stream::error_of};
use crate::{
    history::{EventKind, GrantedLock, LossReason, ReleaseScope, Validity},
    simulation::{plan::Part, world::CallFailure},
};

/// Delay before a failed release or attachment is repeated, and maximum number of repeats.
const RETRY_MS: u64 = 250;
const RELEASE_RETRIES: u32 = 20;

/// A lease that the client holds.
pub(super) struct HeldLease {
    token: LeaseToken,
    pub(super) ttl: Ttl,
    locks: BTreeMap<LockKey, HeldShare>,
    /// Released locks that the client still presents, each with the time until which it does.
    presented_until_us: Vec<(LeaseRef, u64)>,
    /// Locks whose release has no reply yet. The client adds none of them: a repeat of the release
    /// on a stream names no token, and would release the newer grant as well.
    releasing: Vec<LockKey>,
    /// End of the validity.
    until_us: u64,
    pub(super) attach_number: u32,
    /// Stream on which the lease is.
    pub(super) stream: Option<u64>,
}

struct HeldShare {
    token: FencingToken,
    /// Entries, by the calls that created them.
    entries: Vec<(u64, RequestHash)>,
}

/// A lease that the client has released. Grants of it may still be on their way.
pub(super) struct ReleasedLease {
    newest_token: FencingToken,
    /// Time of the reply to the release.
    released_at_us: Option<u64>,
}

impl ReleasedLease {
    /// Returns true if the reply to an attempt may date from before the release.
    pub(super) fn covers(&self, reply: &Lease, sent_at_us: u64) -> bool {
        let mut tokens = reply.locks.iter().map(|held| held.grant.fencing_token);
        tokens.all(|token| token <= self.newest_token)
            && self
                .released_at_us
                .is_none_or(|released_at_us| sent_at_us <= released_at_us)
    }
}

/// A release of a lease, or of a part of it.
#[derive(Clone)]
pub(super) struct PartRelease {
    number: u64,
    locks: Vec<LeaseRef>,
    scope: Scope,
    tries: u32,
    /// Stream on which the release is sent. Without one it is sent as a unary call.
    stream: Option<u64>,
}

impl PartRelease {
    pub(super) fn new(number: u64, locks: Vec<LeaseRef>, scope: Scope) -> Self {
        Self {
            number,
            locks,
            scope,
            tries: 0,
            stream: None,
        }
    }
}

impl HeldLease {
    pub(super) fn has_entry(&self, lock: &LockKey, call: u64) -> bool {
        let share = self.locks.get(lock);
        share.is_some_and(|share| share.entries.iter().any(|(number, _)| *number == call))
    }

    pub(super) fn holds(&self, lock: &LockKey) -> bool {
        self.locks.contains_key(lock)
    }

    fn references(&self, lease_id: LeaseId) -> Vec<LeaseRef> {
        let locks = self.locks.iter().map(|(lock, share)| LeaseRef {
            lock: lock.clone(),
            lease_id,
            fencing_token: share.token,
        });
        locks.collect()
    }

    /// Returns the locks that the client presents: those that it holds, and some that it has
    /// released.
    fn presented_locks(&self, lease_id: LeaseId, now_us: u64) -> Vec<LeaseRef> {
        let released = self.presented_until_us.iter();
        let released = released.filter(|(released, until_us)| {
            *until_us > now_us && !self.locks.contains_key(&released.lock)
        });
        let mut locks = self.references(lease_id);
        locks.extend(released.map(|(released, _)| released.clone()));
        locks.sort_by(|a, b| a.lock.cmp(&b.lock));
        locks
    }

    /// Returns true if the release of the lock has no reply yet.
    pub(super) fn is_releasing(&self, lock: &LockKey) -> bool {
        self.releasing.contains(lock)
    }

    /// Presents a lock no longer that was released: a call adds it again, and the lease may have the
    /// lock with another token.
    pub(super) fn stop_presenting(&mut self, lock: &LockKey) {
        let presented = &mut self.presented_until_us;
        presented.retain(|(released, _)| released.lock != *lock);
    }

    pub(super) fn presented(&self, now_us: u64) -> PresentedLease {
        let lease_id = self.token.lease_id("");
        PresentedLease {
            lease_id,
            lease_token: self.token.clone(),
            ttl: self.ttl,
            locks: self.presented_locks(lease_id, now_us),
        }
    }
}

impl Client {
    /// Adds what a call was granted to its lease. Only the locks of the call are added: another
    /// call may have released or added others meanwhile.
    pub(super) fn add_to_lease(
        &mut self,
        (call, attempt): (u64, u64),
        reply: &Lease,
        sent_at_us: u64,
    ) {
        let new_until_us = self.validity_end(sent_at_us, reply.ttl());
        let request = &self.calls[&call].call;
        let (hash, attach_number) = (request.request_id.hash(), self.attach_number(call));
        let is_new = !self.leases.contains_key(&reply.lease_id);
        let lease = self
            .leases
            .entry(reply.lease_id)
            .or_insert_with(|| HeldLease {
                token: reply.lease_token.clone(),
                ttl: reply.ttl(),
                locks: BTreeMap::new(),
                presented_until_us: Vec::new(),
                releasing: Vec::new(),
                until_us: 0,
                attach_number,
                stream: None,
            });
        let mut has_added = false;
        for held in &reply.locks {
            if request
                .targets
                .iter()
                .all(|target| target.lock != held.lock)
            {
                continue;
            }
            let share = lease.locks.entry(held.lock.clone()).or_insert_with(|| {
                has_added = true;
                HeldShare {
                    token: held.grant.fencing_token,
                    entries: Vec::new(),
                }
            });
            share.token = held.grant.fencing_token;
            if share.entries.iter().all(|(number, _)| *number != call) {
                share.entries.push((call, hash));
            }
        }
        let is_covered = |lock: &LockKey| reply.locks.iter().any(|held| held.lock == *lock);
        let are_all_covered = lease.locks.keys().all(is_covered);
        lease.until_us = match (is_new, has_added, are_all_covered) {
            (true, _, _) | (false, true, true) => new_until_us,
            (false, true, false) => new_until_us.min(lease.until_us),
            (false, false, true) => new_until_us.max(lease.until_us),
            (false, false, false) => lease.until_us,
        };
        lease.ttl = reply.ttl().min(lease.ttl);
        lease.attach_number = lease.attach_number.max(attach_number);
        lease.stream = self.stream.as_ref().map(|stream| stream.number);
        let kept = reply
            .locks
            .iter()
            .filter(|held| lease.locks.contains_key(&held.lock));
        let locks = kept.map(|held| GrantedLock {
            lock: held.lock.name().to_owned(),
            token: held.grant.fencing_token.get(),
            weight: held.grant.mode.weight(),
            limit: held.grant.mode.limit(),
        });
        let granted = EventKind::Granted {
            attempt,
            lease: reply.lease_id.to_string(),
            locks: locks.collect(),
            validity: Validity {
                sent_at_us,
                ttl_ms: reply.ttl().as_millis(),
                until_us: lease.until_us,
            },
        };
        self.record(granted);
        if let Some(held) = reply.locks.last() {
            self.world.remember_grant(held.lock.clone(), reply.lease_id);
        }
    }

    pub(super) fn renew(&mut self, lease_id: LeaseId) {
        let Some(lease) = self.leases.get(&lease_id) else {
            return;
        };
        let sent_at_us = self.world.now_us();
        let locks = lease.presented_locks(lease_id, sent_at_us);
        let interval_ms = (lease.ttl.as_millis() / 3).max(1);
        let presented = locks.iter().map(|held| held.lock.clone()).collect();
        let renew = Arc::clone(&self.world).unary(self.address, move |broker| async move {
            broker.renew(&locks, None, ExpectedAttachment::Any).await
        });
        self.replies.push(Box::pin(async move {
            let result = timeout(Duration::from_millis(interval_ms), renew).await;
            let result = result.unwrap_or(Err(CallFailure::Unreachable));
            Reply::Renewed {
                lease_id,
                sent_at_us,
                presented,
                result,
            }
        }));
        self.schedule(interval_ms, Job::Renew(lease_id));
    }

    /// Handles the reply to a renewal of the `presented` locks.
    pub(super) fn on_renewed(
        &mut self,
        lease_id: LeaseId,
        sent_at_us: u64,
        presented: &[LockKey],
        result: Result<Vec<HeldLock>, CallFailure>,
    ) {
        match result {
            Ok(locks) => {
                let ttl = locks.iter().map(|held| held.grant.ttl).min();
                let is_renewed = |lock: &LockKey| locks.iter().any(|held| held.lock == *lock);
                let lease = self.leases.get(&lease_id);
                let are_all = lease.is_some_and(|lease| lease.locks.keys().all(is_renewed));
                if let (Some(ttl), true) = (ttl, are_all) {
                    self.extend(lease_id, sent_at_us, ttl);
                }
            }
            // The lease may have locks that were added since the renewal was sent.
            Err(CallFailure::Failed(LockError::LeaseReleased))
                if self.has_other_locks(lease_id, presented) => {}
            Err(CallFailure::Failed(error)) if !error.is_indeterminate() => {
                if let Some(reason) = loss_reason(&error) {
                    self.lose(lease_id, reason);
                }
            }
            Err(_) => self.address += 1,
        }
    }

    fn has_other_locks(&self, lease_id: LeaseId, presented: &[LockKey]) -> bool {
        let lease = self.leases.get(&lease_id);
        lease.is_some_and(|lease| lease.locks.keys().any(|lock| !presented.contains(lock)))
    }

    /// Handles an acknowledged lease of a heartbeat.
    pub(super) fn on_acknowledged(&mut self, sent_at_us: u64, renewed: &RenewedLease) {
        let lease = self.leases.get(&renewed.lease_id);
        if lease.is_some_and(|lease| lease.locks.len() == renewed.locks) {
            self.extend(renewed.lease_id, sent_at_us, renewed.ttl);
        }
    }

    fn extend(&mut self, lease_id: LeaseId, sent_at_us: u64, ttl: Ttl) {
        let until_us = self.validity_end(sent_at_us, ttl);
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return;
        };
        lease.until_us = lease.until_us.max(until_us);
        lease.ttl = ttl;
        let validity = Validity {
            sent_at_us,
            ttl_ms: ttl.as_millis(),
            until_us: lease.until_us,
        };
        let lease = lease_id.to_string();
        self.record(EventKind::Renewed { lease, validity });
    }

    fn lose(&mut self, lease_id: LeaseId, reason: LossReason) {
        if self.leases.remove(&lease_id).is_some() {
            let lease = lease_id.to_string();
            self.record(EventKind::Lost { lease, reason });
        }
    }

    /// Handles the end of a lease on the stream.
    pub(super) fn on_lease_ended(&mut self, lease_id: LeaseId, reason: &LeaseEndedReason) {
        let reason = match reason {
            LeaseEndedReason::Released => LossReason::Released,
            LeaseEndedReason::Expired => LossReason::Expired,
            LeaseEndedReason::Lost => LossReason::NotFound,
            LeaseEndedReason::MaxHold => LossReason::MaxHold,
            LeaseEndedReason::Revoked { .. } => LossReason::Revoked,
            LeaseEndedReason::Moved => LossReason::Moved,
            LeaseEndedReason::CredentialExpired => LossReason::CredentialExpired,
            LeaseEndedReason::Denied => LossReason::Denied,
        };
        self.lose(lease_id, reason);
    }

    /// Attaches a lease to the present stream.
    pub(super) fn attach(&mut self, lease_id: LeaseId) {
        let now_us = self.world.now_us();
        let (Some(lease), Some(stream)) = (self.leases.get_mut(&lease_id), &mut self.stream) else {
            return;
        };
        if lease.stream == Some(stream.number) {
            return;
        }
        if lease.until_us <= now_us {
            return self.lose(lease_id, LossReason::Expired);
        }
        lease.attach_number += 1;
        let call_id = i64::try_from(self.world.next_number()).expect("few");
        stream.attaching.insert(call_id, lease_id);
        let number = lease.attach_number;
        let attach = EventKind::AttachInvoked {
            lease: lease_id.to_string(),
            stream: stream.number,
        };
        stream.send(StreamCommand::Attach {
            call_id,
            lease: lease.presented(now_us),
            number,
            span: Span::default(),
        });
        self.record(attach);
    }

    pub(super) fn on_attached(&mut self, lease_id: LeaseId) {
        let Some(stream) = self.stream.as_ref().map(|stream| stream.number) else {
            return;
        };
        if let Some(lease) = self.leases.get_mut(&lease_id) {
            lease.stream = Some(stream);
            let lease = lease_id.to_string();
            self.record(EventKind::Attached { lease, stream });
        }
    }

    pub(super) fn on_attach_refused(&mut self, lease_id: LeaseId, error: &LockError) {
        if error.is_indeterminate() {
            self.schedule(RETRY_MS, Job::Attach(lease_id));
        } else if let Some(reason) = loss_reason(error) {
            self.lose(lease_id, reason);
        }
    }

    pub(super) fn end_hold(&mut self, lease_id: LeaseId) {
        if self.leases.contains_key(&lease_id) {
            self.release_lease(lease_id);
        }
    }

    fn release_lease(&mut self, lease_id: LeaseId) {
        let Some(lease) = self.leases.remove(&lease_id) else {
            return;
        };
        let locks = lease.references(lease_id);
        if let Some(newest_token) = locks.iter().map(|held| held.fencing_token).max() {
            let released = ReleasedLease {
                newest_token,
                released_at_us: None,
            };
            self.released.insert(lease_id, released);
        }
        let release = PartRelease::new(self.world.next_number(), locks, Scope::All);
        self.record_release(lease_id, &release, ReleaseScope::Lease);
        self.send_release(lease_id, release);
    }

    pub(super) fn release_part(&mut self, index: usize, part: Part) {
        let leases = self.lease_ids();
        let Some(&lease_id) = leases.get(index % leases.len().max(1)) else {
            return;
        };
        let lease = self.leases.get_mut(&lease_id).expect("it is listed");
        let index = match part {
            Part::Lease => return self.release_lease(lease_id),
            Part::Lock(index) | Part::Entry(index) => index % lease.locks.len(),
        };
        let (lock, share) = lease
            .locks
            .iter_mut()
            .nth(index)
            .expect("a lease has locks");
        let lock = lock.clone();
        let reference = LeaseRef {
            lock: lock.clone(),
            lease_id,
            fencing_token: share.token,
        };
        let name = lock.name().to_owned();
        let (scope, recorded) = match part {
            Part::Entry(_) => {
                let (call, hash) = share.entries.remove(0);
                (Scope::Entry(hash), ReleaseScope::Entry { lock: name, call })
            }
            Part::Lock(_) | Part::Lease => {
                share.entries.clear();
                lease.releasing.push(lock.clone());
                (Scope::Lock, ReleaseScope::Lock { lock: name })
            }
        };
        if share.entries.is_empty() {
            lease.locks.remove(&lock);
            if self.plan.presents_released {
                // A renewal sent at that time has its reply, or reaches its deadline, before `E(ttl)`.
                let until_us = self.world.now_us() + lease.ttl.as_millis() * 1_000 / 2;
                lease.stop_presenting(&lock);
                let presented = (reference.clone(), until_us);
                lease.presented_until_us.push(presented);
            }
        }
        if lease.locks.is_empty() {
            self.leases.remove(&lease_id);
        }
        let release = PartRelease::new(self.world.next_number(), vec![reference], scope);
        self.record_release(lease_id, &release, recorded);
        self.send_release(lease_id, release);
    }

    pub(super) fn record_release(
        &self,
        lease_id: LeaseId,
        release: &PartRelease,
        scope: ReleaseScope,
    ) {
        self.record(EventKind::ReleaseInvoked {
            release: release.number,
            lease: lease_id.to_string(),
            scope,
        });
    }

    /// Sends a release, on the stream if there is one.
    pub(super) fn send_release(&mut self, lease_id: LeaseId, mut release: PartRelease) {
        if release.tries == 0 {
            release.stream = self.stream.as_ref().map(|stream| stream.number);
        }
        let stream = self.stream.as_mut();
        if let Some(stream) = stream.filter(|stream| release.stream == Some(stream.number)) {
            let (lock, entry) = match release.scope {
                Scope::Lock => (release.locks.first().map(|held| held.lock.clone()), None),
                Scope::Entry(hash) => (
                    release.locks.first().map(|held| held.lock.clone()),
                    Some(hash),
                ),
                Scope::All | Scope::ExpireNow => (None, None),
            };
            let call_id = i64::try_from(self.world.next_number()).expect("few");
            stream.send(StreamCommand::Release {
                call_id,
                lease_id,
                lock,
                entry,
            });
            let unanswered = UnansweredRelease { lease_id, release };
            self.releases.insert(call_id, unanswered);
            return;
        }
        let expected = match release.scope {
            Scope::All | Scope::ExpireNow => ExpectedAttachment::Any,
            Scope::Lock | Scope::Entry(_) => ExpectedAttachment::None,
        };
        let (locks, scope) = (release.locks.clone(), release.scope);
        let sent = Arc::clone(&self.world).unary(self.address, move |broker| async move {
            broker.release(&locks, scope, expected).await
        });
        self.replies.push(Box::pin(async move {
            let result = sent.await;
            Reply::Released {
                lease_id,
                release,
                result,
            }
        }));
    }

    /// Handles the refusal of a release on the stream. A release of a lease that has left the stream
    /// is repeated as a unary call.
    pub(super) fn on_release_refused(&mut self, unanswered: UnansweredRelease, error: CallError) {
        let UnansweredRelease { lease_id, release } = unanswered;
        let stream = release
            .stream
            .filter(|_| !matches!(error, CallError::NotHere));
        let failure = CallFailure::Failed(error_of(error));
        self.on_released(lease_id, PartRelease { stream, ..release }, Err(failure));
    }

    /// Handles the reply to a release, and repeats it while its outcome is unknown.
    pub(super) fn on_released(
        &mut self,
        lease_id: LeaseId,
        release: PartRelease,
        result: Result<ReleaseResult, CallFailure>,
    ) {
        let is_repeated = result.as_ref().is_err_and(CallFailure::is_retryable);
        if is_repeated && release.tries < RELEASE_RETRIES {
            self.address += 1;
            let tries = release.tries + 1;
            let release = PartRelease { tries, ..release };
            return self.schedule(RETRY_MS, Job::RetryRelease(lease_id, release));
        }
        let answered = EventKind::ReleaseAnswered {
            release: release.number,
            lease: lease_id.to_string(),
            is_ok: result.is_ok(),
        };
        self.record(answered);
        if let Some(lease) = self.leases.get_mut(&lease_id)
            && release.scope == Scope::Lock
        {
            let is_answered = |lock: &LockKey| release.locks.iter().any(|held| held.lock == *lock);
            lease.releasing.retain(|lock| !is_answered(lock));
        }
        if let (Scope::All, Ok(_), Some(released)) =
            (release.scope, &result, self.released.get_mut(&lease_id))
        {
            released.released_at_us = Some(self.world.now_us());
        }
        if let (Scope::Entry(_), Ok(ReleaseResult { hold_count: 0, .. })) = (release.scope, result)
        {
            self.release_lost_entries(lease_id, release.locks);
        }
    }

    /// Releases locks of which the store has freed the last entry that it knew, although the client
    /// has others: the store has lost them with its data.
    fn release_lost_entries(&mut self, lease_id: LeaseId, locks: Vec<LeaseRef>) {
        for reference in locks {
            let Some(lease) = self.leases.get_mut(&lease_id) else {
                return;
            };
            let share = lease.locks.get(&reference.lock);
            if share.is_none_or(|share| share.token != reference.fencing_token) {
                continue;
            }
            lease.locks.remove(&reference.lock);
            lease.releasing.push(reference.lock.clone());
            if lease.locks.is_empty() {
                self.leases.remove(&lease_id);
            }
            let lock = reference.lock.name().to_owned();
            let release = PartRelease::new(self.world.next_number(), vec![reference], Scope::Lock);
            self.record_release(lease_id, &release, ReleaseScope::Lock { lock });
            self.send_release(lease_id, release);
        }
    }
}

/// Returns the reason of the loss of a lease that the error reports.
fn loss_reason(error: &LockError) -> Option<LossReason> {
    match error {
        LockError::LeaseExpired => Some(LossReason::Expired),
        LockError::LeaseReleased => Some(LossReason::Released),
        LockError::LeaseRevoked { .. } => Some(LossReason::Revoked),
        LockError::MaxHold => Some(LossReason::MaxHold),
        LockError::LeaseNotFound => Some(LossReason::NotFound),
        LockError::StaleAttach => Some(LossReason::Moved),
        _ => None,
    }
}
