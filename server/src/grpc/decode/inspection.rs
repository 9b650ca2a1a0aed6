//! Decoding of requests to inspect and to administer locks.

use leasehold_proto::v1::{
    CloseLockRequest, ForceReleaseLeaseRequest, GetLockRequest, ListLocksRequest, OpenLockRequest,
    SetLockLimitRequest, WatchLocksRequest, close_lock_request::End,
};

use super::fields;
use crate::{
    inspection::{ListRequest, WatchRequest},
    lock::{CloseCommand, Limits, LockKey, Owner, PERMITS_MAX, RevokeCommand, RevokeMode},
    request::{FieldValidator, OWNER_ID_MAX_BYTES, RequestContext, RequestError},
    time::now_unix_millis,
};

pub(in crate::grpc) fn get_lock(request: &GetLockRequest) -> Result<LockKey, RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.lock("", &request.namespace, &request.name);
    fields.finish(lock)
}

pub(in crate::grpc) fn list_locks(request: ListLocksRequest) -> ListRequest {
    ListRequest {
        namespace: request.namespace,
        name_prefix: request.name_prefix,
        owner_id: request.owner_id,
        page_size: request.page_size,
        page_token: request.page_token,
    }
}

pub(in crate::grpc) fn watch_locks(request: WatchLocksRequest) -> WatchRequest {
    WatchRequest {
        namespace: request.namespace,
        name_prefix: request.name_prefix,
        resumes: !request.resume_token.is_empty(),
    }
}

/// Decodes the lock and its limit; `None` removes the limit.
pub(in crate::grpc) fn set_lock_limit(
    request: SetLockLimitRequest,
) -> Result<(LockKey, Option<u32>), RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.required_lock(request.lock);
    let limit = u32::try_from(request.limit).ok();
    let limit = limit.filter(|limit| *limit <= PERMITS_MAX);
    if limit.is_none() {
        fields.violation("limit", "must be 1 to 1000, or 0 to remove the limit");
    }
    let (lock, limit) = fields.finish(lock.zip(limit))?;
    Ok((lock, (limit > 0).then_some(limit)))
}

pub(in crate::grpc) fn close_lock(
    request: CloseLockRequest,
    context: &RequestContext,
) -> Result<CloseCommand, RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.required_lock(request.lock);
    fields.operator_reason(&request.reason);
    if request.operator.len() > OWNER_ID_MAX_BYTES {
        fields.violation("operator", "must be at most 256 bytes");
    }
    let now_ms = now_unix_millis();
    let (field, until_ms) = match request.end {
        Some(End::UntilTime(until)) => ("until_time", Some(fields::unix_millis(until))),
        Some(End::Duration(duration)) => {
            let duration_ms = fields.ttl("duration", Some(duration));
            let until_ms = duration_ms.map(|duration_ms| now_ms.saturating_add(duration_ms));
            ("duration", until_ms)
        }
        None => {
            fields.violation("until_time", "or duration is required");
            ("until_time", None)
        }
    };
    if let Some(until_ms) = until_ms {
        fields.closure_end(field, until_ms, now_ms);
    }
    let operator = Owner {
        id: context.operator_name(&request.operator).to_owned(),
        reason: request.reason,
        ..Owner::default()
    };
    let close = lock.zip(until_ms).map(|(lock, until_ms)| CloseCommand {
        lock,
        until_ms,
        operator,
    });
    fields.finish(close)
}

pub(in crate::grpc) fn open_lock(request: OpenLockRequest) -> Result<LockKey, RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.required_lock(request.lock);
    fields.finish(lock)
}

pub(in crate::grpc) fn force_release(
    request: ForceReleaseLeaseRequest,
    limits: &Limits,
) -> Result<RevokeCommand, RequestError> {
    let mut fields = FieldValidator::default();
    let lock = fields.required_lock(request.lock);
    let lease_id = fields.lease_id("lease_id", &request.lease_id);
    fields.operator_reason(&request.reason);
    let grace_ms = fields.wait("grace", request.grace);
    let delay = request.lock_delay;
    let lock_delay_ms = delay.map(|delay| fields.wait("lock_delay", Some(delay)));
    fields.lock_delay(lock_delay_ms.unwrap_or(0), limits);
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
    fields.finish(revoke)
}
