//! Decoding of requests to inspect and to administer locks.

use leasehold_proto::v1::{ForceReleaseLeaseRequest, GetLockRequest, SetLockLimitRequest};

use crate::{
    access::Verb,
    lock::{LockKey, PERMITS_MAX, RevokeCommand, RevokeMode},
    request::{FieldValidator, RequestContext, RequestError},
};

pub(in crate::grpc) fn get_lock(
    request: &GetLockRequest,
    context: &RequestContext,
) -> Result<LockKey, RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.lock("", &request.namespace, &request.name);
    let lock = fields.finish(lock)?;
    context.authorize(Verb::Observe, [&lock])?;
    Ok(lock)
}

/// Decodes the lock and its limit; `None` removes the limit.
pub(in crate::grpc) fn set_lock_limit(
    request: SetLockLimitRequest,
    context: &RequestContext,
) -> Result<(LockKey, Option<u32>), RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.required_lock(request.lock);
    let limit = u32::try_from(request.limit).ok();
    let limit = limit.filter(|limit| *limit <= PERMITS_MAX);
    if limit.is_none() {
        fields.violation("limit", "must be 1 to 1000, or 0 to remove the limit");
    }
    let (lock, limit) = fields.finish(lock.zip(limit))?;
    context.authorize(Verb::Admin, [&lock])?;
    Ok((lock, (limit > 0).then_some(limit)))
}

pub(in crate::grpc) fn force_release(
    request: ForceReleaseLeaseRequest,
    context: &RequestContext,
) -> Result<RevokeCommand, RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.required_lock(request.lock);
    let lease_id = fields.lease_id("lease_id", &request.lease_id);
    fields.revoke_reason(&request.reason);
    let grace_ms = fields.wait("grace", request.grace);
    let delay = request.lock_delay;
    let lock_delay_ms = delay.map(|delay| fields.wait("lock_delay", Some(delay)));
    fields.lock_delay(lock_delay_ms.unwrap_or(0), &context.limits);
    fields.request_id(&request.request_id);
    if request.unsafe_now && grace_ms > 0 {
        fields.violation("grace", "must be unset with unsafe_now");
    }
    let revoke = lock.zip(lease_id).map(|(lock, lease_id)| RevokeCommand {
        lock,
        lease_id,
        reason: request.reason,
        grace_ms,
        lock_delay_ms,
        mode: match (request.validate_only, request.unsafe_now) {
            (true, _) => RevokeMode::DryRun,
            (false, false) => RevokeMode::Graceful,
            (false, true) => RevokeMode::Immediate,
        },
    });
    let revoke = fields.finish(revoke)?;
    context.authorize(Verb::ForceRelease, [&revoke.lock])?;
    Ok(revoke)
}
