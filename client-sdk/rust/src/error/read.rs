//! What a broker says, as errors.

use std::time::{Duration, SystemTime};

use leasehold_proto::v1::{self as pb, ErrorReason as Reason};
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{Busy, Error, Holder, LostReason, Refusal};

const CONTENTION: &str = "/leasehold.v1.Contention";

/// A call on a stream that was refused.
pub(crate) fn refused(refused: &pb::Refused) -> Error {
    let refusal = Refusal {
        message: refused.message.clone(),
        retry_after: refused.retry_after.and_then(|time| time.try_into().ok()),
    };
    let busy = || {
        let contention = refused.details.iter();
        let mut contention = contention.filter(|detail| detail.type_url.ends_with(CONTENTION));
        let contention = contention.next().map(|detail| &*detail.value);
        let contention = contention.and_then(|value| pb::Contention::decode(value).ok());
        let contention = contention.unwrap_or_default();
        Busy {
            message: refused.message.clone(),
            holders: contention.holders.iter().map(holder).collect(),
            queue_length: u32::try_from(contention.queue_length).unwrap_or_default(),
            retry_after: refusal.retry_after,
        }
    };
    match refused.reason() {
        Reason::LockHeld => Error::Held(busy()),
        Reason::WaitTimeout | Reason::StillQueued => Error::WaitTimeout(busy()),
        reason @ (Reason::LeaseExpired
        | Reason::LeaseRevoked
        | Reason::LeaseNotFound
        | Reason::StaleAttach) => Error::LeaseLost(lost(reason, &refused.message)),
        Reason::LimitMismatch => Error::LimitMismatch(refusal),
        Reason::UpgradeDenied => Error::UpgradeDenied(refusal),
        Reason::InvalidField => Error::Invalid(refusal),
        Reason::QueueFull => Error::QueueFull(refusal),
        Reason::QuotaExceeded | Reason::TooManyLeases => Error::QuotaExceeded(refusal),
        Reason::StoreFull => Error::StoreFull(refusal),
        Reason::UnsupportedByStore => Error::UnsupportedByStore(refusal),
        Reason::Unauthenticated => Error::Unauthenticated(refusal),
        Reason::PermissionDenied => Error::PermissionDenied(refusal),
        Reason::StoreUnavailable
        | Reason::Draining
        | Reason::Overloaded
        | Reason::TooManyAttempts => Error::Unavailable(refusal),
        Reason::StoreRecovering => Error::StoreRecovering(refusal),
        Reason::Internal => Error::Internal(refusal),
        Reason::Unspecified
        | Reason::StaleToken
        | Reason::NotHolder
        | Reason::RequestIdReused
        | Reason::Cancelled
        | Reason::CallIdReused => Error::Other(refusal),
    }
}

/// What the end of a lease means to its holder.
pub(crate) fn lost(reason: Reason, message: &str) -> LostReason {
    let known = [
        (Reason::LeaseExpired, LostReason::Expired),
        (
            Reason::LeaseRevoked,
            LostReason::Revoked(message.to_owned()),
        ),
        (Reason::LeaseNotFound, LostReason::StoreLost),
        (Reason::StaleAttach, LostReason::Moved),
    ];
    let known = known.into_iter().find(|(known, _)| *known == reason);
    known.map_or_else(|| LostReason::Other(message.to_owned()), |(_, lost)| lost)
}

/// The status of a unary call, as the same call would have been refused on a stream.
pub(crate) fn status(status: &Status) -> pb::Refused {
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

/// Whether a call may have been done all the same, and is to be repeated.
pub(crate) fn is_open(refused: &pb::Refused) -> bool {
    // A wait is cancelled by the broker, too, if it has not heard of the client for long.
    let open = [
        Code::Unavailable,
        Code::Cancelled,
        Code::Unknown,
        Code::DeadlineExceeded,
    ];
    open.iter().any(|code| refused.code == i32::from(*code))
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
        remaining: time(holder.remaining),
    }
}

/// A span of time; what is unset or negative is none.
pub(crate) fn time(time: Option<prost_types::Duration>) -> Duration {
    time.and_then(|time| time.try_into().ok())
        .unwrap_or_default()
}
