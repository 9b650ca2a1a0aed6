//! What operators ask for.

use leasehold_proto::v1::{ForceReleaseLeaseRequest, LockRef, SetLockLimitRequest};

use super::fields::{Fields, REASON_MAX_BYTES};
use crate::{
    grpc::{
        admit::{Ask, Asking},
        status::Refused,
    },
    lock::{Force, LockKey, PERMITS_MAX, Revoke},
};

/// Reads the lock and its limit; `None` removes the limit.
pub(in crate::grpc) fn set_lock_limit(
    request: SetLockLimitRequest,
    asking: &Asking,
) -> Result<(LockKey, Option<u32>), Refused> {
    let mut fields = Fields::default();
    let lock = lock(&mut fields, request.lock);
    let limit = u32::try_from(request.limit).ok();
    let limit = limit.filter(|limit| *limit <= PERMITS_MAX);
    if limit.is_none() {
        fields.violation("limit", "must be 1 to 1000, or 0 to remove the limit");
    }
    let (lock, limit) = fields.accept(lock.zip(limit))?;
    asking.about(Ask::SetLockLimit, [&lock])?;
    Ok((lock, (limit > 0).then_some(limit)))
}

pub(in crate::grpc) fn force_release(
    request: ForceReleaseLeaseRequest,
    asking: &Asking,
) -> Result<Revoke, Refused> {
    let mut fields = Fields::default();
    let lock = lock(&mut fields, request.lock);
    let lease_id = fields.lease_id("lease_id", &request.lease_id);
    if !(1..=REASON_MAX_BYTES).contains(&request.reason.len()) {
        fields.violation("reason", "must be 1 to 512 bytes: the holder is told");
    }
    let grace_ms = fields.wait("grace", request.grace);
    let delay = request.lock_delay;
    let lock_delay_ms = delay.map(|delay| fields.wait("lock_delay", Some(delay)));
    fields.lock_delay(lock_delay_ms.unwrap_or(0), &asking.limits);
    fields.request_id("request_id", &request.request_id);
    if request.unsafe_now && grace_ms > 0 {
        fields.violation("grace", "must be unset with unsafe_now");
    }
    let revoke = lock.zip(lease_id).map(|(lock, lease_id)| Revoke {
        lock,
        lease_id,
        reason: request.reason,
        grace_ms,
        lock_delay_ms,
        force: match (request.validate_only, request.unsafe_now) {
            (true, _) => Force::None,
            (false, false) => Force::Revoke,
            (false, true) => Force::Unsafe,
        },
    });
    let revoke = fields.accept(revoke)?;
    asking.about(Ask::ForceReleaseLease, [&revoke.lock])?;
    Ok(revoke)
}

fn lock(fields: &mut Fields, lock: Option<LockRef>) -> Option<LockKey> {
    fields.required("lock", lock, |fields, lock| {
        fields.lock("lock", &lock.namespace, &lock.name)
    })
}
