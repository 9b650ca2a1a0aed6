//! Errors of requests. The text of an error is its message to the caller.

use thiserror::Error;

use crate::{
    access::{AuthError, Verb},
    lock::{LockError, LockFailure, LockKey, QuotaExceeded},
};

/// Maximum length of strings in details. gRPC clients reject trailers of more than 8 KiB, so the
/// details must stay below 4 KiB.
const DETAIL_TEXT_MAX_BYTES: usize = 128;
/// Maximum number of violations in an error.
pub const VIOLATIONS_MAX: usize = 8;
const VIOLATIONS_IN_MESSAGE: usize = 3;

/// An invalid field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub field: String,
    /// A description of the valid values.
    pub description: &'static str,
}

/// The reason why a request was rejected or failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The caller could not be authenticated.
    #[error(transparent)]
    Unauthenticated(#[from] AuthError),
    /// Some fields are invalid.
    #[error("invalid request: {}", summary(_0))]
    Invalid(Vec<Violation>),
    /// The caller may not use the verb on the lock.
    #[error("{}: the policy does not allow you to {_0} it", display_lock(_1))]
    Denied(Verb, LockKey),
    /// The caller may use the verb on no lock.
    #[error("the policy does not allow you to {_0} any lock")]
    DeniedEverywhere(Verb),
    /// The operation failed.
    #[error("{message}")]
    Failed {
        error: LockError,
        /// The lock at which the operation failed, if it refers to one lock.
        lock: Option<LockKey>,
        message: String,
    },
}

impl RequestError {
    /// Creates the error of an operation on `lock` with an explanation that replaces the general
    /// text and advice of `error`.
    pub fn explained(error: LockError, lock: &LockKey, explanation: &str) -> Self {
        Self::Failed {
            message: format!("{}: {explanation}", display_lock(lock)),
            lock: Some(lock.clone()),
            error,
        }
    }

    /// Creates the error of an operation for which a server of the store does not answer.
    pub fn no_answer(server: &str, reason: &str) -> Self {
        let error = LockError::StoreUnavailable;
        Self::Failed {
            message: format!("{error} ({server} does not answer: {reason}); repeat the call"),
            lock: None,
            error,
        }
    }
}

impl From<LockFailure> for RequestError {
    fn from(failure: LockFailure) -> Self {
        let LockFailure { lock, error } = failure;
        Self::Failed {
            message: format!("{}: {error}; {}", display_lock(&lock), remediation(&error)),
            lock: Some(lock),
            error,
        }
    }
}

/// Creates the error of an operation that does not refer to one lock.
impl From<LockError> for RequestError {
    fn from(error: LockError) -> Self {
        // These calls have no request id.
        let remediation = if error == LockError::StoreUnavailable {
            "repeat the call"
        } else if error == LockError::Draining {
            "call another replica"
        } else {
            remediation(&error)
        };
        Self::Failed {
            message: format!("{error}; {remediation}"),
            lock: None,
            error,
        }
    }
}

/// Returns the first bytes of a caller's text, short enough for an error.
pub fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(DETAIL_TEXT_MAX_BYTES)]
}

fn display_lock(lock: &LockKey) -> String {
    format!("lock {}/{}", lock.namespace(), truncate(lock.name()))
}

/// Describes the first violations.
fn summary(violations: &[Violation]) -> String {
    let displayed: Vec<_> = violations
        .iter()
        .take(VIOLATIONS_IN_MESSAGE)
        .map(|violation| format!("{} {}", truncate(&violation.field), violation.description))
        .collect();
    let mut summary = displayed.join("; ");
    if violations.len() >= VIOLATIONS_MAX {
        summary += "; and more";
    } else if violations.len() > displayed.len() {
        summary += &format!("; and {} more", violations.len() - displayed.len());
    }
    summary
}

/// Returns the advice for the caller.
fn remediation(error: &LockError) -> &'static str {
    match error {
        LockError::Held(_) => "retry later, or set wait_timeout to wait in the queue",
        LockError::WaitTimeout(_) => "the call has left the queue: acquire again to join its end",
        LockError::StillQueued => "repeat the call with the same request_id",
        LockError::LeaseExpired
        | LockError::LeaseReleased
        | LockError::LeaseRevoked { .. }
        | LockError::MaxHold => {
            "stop the work that the lock protects, and acquire with a new request_id"
        }
        LockError::LeaseNotFound => "treat the lease as lost, and acquire again",
        LockError::NotHolder => "send the lease exactly as it was received",
        LockError::StaleToken { .. } => "reject the request that carries this token",
        LockError::RequestIdReused => "use a new UUID for every acquire",
        LockError::LimitMismatch { .. } => {
            "request the limit in use, or limit 0 to accept it, and at most that many permits"
        }
        LockError::UpgradeDenied => {
            "release the lease, and acquire with the strongest mode that the work needs"
        }
        LockError::StaleAttach => {
            "send the call on the stream to which it is attached, or attach it again"
        }
        LockError::TooManyEntries => "release entries that are no longer needed",
        LockError::TooManyAttempts => {
            "wait for the response to one of them, or repeat the call with the same request_id \
             after a short delay"
        }
        LockError::TooManyLocks => "release some of them, or acquire with another lease",
        LockError::Cancelled => "acquire again to join the end of the queue",
        LockError::QuotaExceeded(QuotaExceeded::Rate { .. }) => "repeat the call later",
        LockError::QuotaExceeded(QuotaExceeded::Waits(_)) => {
            "acquire the lock again when fewer of these calls are waiting"
        }
        LockError::QuotaExceeded(QuotaExceeded::Streams(_)) => {
            "use one stream for all leases of a process, and close the others"
        }
        LockError::QuotaExceeded(QuotaExceeded::Watches(_)) => {
            "close a watch, or use one watch for several locks"
        }
        LockError::QuotaExceeded(QuotaExceeded::LivePages(_)) => {
            "close another page of the console"
        }
        LockError::QuotaExceeded(_) => "release locks, or ask the operator to raise the quota",
        LockError::Overloaded => "repeat the call with the same request_id after a short delay",
        LockError::QueueFull => "retry when fewer calls are waiting",
        LockError::Unsupported(_) => {
            "use a deployment whose store is not RedLock, or do not use this feature"
        }
        LockError::StoreUnavailable => "repeat the call with the same request_id",
        LockError::StoreFull => "repeat the call later; leases can still be renewed and released",
        LockError::StoreRecovering { .. } => "repeat the call with the same request_id later",
        LockError::Draining => "repeat the call with the same request_id on another replica",
        LockError::StoreCorrupt | LockError::Internal => "see the log of the broker",
    }
}
