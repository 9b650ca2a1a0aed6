//! Classification of error statuses from the view of a caller.

use leasehold_proto::v1::ErrorReason;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Returns the reason in the status, if the broker gave one.
#[must_use]
pub fn error_reason(status: &Status) -> Option<ErrorReason> {
    let details = status.get_error_details();
    let reason = &details.error_info()?.reason;
    ErrorReason::from_str_name(&format!("ERROR_REASON_{reason}"))
}

/// Returns true if the call may have been executed although it failed, so that the caller must
/// repeat it.
#[must_use]
pub fn has_unknown_outcome(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded
    )
}

/// Returns true if the connection failed. Errors of the broker always have a reason.
#[must_use]
pub fn is_transport_error(status: &Status) -> bool {
    has_unknown_outcome(status) && error_reason(status).is_none()
}
