//! Requests to domain types. Every violation of a request is listed; nothing runs before all are gone.

mod fields;
mod lease;
pub(super) mod listing;
mod operate;

use std::collections::HashSet;

use leasehold_proto::v1::{
    self as pb, AcquireAllRequest, AcquireRequest, AttachLease, CheckFencingTokenRequest,
    DetachLease, GetLockRequest, HoldAcquire, HoldAcquireAll, HoldRelease, ReleaseRequest,
    RenewRequest,
};
use prost_types::Duration;

use self::fields::Fields;
pub(super) use self::operate::{force_release, set_lock_limit};
use super::{
    admit::{Ask, Asking},
    status::Refused,
};
use crate::lock::{
    AcquireCall, ArgumentsHash, FencingToken, LeaseId, LeaseRef, Limits, LockKey, Mode, Release,
    RequestHash, RequestId, ShownLease, Target, Terms, Ttl, Via,
};

/// Locks of one AcquireAll.
const TARGETS_MAX: usize = 16;

/// What Acquire and AcquireAll ask alike.
struct Asked {
    owner: Option<pb::Owner>,
    ttl: Option<Duration>,
    wait_timeout: Option<Duration>,
    request_id: String,
    max_hold: Option<Duration>,
    lock_delay: Option<Duration>,
    disconnect_grace: Option<Duration>,
}

pub(super) fn acquire(request: AcquireRequest, asking: &Asking) -> Result<AcquireCall, Refused> {
    one(request, Ask::Acquire, asking)
}

fn one(request: AcquireRequest, ask: Ask, asking: &Asking) -> Result<AcquireCall, Refused> {
    let mut fields = Fields::default();
    let target = fields.required("target", request.target, |fields, target| {
        fields.target("target", &target)
    });
    let mut under = None;
    if let Some(lease) = request.under {
        under = lease::shown(&mut fields, "under", lease, asking);
    }
    if let (Some(target), Some(lease)) = (&target, &under)
        && lease.locks.iter().any(|held| held.lock == target.lock)
    {
        for (field, is_set) in [
            ("max_hold", request.max_hold.is_some()),
            ("lock_delay", request.lock_delay.is_some()),
        ] {
            if is_set {
                fields.violation(field, "must be unset: the lease holds the lock already");
            }
        }
    }
    let asked = Asked {
        owner: request.owner,
        ttl: request.ttl,
        wait_timeout: request.wait_timeout,
        request_id: request.request_id,
        max_hold: request.max_hold,
        lock_delay: request.lock_delay,
        disconnect_grace: request.disconnect_grace,
    };
    let call = asked.read(
        &mut fields,
        target.map(|target| vec![target]),
        under,
        &asking.limits,
    );
    let call = fields.accept(call)?;
    asking.about(ask, locks_of(&call))?;
    let under = call
        .under
        .map(|lease| lease::proven(lease, &asking.caller))
        .transpose()?;
    Ok(AcquireCall { under, ..call })
}

/// On a stream a call must be repeatable, and says which attachment it is.
pub(super) fn hold_acquire(
    acquire: HoldAcquire,
    asking: &Asking,
) -> Result<(AcquireCall, u32), Refused> {
    let mut fields = Fields::default();
    let number = fields.attach_number(acquire.attach_number);
    let request = fields.required("request", acquire.request, |fields, request| {
        fields.is_repeatable("request.request_id", &request.request_id);
        Some(request)
    });
    let (number, request) = fields.accept(number.zip(request))?;
    Ok((one(request, Ask::HoldAcquire, asking)?, number))
}

pub(super) fn hold_acquire_all(
    acquire: HoldAcquireAll,
    asking: &Asking,
) -> Result<(AcquireCall, u32), Refused> {
    let mut fields = Fields::default();
    let number = fields.attach_number(acquire.attach_number);
    let request = fields.required("request", acquire.request, |fields, request| {
        fields.is_repeatable("request.request_id", &request.request_id);
        Some(request)
    });
    let (number, request) = fields.accept(number.zip(request))?;
    Ok((
        several_at_once(request, Ask::HoldAcquireAll, asking)?,
        number,
    ))
}

pub(super) fn attach(attach: AttachLease, asking: &Asking) -> Result<(ShownLease, u32), Refused> {
    let mut fields = Fields::default();
    let number = fields.attach_number(attach.attach_number);
    let lease = fields.required("lease", attach.lease, |fields, lease| {
        lease::shown(fields, "lease", lease, asking)
    });
    let (number, lease) = fields.accept(number.zip(lease))?;
    let lease = shown_by(lease, Ask::HoldAttach, asking)?;
    Ok((lease, number))
}

pub(super) fn hold_release(
    release: HoldRelease,
    asking: &Asking,
) -> Result<(LeaseId, Option<LockKey>, Option<RequestHash>), Refused> {
    let mut fields = Fields::default();
    let lease_id = fields.lease_id("lease_id", &release.lease_id);
    if release.lock.is_none() && !release.request_id.is_empty() {
        fields.violation("lock", "is required with request_id");
    }
    let lock = release
        .lock
        .and_then(|lock| fields.lock("lock", &lock.namespace, &lock.name));
    let entry = fields.request_id("request_id", &release.request_id);
    let lease_id = fields.accept(lease_id)?;
    asking.about(Ask::HoldRelease, &lock)?;
    Ok((lease_id, lock, entry.map(|request_id| request_id.hash())))
}

pub(super) fn detach(detach: DetachLease) -> Result<LeaseId, Refused> {
    let mut fields = Fields::default();
    let lease_id = fields.lease_id("lease_id", &detach.lease_id);
    fields.accept(lease_id)
}

/// Nobody renews the locks that a unary call has while it waits for the next: it waits at most ttl.
pub(super) fn acquire_all(
    request: AcquireAllRequest,
    asking: &Asking,
) -> Result<AcquireCall, Refused> {
    let mut call = several_at_once(request, Ask::AcquireAll, asking)?;
    call.wait_ms = call.wait_ms.min(call.terms.cut(call.ttl).as_millis());
    Ok(call)
}

fn several_at_once(
    request: AcquireAllRequest,
    ask: Ask,
    asking: &Asking,
) -> Result<AcquireCall, Refused> {
    let mut fields = Fields::default();
    let targets = several(&mut fields, &request.targets);
    let asked = Asked {
        owner: request.owner,
        ttl: request.ttl,
        wait_timeout: request.wait_timeout,
        request_id: request.request_id,
        max_hold: request.max_hold,
        lock_delay: request.lock_delay,
        disconnect_grace: request.disconnect_grace,
    };
    let call = asked.read(&mut fields, targets, None, &asking.limits);
    let call = fields.accept(call)?;
    asking.about(ask, locks_of(&call))?;
    Ok(call)
}

/// The locks to release, what of them, and from where: a part is given back only on the stream of its
/// lease, if it is on one.
pub(super) fn release(
    request: ReleaseRequest,
    asking: &Asking,
) -> Result<(Vec<LeaseRef>, Release, Via), Refused> {
    let mut fields = Fields::default();
    if request.lock.is_none() && !request.request_id.is_empty() {
        fields.violation("lock", "is required with request_id");
    }
    let only = request
        .lock
        .and_then(|lock| fields.lock("lock", &lock.namespace, &lock.name));
    let entry = fields.request_id("request_id", &request.request_id);
    let mut lease = fields.required("lease", request.lease, |fields, lease| {
        lease::shown(fields, "lease", lease, asking)
    });
    if let (Some(lock), Some(lease)) = (&only, &mut lease) {
        lease.locks.retain(|held| held.lock == *lock);
        if lease.locks.is_empty() {
            fields.violation("lock", "must be a lock of the lease");
        }
    }
    let via = match only {
        Some(_) => Via::Unary,
        None => Via::Anywhere,
    };
    let lease = shown_by(fields.accept(lease)?, Ask::Release, asking)?;
    let release = match (only, entry) {
        (None, _) => Release::All,
        (Some(_), None) => Release::Lock,
        (Some(_), Some(request_id)) => Release::Entry(request_id.hash()),
    };
    Ok((lease.locks, release, via))
}

pub(super) fn renew(
    request: RenewRequest,
    asking: &Asking,
) -> Result<(ShownLease, Option<Ttl>), Refused> {
    let mut fields = Fields::default();
    let ttl_ms = fields.ttl("ttl", request.ttl);
    let lease = fields.required("lease", request.lease, |fields, lease| {
        lease::shown(fields, "lease", lease, asking)
    });
    let lease = shown_by(fields.accept(lease)?, Ask::Renew, asking)?;
    Ok((lease, ttl_ms.map(|ttl_ms| asking.limits.ttl(Some(ttl_ms)))))
}

pub(super) fn check_fencing_token(
    request: CheckFencingTokenRequest,
    asking: &Asking,
) -> Result<(LockKey, FencingToken), Refused> {
    let mut fields = Fields::default();
    let lock = fields.required("lock", request.lock, |fields, lock| {
        fields.lock("lock", &lock.namespace, &lock.name)
    });
    let token = fields.fencing_token("fencing_token", request.fencing_token);
    let (lock, token) = fields.accept(lock.zip(token))?;
    asking.about(Ask::CheckFencingToken, [&lock])?;
    Ok((lock, token))
}

pub(super) fn get_lock(request: GetLockRequest, asking: &Asking) -> Result<LockKey, Refused> {
    let mut fields = Fields::default();
    let lock = fields.lock("", &request.namespace, &request.name);
    let lock = fields.accept(lock)?;
    asking.about(Ask::GetLock, [&lock])?;
    Ok(lock)
}

/// A lease that the caller shows: every lock of it may be asked about, and it is the caller's own.
fn shown_by(lease: ShownLease, ask: Ask, asking: &Asking) -> Result<ShownLease, Refused> {
    asking.about(ask, lease.locks.iter().map(|held| &held.lock))?;
    lease::proven(lease, &asking.caller)
}

fn locks_of(call: &AcquireCall) -> impl Iterator<Item = &LockKey> {
    let under = call.under.iter().flat_map(|lease| &lease.locks);
    let held = under.map(|held| &held.lock);
    call.targets.iter().map(|target| &target.lock).chain(held)
}

fn several(fields: &mut Fields, targets: &[pb::LockTarget]) -> Option<Vec<Target>> {
    if !(2..=TARGETS_MAX).contains(&targets.len()) {
        fields.violation("targets", "must be 2 to 16");
        return None;
    }
    let targets = targets.iter().enumerate();
    let read: Vec<_> = targets
        .map(|(index, target)| fields.target(&format!("targets[{index}]"), target))
        .collect();
    let mut names = HashSet::new();
    for (index, target) in read.iter().enumerate() {
        if target.iter().any(|target| !names.insert(&target.lock)) {
            fields.violation(format!("targets[{index}]"), "must not name a lock twice");
        }
    }
    read.into_iter().collect()
}

impl Asked {
    fn read(
        self,
        fields: &mut Fields,
        targets: Option<Vec<Target>>,
        under: Option<ShownLease>,
        limits: &Limits,
    ) -> Option<AcquireCall> {
        let owner = fields.required("owner", self.owner, fields::owner);
        let ttl_ms = fields.ttl("ttl", self.ttl);
        let wait_ms = fields.wait("wait_timeout", self.wait_timeout);
        let ttl = limits.ttl(ttl_ms);
        let grace = self.disconnect_grace.filter(|_| under.is_none());
        let grace_ms = grace.map(|grace| fields.wait("disconnect_grace", Some(grace)));
        let max_hold_ms = fields.ttl("max_hold", self.max_hold);
        let terms = Terms {
            max_hold_ms: limits.max_hold_ms(max_hold_ms).unwrap_or(0),
            lock_delay_ms: fields.wait("lock_delay", self.lock_delay),
            disconnect_grace_ms: grace_ms.map(|grace_ms| grace_ms.min(ttl.as_millis())),
        };
        fields.lock_delay(terms.lock_delay_ms, limits);
        let request_id = fields.request_id("request_id", &self.request_id);
        let (targets, owner) = (targets?, owner?);
        let wished = Wished {
            ttl_ms: ttl_ms.filter(|_| under.is_none()),
            max_hold_ms: max_hold_ms.unwrap_or(0),
            lock_delay_ms: terms.lock_delay_ms,
            disconnect_grace_ms: grace_ms,
        };
        Some(AcquireCall {
            arguments: wished.arguments(&targets, &owner.id),
            targets,
            owner,
            ttl: under.as_ref().map_or(ttl, |lease| lease.ttl),
            under,
            terms,
            wait_ms: limits.wait_ms(wait_ms),
            request_id: request_id.unwrap_or_else(RequestId::random),
        })
    }
}

/// The times that a caller asked for, before this broker's limits cut or raise them: another broker,
/// or this one after a reload, may have other limits, and the repeat is the same call all the same.
struct Wished {
    /// `None`: none was named, or the lease's is taken.
    ttl_ms: Option<u64>,
    max_hold_ms: u64,
    lock_delay_ms: u64,
    disconnect_grace_ms: Option<u64>,
}

impl Wished {
    /// A repeat of a request id must share the locks, their modes and permits, the owner's id, the
    /// ttl asked for, `max_hold`, `lock_delay` and `disconnect_grace`. It may differ in `limit`, since
    /// the lock has one already, and in `wait_timeout`, the owner's reason and labels: they change
    /// between attempts and decide nothing.
    fn arguments(&self, targets: &[Target], owner: &str) -> ArgumentsHash {
        let mut targets: Vec<_> = targets.iter().collect();
        targets.sort_by(|one, other| one.lock.cmp(&other.lock));
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
            self.disconnect_grace_ms.unwrap_or(u64::MAX),
        ];
        let times = times.map(u64::to_be_bytes);
        fields.push(owner.as_bytes());
        fields.extend(times.iter().map(<[u8; 8]>::as_slice));
        ArgumentsHash::of(&fields)
    }
}
