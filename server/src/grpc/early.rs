//! Refusals of calls whose handlers have not begun.

use std::time::Duration;

use tonic::{Code, Status};

use super::{pb, status};
use crate::lock::LockError;

/// The message of a call did not arrive in time.
pub(crate) fn late_message(within: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "the message of this call was not complete within {} s; repeat the call",
        within.as_secs()
    ))
}

/// The message of a call had not arrived when the broker began to drain.
pub(crate) fn draining() -> Status {
    status::of_all(&LockError::Draining, None)
}

/// Too many large answers are made or unread.
pub(crate) fn no_place() -> Status {
    status::no_place()
}

/// The incomplete messages of a connection are too large.
pub(crate) fn too_much_incomplete() -> Status {
    let (code, reason) = (Code::ResourceExhausted, pb::ErrorReason::QuotaExceeded);
    let message =
        "too many messages of this connection are incomplete; send each call's message at once";
    status::plain(code, reason, message)
}
