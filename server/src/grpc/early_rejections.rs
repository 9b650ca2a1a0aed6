//! Statuses of calls that are rejected before their handlers run.

use std::time::Duration;

use tonic::{Code, Status};

use super::{pb, status::ErrorResponse};
use crate::{lock::LockError, request::RequestError};

/// Returns the status of a call whose message did not arrive in time.
pub(crate) fn late_message(timeout: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "the request message was not complete within {} s; repeat the call",
        timeout.as_secs()
    ))
}

/// Returns the status of a call whose message had not arrived when the broker started draining.
pub(crate) fn draining() -> Status {
    RequestError::from(LockError::Draining).into()
}

/// Returns the status of a call while too many large responses are being created or are unread.
pub(crate) fn no_permit() -> Status {
    let message = "too many list and get requests are in progress or have unread responses; read \
                   the responses, and repeat the call after a short delay";
    let error = RequestError::Failed {
        error: LockError::Overloaded,
        lock: None,
        message: message.to_owned(),
    };
    error.into()
}

/// Returns the status of a call while the incomplete messages of its connection are too large.
pub(crate) fn too_much_incomplete() -> Status {
    let (code, reason) = (Code::ResourceExhausted, pb::ErrorReason::QuotaExceeded);
    let message = "too many incomplete request messages on this connection; send each call's \
                   message without delay";
    ErrorResponse::new(code, reason, message).into()
}
