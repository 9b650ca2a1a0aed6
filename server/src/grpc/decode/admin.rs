//! Decoding of AdminService requests.

use leasehold_proto::v1::{ForceReleaseLeaseRequest, LockRef, SetLockLimitRequest};

use super::fields::{FieldValidator, REASON_MAX_BYTES};
use crate::{
    grpc::{
        authorization::{Operation, RequestContext},
        status::Rejection,
    },
    lock::{LockKey, PERMITS_MAX, RevokeCommand, RevokeMode},
};

/// Decodes the lock and its limit; `None` removes the limit.
pub(in crate::grpc) fn set_lock_limit(
    request: SetLockLimitRequest,
    context: &RequestContext,
) -> Result<(LockKey, Option<u32>), Rejection> {
    let mut fields = FieldValidator::default();
    let lock = lock(&mut fields, request.lock);
    let limit = u32::try_from(request.limit).ok();
    let limit = limit.filter(|limit| *limit <= PERMITS_MAX);
    if limit.is_none() {
        fields.violation("limit", "must be 1 to 1000, or 0 to remove the limit");
    }
    let (lock, limit) = fields.finish(lock.zip(limit))?;
    context.authorize(Operation::SetLockLimit, [&lock])?;
    Ok((lock, (limit > 0).then_some(limit)))
}

pub(in crate::grpc) fn force_release(
    request: ForceReleaseLeaseRequest,
    context: &RequestContext,
) -> Result<RevokeCommand, Rejection> {
    let mut fields = FieldValidator::default();
    let lock = lock(&mut fields, request.lock);
    let lease_id = fields.lease_id("lease_id", &request.lease_id);
    if !(1..=REASON_MAX_BYTES).contains(&request.reason.len()) {
        fields.violation("reason", "must be 1 to 512 bytes: it is sent to the holder");
    }
    let grace_ms = fields.wait("grace", request.grace);
    let delay = request.lock_delay;
    let lock_delay_ms = delay.map(|delay| fields.wait("lock_delay", Some(delay)));
    fields.lock_delay(lock_delay_ms.unwrap_or(0), &context.limits);
    fields.request_id("request_id", &request.request_id);
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
    context.authorize(Operation::ForceReleaseLease, [&revoke.lock])?;
    Ok(revoke)
}

fn lock(fields: &mut FieldValidator, lock: Option<LockRef>) -> Option<LockKey> {
    fields.required("lock", lock, |fields, lock| {
        fields.lock("lock", &lock.namespace, &lock.name)
    })
}
