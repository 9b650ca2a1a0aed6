//! Conversion of rejections and statuses of a broker to errors of the client.

use std::time::{Duration, SystemTime};

use leasehold_proto::v1::{self as pb, ErrorReason as Reason};
use prost::Message;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{Closure, ClosureCause, Contention, Error, ErrorDetail, Holder, LostReason};
use crate::queue_position::StoreRecovery;

const CONTENTION: &str = "/leasehold.v1.Contention";
const STORE_RECOVERY: &str = "/leasehold.v1.StoreRecovery";

/// Converts the rejection of a call on a stream.
pub(crate) fn from_refused(refused: &pb::Refused) -> Error {
    let detail = ErrorDetail {
        message: refused.message.clone(),
        retry_after: refused.retry_after.and_then(|time| time.try_into().ok()),
    };
    let contention_detail = || {
        let contention: pb::Contention = find_detail(refused, CONTENTION).unwrap_or_default();
        Contention {
            message: refused.message.clone(),
            holders: contention.holders.iter().map(holder).collect(),
            queue_length: u32::try_from(contention.queue_length).unwrap_or_default(),
            retry_after: detail.retry_after,
            closure: contention
                .closure
                .as_ref()
                .map(|set| Box::new(closure(set))),
        }
    };
    match refused.reason() {
        Reason::LockHeld => Error::Held(contention_detail()),
        Reason::WaitTimeout | Reason::StillQueued => Error::WaitTimeout(contention_detail()),
        reason @ (Reason::LeaseExpired
        | Reason::LeaseRevoked
        | Reason::LeaseNotFound
        | Reason::StaleAttach) => Error::LeaseLost(lost_reason(reason, &refused.message)),
        Reason::LimitMismatch => Error::LimitMismatch(detail),
        Reason::UpgradeDenied => Error::UpgradeDenied(detail),
        Reason::InvalidField => Error::Invalid(detail),
        Reason::QueueFull => Error::QueueFull(detail),
        Reason::QuotaExceeded | Reason::TooManyLeases => Error::QuotaExceeded(detail),
        Reason::StoreFull => Error::StoreFull(detail),
        Reason::UnsupportedByStore => Error::UnsupportedByStore(detail),
        Reason::Unauthenticated => Error::Unauthenticated(detail),
        Reason::PermissionDenied => Error::PermissionDenied(detail),
        Reason::StoreUnavailable
        | Reason::Draining
        | Reason::Overloaded
        | Reason::TooManyAttempts => Error::Unavailable(detail),
        Reason::StoreRecovering => Error::StoreRecovering(detail),
        Reason::Internal => Error::Internal(detail),
        Reason::Unspecified
        | Reason::StaleToken
        | Reason::NotHolder
        | Reason::RequestIdReused
        | Reason::Cancelled
        | Reason::CallIdReused => Error::Other(detail),
    }
}

/// Returns the recovery of the store for which the call was rejected.
pub(crate) fn recovery_of(refused: &pb::Refused) -> Option<StoreRecovery> {
    find_detail(refused, STORE_RECOVERY).map(|found| recovery(&found))
}

/// Converts the recovery of the store.
pub(crate) fn recovery(recovery: &pb::StoreRecovery) -> StoreRecovery {
    StoreRecovery {
        cause: recovery.cause.clone(),
        since: recovery.since_time.and_then(|time| time.try_into().ok()),
        remaining: duration(recovery.remaining),
    }
}

fn find_detail<M: Message + Default>(refused: &pb::Refused, type_url: &str) -> Option<M> {
    let mut details = refused.details.iter();
    let detail = details.find(|detail| detail.type_url.ends_with(type_url))?;
    M::decode(&*detail.value).ok()
}

/// Converts the closure of a lock.
pub(crate) fn closure(closure: &pb::Closure) -> Closure {
    let owner = closure.owner.clone().unwrap_or_default();
    Closure {
        cause: match closure.cause() {
            pb::ClosureCause::LockDelay => ClosureCause::LockDelay,
            pb::ClosureCause::AtLeast => ClosureCause::AtLeast,
            pb::ClosureCause::Operator => ClosureCause::Operator,
            pb::ClosureCause::Unspecified => ClosureCause::Other,
        },
        owner: owner.id,
        reason: owner.reason,
        until: closure.until_time.and_then(|time| time.try_into().ok()),
        remaining: closure
            .remaining
            .and_then(|time| time.try_into().ok())
            .unwrap_or_default(),
    }
}

/// Converts the reason of a rejection to the reason for which the lease was lost.
pub(crate) fn lost_reason(reason: Reason, message: &str) -> LostReason {
    let reasons = [
        (Reason::LeaseExpired, LostReason::Expired),
        (
            Reason::LeaseRevoked,
            LostReason::Revoked(message.to_owned()),
        ),
        (Reason::LeaseNotFound, LostReason::StoreLost),
        (Reason::StaleAttach, LostReason::Moved),
    ];
    let entry = reasons
        .into_iter()
        .find(|(candidate, _)| *candidate == reason);
    entry.map_or_else(|| LostReason::Other(message.to_owned()), |(_, lost)| lost)
}

/// Converts the status of a unary call to the rejection that a stream would send for the same call.
pub(crate) fn refused_from_status(status: &Status) -> pb::Refused {
    let details = status.get_error_details();
    let reason = details
        .error_info()
        .and_then(|info| Reason::from_str_name(&format!("ERROR_REASON_{}", info.reason)));
    let retry_after = details.retry_info().and_then(|retry| retry.retry_delay);
    pb::Refused {
        reason: reason.unwrap_or_default().into(),
        code: status.code().into(),
        message: status.message().to_owned(),
        retry_after: retry_after.and_then(|time| time.try_into().ok()),
        ..pb::Refused::default()
    }
}

/// Returns true if the outcome of the call is unknown, so that the call must be repeated.
pub(crate) fn is_retryable(refused: &pb::Refused) -> bool {
    // The broker also cancels a wait if the client sent no heartbeat for too long.
    let retryable = [
        Code::Unavailable,
        Code::Cancelled,
        Code::Unknown,
        Code::DeadlineExceeded,
    ];
    retryable
        .iter()
        .any(|code| refused.code == i32::from(*code))
}

pub(crate) fn holder(holder: &pb::Holder) -> Holder {
    let owner = holder.owner.clone().unwrap_or_default();
    let since = holder.since_time;
    Holder {
        lease_id: holder.lease_id.clone(),
        owner: owner.id,
        reason: owner.reason,
        fencing_token: holder.fencing_token,
        since: since.and_then(|since| SystemTime::try_from(since).ok()),
        remaining: duration(holder.remaining),
    }
}

/// Converts a duration. An unset or negative one becomes zero.
pub(crate) fn duration(time: Option<prost_types::Duration>) -> Duration {
    time.and_then(|time| time.try_into().ok())
        .unwrap_or_default()
}
