//! Requests to domain types. Every violation of a request is listed; nothing runs before all are gone.

mod fields;

use leasehold_proto::v1::{
    AcquireRequest, CheckFencingTokenRequest, GetLockRequest, Lease, ReleaseRequest, RenewRequest,
    SetLockLimitRequest,
};

use self::fields::Fields;
use super::status::Refused;
use crate::lock::{
    AcquireCall, ArgumentsHash, FencingToken, LeaseId, LeaseRef, LeaseToken, Limits, LockKey, Mode,
    Owner, PERMITS_MAX, RequestId, Terms, Ttl,
};

/// A repeat of a request id must share the lock, the mode, the permits, the owner's id, the ttl
/// granted, `max_hold` and `lock_delay`. It may differ in `limit`, since the lock has one already, and
/// in `wait_timeout`, the owner's reason and labels: they change between attempts and
/// decide nothing.
pub(super) fn acquire(request: AcquireRequest, limits: &Limits) -> Result<AcquireCall, Refused> {
    let mut fields = Fields::default();
    let target = fields.required("target", request.target, |fields, target| {
        fields.target("target", &target)
    });
    let owner = fields.required("owner", request.owner, fields::owner);
    let ttl_ms = fields.ttl("ttl", request.ttl);
    let wait_ms = fields.wait("wait_timeout", request.wait_timeout);
    let terms = Terms {
        max_hold_ms: fields.ttl("max_hold", request.max_hold).unwrap_or(0),
        lock_delay_ms: fields.wait("lock_delay", request.lock_delay),
    };
    if terms.lock_delay_ms > limits.lock_delay_max_ms {
        fields.violation(
            "lock_delay",
            "must be at most limits.lock_delay_max of the broker, 10 s unless it is configured",
        );
    }
    let request_id = fields.request_id("request_id", &request.request_id);
    fields.lacks(request.under.is_some(), "under: a lock added to a lease");
    fields.lacks(request.disconnect_grace.is_some(), "disconnect_grace");
    let (Some((lock, mode)), Some(owner)) = (target, owner) else {
        return Err(fields.refused());
    };
    fields.finish()?;
    let ttl = limits.ttl(ttl_ms);
    Ok(AcquireCall {
        arguments: arguments(&lock, mode, &owner, (ttl, terms)),
        lock,
        mode,
        owner,
        ttl,
        terms,
        wait_ms: limits.wait_ms(wait_ms),
        request_id: request_id.unwrap_or_else(RequestId::random),
    })
}

/// A lease of one lock is released as a whole by naming that lock, too.
pub(super) fn release(request: ReleaseRequest) -> Result<LeaseRef, Refused> {
    let mut fields = Fields::default();
    let lock = request
        .lock
        .and_then(|lock| fields.lock("lock", &lock.namespace, &lock.name));
    fields.lacks(
        !request.request_id.is_empty(),
        "request_id: the release of one entry",
    );
    let lease = lease_of(&mut fields, request.lease);
    if let (Some(lock), Some(lease)) = (lock, &lease)
        && lock != lease.reference.lock
    {
        fields.violation("lock", "must be a lock of the lease");
    }
    Ok(proven(fields, lease)?.reference)
}

pub(super) fn renew(
    request: RenewRequest,
    limits: &Limits,
) -> Result<(ShownLease, Option<Ttl>), Refused> {
    let mut fields = Fields::default();
    let ttl_ms = fields.ttl("ttl", request.ttl);
    let lease = lease_of(&mut fields, request.lease);
    let lease = proven(fields, lease)?;
    let ttl = ttl_ms.map(|ttl_ms| limits.ttl(Some(ttl_ms)));
    Ok((lease, ttl))
}

pub(super) fn check_fencing_token(
    request: CheckFencingTokenRequest,
) -> Result<(LockKey, FencingToken), Refused> {
    let mut fields = Fields::default();
    let lock = fields.required("lock", request.lock, |fields, lock| {
        fields.lock("lock", &lock.namespace, &lock.name)
    });
    let token = fields.fencing_token("fencing_token", request.fencing_token);
    match (lock, token) {
        (Some(lock), Some(token)) => fields.finish().map(|()| (lock, token)),
        _ => Err(fields.refused()),
    }
}

pub(super) fn set_lock_limit(request: SetLockLimitRequest) -> Result<(LockKey, u32), Refused> {
    let mut fields = Fields::default();
    let lock = fields.required("lock", request.lock, |fields, lock| {
        fields.lock("lock", &lock.namespace, &lock.name)
    });
    let limit = u32::try_from(request.limit).ok();
    let limit = limit.filter(|limit| (1..=PERMITS_MAX).contains(limit));
    if limit.is_none() {
        fields.violation("limit", "must be 1 to 1000");
    }
    match (lock, limit) {
        (Some(lock), Some(limit)) => fields.finish().map(|()| (lock, limit)),
        _ => Err(fields.refused()),
    }
}

pub(super) fn get_lock(request: GetLockRequest) -> Result<LockKey, Refused> {
    let mut fields = Fields::default();
    let lock = fields.lock("", &request.namespace, &request.name);
    lock.ok_or_else(|| fields.refused())
}

/// A lease as its holder shows it.
pub(super) struct ShownLease {
    pub(super) reference: LeaseRef,
    pub(super) mode: Mode,
    pub(super) token: LeaseToken,
}

fn lease_of(fields: &mut Fields, lease: Option<Lease>) -> Option<ShownLease> {
    fields.required("lease", lease, |fields, lease| {
        let lease_id = LeaseId::parse(&lease.lease_id);
        if lease_id.is_none() {
            fields.violation(
                "lease.lease_id",
                "must be the id of a lease as it was received",
            );
        }
        if lease.lease_token.is_empty() {
            fields.violation("lease.lease_token", "must not be empty");
        }
        fields.lacks(
            lease.grants.len() > 1,
            "lease.grants: a lease of several locks",
        );
        let Some(grant) = lease.grants.into_iter().next() else {
            fields.violation("lease.grants", "must hold the grants as they were received");
            return None;
        };
        let target = fields.required("lease.grants[0].target", grant.target, |fields, target| {
            fields.target("lease.grants[0].target", &target)
        });
        let token = fields.fencing_token("lease.grants[0].fencing_token", grant.fencing_token);
        let (lock, mode) = target?;
        Some(ShownLease {
            mode,
            reference: LeaseRef {
                lock,
                lease_id: lease_id?,
                fencing_token: token?,
            },
            token: LeaseToken::from_caller(lease.lease_token),
        })
    })
}

fn proven(fields: Fields, lease: Option<ShownLease>) -> Result<ShownLease, Refused> {
    let Some(lease) = lease else {
        return Err(fields.refused());
    };
    let lock = lease.reference.lock.clone();
    fields.finish()?;
    if lease.token.lease_id() != lease.reference.lease_id {
        return Err(Refused::NotHolder(lock));
    }
    Ok(lease)
}

fn arguments(
    lock: &LockKey,
    mode: Mode,
    owner: &Owner,
    (ttl, terms): (Ttl, Terms),
) -> ArgumentsHash {
    ArgumentsHash::of(&[
        lock.namespace().as_bytes(),
        lock.name().as_bytes(),
        match mode {
            Mode::Exclusive => b"exclusive",
            Mode::Shared => b"shared",
            Mode::Semaphore { .. } => b"semaphore",
        },
        &mode.weight().to_be_bytes(),
        owner.id.as_bytes(),
        &ttl.as_millis().to_be_bytes(),
        &terms.max_hold_ms.to_be_bytes(),
        &terms.lock_delay_ms.to_be_bytes(),
    ])
}
