//! Decoding of requests into domain types. An invalid request is rejected with all its violations
//! before it has any effect.

mod fields;
mod inspection;
mod lease;

use std::collections::HashSet;

use leasehold_proto::v1::{
    self as pb, AcquireAllRequest, AcquireRequest, AttachLease, CheckFencingTokenRequest,
    DetachLease, HoldAcquire, HoldAcquireAll, HoldRelease, LockRef, ReleaseRequest, RenewRequest,
};

pub(super) use self::inspection::{
    close_lock, force_release, get_lock, list_locks, open_lock, set_lock_limit, watch_locks,
};
use crate::{
    lock::{
        AcquireCall, ArgumentsHash, ExpectedAttachment, FencingToken, LeaseId, LeaseOptions,
        Limits, LockKey, Mode, PresentedLease, ReleaseScope, RequestHash, RequestId, Target, Ttl,
    },
    request::{FieldValidator, RequestError},
};

/// Maximum number of locks in an AcquireAll.
const TARGETS_MAX: usize = 16;

/// A decoded release.
pub(super) struct ReleaseCall {
    /// The lease, with only those locks that are to be released.
    pub(super) lease: PresentedLease,
    pub(super) scope: ReleaseScope,
    /// A part of a lease that is on a stream can be released only on that stream.
    pub(super) expected_attachment: ExpectedAttachment,
}

pub(super) fn acquire(
    request: AcquireRequest,
    limits: &Limits,
) -> Result<AcquireCall, RequestError> {
    let mut fields = FieldValidator::default();
    let target = fields.required("target", request.target, |fields, target| {
        fields.target("target", &target)
    });
    let mut under = None;
    if let Some(lease) = request.under {
        under = lease::parse(&mut fields, "under", lease, limits);
    }
    if let (Some(target), Some(lease)) = (&target, &under)
        && lease.locks.iter().any(|held| held.lock == target.lock)
    {
        for (field, is_set) in [
            ("max_hold", request.max_hold.is_some()),
            ("lock_delay", request.lock_delay.is_some()),
        ] {
            if is_set {
                fields.violation(field, "must be unset: the lease already holds the lock");
            }
        }
    }
    // The other fields are those of an AcquireAll.
    let request = AcquireAllRequest {
        targets: Vec::new(),
        owner: request.owner,
        ttl: request.ttl,
        wait_timeout: request.wait_timeout,
        request_id: request.request_id,
        max_hold: request.max_hold,
        lock_delay: request.lock_delay,
        disconnect_grace: request.disconnect_grace,
        at_least: request.at_least,
    };
    let targets = target.map(|target| vec![target]);
    let call = decode_call(&mut fields, request, targets, under, limits);
    fields.finish(call)
}

pub(super) fn hold_acquire(
    acquire: HoldAcquire,
    limits: &Limits,
) -> Result<(AcquireCall, u32), RequestError> {
    let HoldAcquire {
        request,
        attach_number,
        ..
    } = acquire;
    let (number, request) = stream_request(attach_number, request, |call| &call.request_id)?;
    Ok((self::acquire(request, limits)?, number))
}

pub(super) fn hold_acquire_all(
    acquire: HoldAcquireAll,
    limits: &Limits,
) -> Result<(AcquireCall, u32), RequestError> {
    let HoldAcquireAll {
        request,
        attach_number,
        ..
    } = acquire;
    let (number, request) = stream_request(attach_number, request, |call| &call.request_id)?;
    Ok((decode_acquire_all(request, limits)?, number))
}

pub(super) fn attach(
    attach: AttachLease,
    limits: &Limits,
) -> Result<(PresentedLease, u32), RequestError> {
    let mut fields = FieldValidator::default();
    let number = fields.attach_number(attach.attach_number);
    let lease = lease::required(&mut fields, attach.lease, limits);
    let (number, lease) = fields.finish(number.zip(lease))?;
    Ok((lease, number))
}

pub(super) fn hold_release(
    release: HoldRelease,
) -> Result<(LeaseId, Option<LockKey>, Option<RequestHash>), RequestError> {
    let mut fields = FieldValidator::default();
    let lease_id = fields.lease_id("lease_id", &release.lease_id);
    let (lock, entry) = released_part(&mut fields, release.lock, &release.request_id);
    let lease_id = fields.finish(lease_id)?;
    Ok((lease_id, lock, entry.map(|request_id| request_id.hash())))
}

pub(super) fn detach(detach: DetachLease) -> Result<LeaseId, RequestError> {
    let mut fields = FieldValidator::default();
    let lease_id = fields.lease_id("lease_id", &detach.lease_id);
    fields.finish(lease_id)
}

/// Decodes a unary AcquireAll. Its wait is limited to the TTL, because the locks that it has
/// already acquired are not renewed during the wait.
pub(super) fn acquire_all(
    request: AcquireAllRequest,
    limits: &Limits,
) -> Result<AcquireCall, RequestError> {
    let mut call = decode_acquire_all(request, limits)?;
    call.wait_ms = call
        .wait_ms
        .min(call.options.effective_ttl(call.ttl).as_millis());
    Ok(call)
}

fn decode_acquire_all(
    request: AcquireAllRequest,
    limits: &Limits,
) -> Result<AcquireCall, RequestError> {
    let mut fields = FieldValidator::default();
    let targets = decode_targets(&mut fields, &request.targets);
    let call = decode_call(&mut fields, request, targets, None, limits);
    fields.finish(call)
}

pub(super) fn release(
    request: ReleaseRequest,
    limits: &Limits,
) -> Result<ReleaseCall, RequestError> {
    let mut fields = FieldValidator::default();
    let (requested_lock, entry) = released_part(&mut fields, request.lock, &request.request_id);
    let mut lease = lease::required(&mut fields, request.lease, limits);
    if let (Some(lock), Some(lease)) = (&requested_lock, &mut lease) {
        lease.locks.retain(|held| held.lock == *lock);
        if lease.locks.is_empty() {
            fields.violation("lock", "must be a lock of the lease");
        }
    }
    let expected_attachment = match requested_lock {
        Some(_) => ExpectedAttachment::None,
        None => ExpectedAttachment::Any,
    };
    let lease = fields.finish(lease)?;
    let scope = match (requested_lock, entry) {
        (None, _) => ReleaseScope::All,
        (Some(_), None) => ReleaseScope::Lock,
        (Some(_), Some(request_id)) => ReleaseScope::Entry(request_id.hash()),
    };
    Ok(ReleaseCall {
        lease,
        scope,
        expected_attachment,
    })
}

pub(super) fn renew(
    request: RenewRequest,
    limits: &Limits,
) -> Result<(PresentedLease, Option<Ttl>), RequestError> {
    let mut fields = FieldValidator::default();
    let ttl_ms = fields.ttl("ttl", request.ttl);
    let lease = lease::required(&mut fields, request.lease, limits);
    let lease = fields.finish(lease)?;
    Ok((lease, ttl_ms.map(|ttl_ms| limits.ttl(Some(ttl_ms)))))
}

pub(super) fn check_fencing_token(
    request: CheckFencingTokenRequest,
) -> Result<(LockKey, FencingToken), RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.required_lock(request.lock);
    let token = fields.fencing_token("fencing_token", request.fencing_token);
    fields.finish(lock.zip(token))
}

/// Decodes the attach number and the acquire of a message on a stream, which requires a request id.
fn stream_request<T>(
    attach_number: i32,
    request: Option<T>,
    request_id: impl FnOnce(&T) -> &str,
) -> Result<(u32, T), RequestError> {
    let mut fields = FieldValidator::default();
    let number = fields.attach_number(attach_number);
    let request = fields.required("request", request, |fields, request| {
        if request_id(&request).is_empty() {
            fields.violation("request.request_id", "is required on a stream");
        }
        Some(request)
    });
    fields.finish(number.zip(request))
}

/// Decodes the lock and the entry that a release is limited to.
fn released_part(
    fields: &mut FieldValidator,
    lock: Option<LockRef>,
    request_id: &str,
) -> (Option<LockKey>, Option<RequestId>) {
    if lock.is_none() && !request_id.is_empty() {
        fields.violation("lock", "is required with request_id");
    }
    let lock = lock.and_then(|lock| fields.lock("lock", &lock.namespace, &lock.name));
    (lock, fields.request_id(request_id))
}

fn decode_targets(fields: &mut FieldValidator, targets: &[pb::LockTarget]) -> Option<Vec<Target>> {
    if !(2..=TARGETS_MAX).contains(&targets.len()) {
        fields.violation("targets", "must be 2 to 16");
        return None;
    }
    let targets = targets.iter().enumerate();
    let decoded: Vec<_> = targets
        .map(|(index, target)| fields.target(&format!("targets[{index}]"), target))
        .collect();
    let mut names = HashSet::new();
    for (index, target) in decoded.iter().enumerate() {
        if target.iter().any(|target| !names.insert(&target.lock)) {
            fields.violation(format!("targets[{index}]"), "must not name a lock twice");
        }
    }
    decoded.into_iter().collect()
}

/// Decodes the fields of an acquire besides its targets.
fn decode_call(
    fields: &mut FieldValidator,
    request: AcquireAllRequest,
    targets: Option<Vec<Target>>,
    under: Option<PresentedLease>,
    limits: &Limits,
) -> Option<AcquireCall> {
    let owner = fields.required("owner", request.owner, fields::owner);
    let ttl_ms = fields.ttl("ttl", request.ttl);
    let wait_ms = fields.wait("wait_timeout", request.wait_timeout);
    let ttl = limits.ttl(ttl_ms);
    let grace = request.disconnect_grace.filter(|_| under.is_none());
    let grace_ms = grace.map(|grace| fields.wait("disconnect_grace", Some(grace)));
    let max_hold_ms = fields.ttl("max_hold", request.max_hold);
    let at_least_ms = request
        .at_least
        .map(|at_least| fields.wait("at_least", Some(at_least)));
    let options = LeaseOptions {
        max_hold_ms: limits.max_hold_ms(max_hold_ms),
        lock_delay_ms: fields.wait("lock_delay", request.lock_delay),
        at_least_ms: at_least_ms.unwrap_or(0),
        disconnect_grace_ms: grace_ms.map(|grace_ms| grace_ms.min(ttl.as_millis())),
    };
    fields.lock_delay(options.lock_delay_ms, limits);
    if let Some(at_least_ms) = at_least_ms {
        match under {
            Some(_) => fields.violation("at_least", "must be unset: the lease exists already"),
            None => fields.at_least(at_least_ms, ttl, limits),
        }
    }
    let request_id = fields.request_id(&request.request_id);
    let (targets, owner) = (targets?, owner?);
    let requested_times = RequestedTimes {
        ttl_ms: ttl_ms.filter(|_| under.is_none()),
        max_hold_ms: max_hold_ms.unwrap_or(0),
        lock_delay_ms: options.lock_delay_ms,
        at_least_ms: options.at_least_ms,
        disconnect_grace_ms: grace_ms,
    };
    Some(AcquireCall {
        arguments: requested_times.arguments_hash(&targets, &owner.id),
        targets,
        owner,
        ttl: under.as_ref().map_or(ttl, |lease| lease.ttl),
        under,
        options,
        wait_ms: limits.wait_ms(wait_ms),
        request_id: request_id.unwrap_or_else(RequestId::random),
    })
}

/// The times that a caller requested, before the broker's limits are applied. Another broker, or
/// this one after a reload, may have other limits, and must still recognize a repeated call.
struct RequestedTimes {
    /// `None` if the request has no TTL, or the TTL of an existing lease applies.
    ttl_ms: Option<u64>,
    max_hold_ms: u64,
    lock_delay_ms: u64,
    at_least_ms: u64,
    disconnect_grace_ms: Option<u64>,
}

impl RequestedTimes {
    /// Returns the hash of the arguments that a repeated request id must have in common with the
    /// first call: the locks, their modes and permits, the owner's id, the requested `ttl`,
    /// `max_hold`, `lock_delay`, `at_least` and `disconnect_grace`. `limit` may differ, because the
    /// lock already has one. `wait_timeout` and the owner's reason and labels may differ, because
    /// they do not affect the result.
    fn arguments_hash(&self, targets: &[Target], owner: &str) -> ArgumentsHash {
        let mut targets: Vec<_> = targets.iter().collect();
        targets.sort_by(|left, right| left.lock.cmp(&right.lock));
        let weights = targets.iter().map(|target| target.mode.weight());
        let weights: Vec<_> = weights.map(u32::to_be_bytes).collect();
        let mut fields: Vec<&[u8]> = Vec::new();
        for (target, weight) in targets.iter().zip(&weights) {
            fields.push(target.lock.namespace().as_bytes());
            fields.push(target.lock.name().as_bytes());
            fields.push(match target.mode {
                Mode::Exclusive => b"exclusive",
                Mode::Shared => b"shared",
                Mode::Semaphore { .. } => b"semaphore",
            });
            fields.push(weight);
        }
        let times = [
            self.ttl_ms.unwrap_or(u64::MAX),
            self.max_hold_ms,
            self.lock_delay_ms,
            self.at_least_ms,
            self.disconnect_grace_ms.unwrap_or(u64::MAX),
        ];
        let times = times.map(u64::to_be_bytes);
        fields.push(owner.as_bytes());
        fields.extend(times.iter().map(<[u8; 8]>::as_slice));
        ArgumentsHash::of(&fields)
    }
}

#[cfg(test)]
mod tests;
