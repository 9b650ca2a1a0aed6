//! What an error status means to a caller.

use leasehold_proto::v1::ErrorReason;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The reason in the status, if the broker gave one.
#[must_use]
pub fn reason(status: &Status) -> Option<ErrorReason> {
    let details = status.get_error_details();
    let reason = &details.error_info()?.reason;
    ErrorReason::from_str_name(&format!("ERROR_REASON_{reason}"))
}

/// Whether the call may have been done although it failed: repeat it.
#[must_use]
pub fn unknown_outcome(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded
    )
}

/// Whether the connection failed, not the broker's work: the broker always gives a reason.
#[must_use]
pub fn transport_error(status: &Status) -> bool {
    unknown_outcome(status) && reason(status).is_none()
}
