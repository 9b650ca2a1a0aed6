//! Conversion of errors to gRPC statuses with code, reason, details and message.

use leasehold_proto::v1 as pb;
use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb as rpc;

use super::encode;
use crate::access::AuthError;
use crate::lock::{Contention, LockError, LockFailure, LockKey, QuotaExceeded};
use crate::request::{RequestError, VIOLATIONS_MAX, Violation, truncate};
use crate::time::millis;

const DOMAIN: &str = "leasehold.dev";
const STORE_RETRY_MS: u64 = 1_000;
const OVERLOAD_RETRY_MS: u64 = 500;
/// Memory of the store becomes free when callers release locks, or an operator makes room.
const FULL_RETRY_MS: u64 = 5_000;

/// An error as its caller receives it: in a status, or in a message of a lease stream.
pub(super) struct ErrorResponse {
    code: Code,
    reason: pb::ErrorReason,
    message: String,
    /// Metadata of the `ErrorInfo`.
    metadata: Vec<(String, String)>,
    /// Time after which a retry can succeed, if there is one.
    retry_after_ms: Option<u64>,
    /// Details besides the `ErrorInfo` and the `RetryInfo`.
    other_details: Vec<Any>,
}

impl ErrorResponse {
    /// Creates an error that does not refer to a lock.
    pub(super) fn new(code: Code, reason: pb::ErrorReason, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            metadata: Vec::new(),
            retry_after_ms: None,
            other_details: Vec::new(),
        }
    }

    /// Creates the error of an operation that failed.
    fn of_failure(error: &LockError, lock: Option<&LockKey>, message: String) -> Self {
        let (code, reason, retry_after_ms) = classify(error);
        let mut response = Self {
            metadata: lock.map(lock_metadata).unwrap_or_default(),
            retry_after_ms,
            ..Self::new(code, reason, message)
        };
        if let LockError::StaleToken { newest } = error {
            let newest = ("newest_fencing_token".to_owned(), newest.to_string());
            response.metadata.push(newest);
        }
        if let LockError::Held(contention) | LockError::WaitTimeout(contention) = error
            && let Some(lock) = lock
        {
            let contention = encode_contention(contention, lock, retry_after_ms);
            let detail = pack_any("leasehold.v1.Contention", &contention);
            response.other_details.push(detail);
        }
        if let LockError::StoreRecovering {
            recovery: Some(recovery),
            ..
        } = error
        {
            let recovery = encode::recovery(recovery);
            let detail = pack_any("leasehold.v1.StoreRecovery", &recovery);
            response.other_details.push(detail);
        }
        if let LockError::QuotaExceeded(quota) = error {
            response.other_details.push(quota_failure(quota));
        }
        response
    }

    /// Converts the error to a message of a lease stream.
    pub(super) fn into_refused(self, call_id: i64) -> pb::Refused {
        pb::Refused {
            call_id,
            reason: self.reason.into(),
            code: self.code.into(),
            retry_after: self.retry_after_ms.map(encode::duration),
            message: self.message.clone(),
            details: self.into_details(),
        }
    }

    fn into_details(self) -> Vec<Any> {
        let mut details = vec![error_info(self.reason, self.metadata)];
        details.extend(self.retry_after_ms.map(retry));
        details.extend(self.other_details);
        details
    }
}

impl From<ErrorResponse> for Status {
    fn from(response: ErrorResponse) -> Self {
        let (code, message) = (response.code, response.message.clone());
        let details = rpc::Status {
            code: code.into(),
            message: message.clone(),
            details: response.into_details(),
        };
        Status::with_details(code, message, details.encode_to_vec().into())
    }
}

impl From<RequestError> for ErrorResponse {
    fn from(error: RequestError) -> Self {
        use pb::ErrorReason as Reason;
        let message = error.to_string();
        match error {
            RequestError::Unauthenticated(AuthError::RateLimited(retry_after)) => Self {
                retry_after_ms: Some(millis(retry_after) + 1),
                ..Self::new(Code::ResourceExhausted, Reason::QuotaExceeded, message)
            },
            RequestError::Unauthenticated(_) => {
                Self::new(Code::Unauthenticated, Reason::Unauthenticated, message)
            }
            RequestError::Invalid(violations) => Self {
                other_details: vec![bad_request(violations)],
                ..Self::new(Code::InvalidArgument, Reason::InvalidField, message)
            },
            RequestError::Denied(_, lock) => Self {
                metadata: lock_metadata(&lock),
                ..Self::new(Code::PermissionDenied, Reason::PermissionDenied, message)
            },
            RequestError::DeniedEverywhere(_) => {
                Self::new(Code::PermissionDenied, Reason::PermissionDenied, message)
            }
            RequestError::Failed { error, lock, .. } => {
                Self::of_failure(&error, lock.as_ref(), message)
            }
        }
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        ErrorResponse::from(error).into()
    }
}

impl From<LockFailure> for Status {
    fn from(failure: LockFailure) -> Self {
        RequestError::from(failure).into()
    }
}

/// Returns the code and the reason of an error, and the time in milliseconds after which a retry
/// can succeed, if there is one.
fn classify(error: &LockError) -> (Code, pb::ErrorReason, Option<u64>) {
    use pb::ErrorReason as Reason;
    match error {
        LockError::Held(contention) => (Code::Aborted, Reason::LockHeld, free_in_ms(contention)),
        LockError::WaitTimeout(contention) => {
            (Code::Aborted, Reason::WaitTimeout, free_in_ms(contention))
        }
        LockError::StillQueued => (Code::Aborted, Reason::StillQueued, None),
        LockError::LeaseExpired | LockError::LeaseReleased | LockError::MaxHold => {
            (Code::Aborted, Reason::LeaseExpired, None)
        }
        LockError::LeaseRevoked { .. } => (Code::Aborted, Reason::LeaseRevoked, None),
        LockError::Cancelled => (Code::Cancelled, Reason::Cancelled, None),
        LockError::LeaseNotFound => (Code::NotFound, Reason::LeaseNotFound, None),
        LockError::NotHolder => (Code::FailedPrecondition, Reason::NotHolder, None),
        LockError::StaleToken { .. } => (Code::Aborted, Reason::StaleToken, None),
        LockError::RequestIdReused => (Code::InvalidArgument, Reason::RequestIdReused, None),
        LockError::LimitMismatch { .. } => (Code::FailedPrecondition, Reason::LimitMismatch, None),
        LockError::UpgradeDenied => (Code::FailedPrecondition, Reason::UpgradeDenied, None),
        LockError::StaleAttach => (Code::Aborted, Reason::StaleAttach, None),
        LockError::TooManyAttempts => (
            Code::Unavailable,
            Reason::TooManyAttempts,
            Some(OVERLOAD_RETRY_MS),
        ),
        LockError::QuotaExceeded(QuotaExceeded::Rate { retry_after_ms, .. }) => (
            Code::ResourceExhausted,
            Reason::QuotaExceeded,
            Some(*retry_after_ms),
        ),
        LockError::TooManyEntries | LockError::TooManyLocks | LockError::QuotaExceeded(_) => {
            (Code::ResourceExhausted, Reason::QuotaExceeded, None)
        }
        LockError::Overloaded => (
            Code::Unavailable,
            Reason::Overloaded,
            Some(OVERLOAD_RETRY_MS),
        ),
        LockError::QueueFull => (Code::ResourceExhausted, Reason::QueueFull, None),
        LockError::Unsupported(_) => (Code::FailedPrecondition, Reason::UnsupportedByStore, None),
        LockError::StoreUnavailable => (
            Code::Unavailable,
            Reason::StoreUnavailable,
            Some(STORE_RETRY_MS),
        ),
        LockError::StoreFull => (
            Code::ResourceExhausted,
            Reason::StoreFull,
            Some(FULL_RETRY_MS),
        ),
        LockError::StoreRecovering { retry_after_ms, .. } => (
            Code::Unavailable,
            Reason::StoreRecovering,
            Some(*retry_after_ms),
        ),
        LockError::Draining => (Code::Unavailable, Reason::Draining, Some(0)),
        LockError::StoreCorrupt | LockError::Internal => (Code::Internal, Reason::Internal, None),
    }
}

/// Returns the time after which a lock may be free, if it is held or closed.
fn free_in_ms(contention: &Contention) -> Option<u64> {
    let holders = contention.holders.iter();
    let expiry_ms = holders.map(|holder| holder.remaining_ms).min();
    expiry_ms.max(
        contention
            .closure
            .as_ref()
            .map(|closure| closure.remaining_ms),
    )
}

fn error_info(reason: pb::ErrorReason, metadata: Vec<(String, String)>) -> Any {
    let reason = reason.as_str_name();
    pack_any(
        "google.rpc.ErrorInfo",
        &rpc::ErrorInfo {
            reason: reason.trim_start_matches("ERROR_REASON_").to_owned(),
            domain: DOMAIN.to_owned(),
            metadata: metadata.into_iter().collect(),
        },
    )
}

fn pack_any(name: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: message.encode_to_vec(),
    }
}

fn bad_request(violations: Vec<Violation>) -> Any {
    let violations = violations.into_iter().take(VIOLATIONS_MAX);
    let violations = violations.map(|violation| rpc::bad_request::FieldViolation {
        field: truncate(&violation.field).to_owned(),
        description: violation.description.to_owned(),
        ..Default::default()
    });
    let field_violations = violations.collect();
    pack_any(
        "google.rpc.BadRequest",
        &rpc::BadRequest { field_violations },
    )
}

fn quota_failure(quota: &QuotaExceeded) -> Any {
    let violation = rpc::quota_failure::Violation {
        description: quota.to_string(),
        ..Default::default()
    };
    let violations = vec![violation];
    pack_any("google.rpc.QuotaFailure", &rpc::QuotaFailure { violations })
}

fn retry(after_ms: u64) -> Any {
    let retry_delay = Some(encode::duration(after_ms));
    pack_any("google.rpc.RetryInfo", &rpc::RetryInfo { retry_delay })
}

fn lock_metadata(lock: &LockKey) -> Vec<(String, String)> {
    vec![
        ("namespace".to_owned(), lock.namespace().to_owned()),
        ("lock".to_owned(), truncate(lock.name()).to_owned()),
    ]
}

fn encode_contention(
    contention: &Contention,
    lock: &LockKey,
    retry_after_ms: Option<u64>,
) -> pb::Contention {
    let shorten_owner = |owner: &mut pb::Owner| {
        owner.id = truncate(&owner.id).to_owned();
        owner.reason = truncate(&owner.reason).to_owned();
        owner.labels.clear();
    };
    let shorten = |held| {
        let mut holder = encode::holder(lock, held);
        holder.owner.iter_mut().for_each(shorten_owner);
        if let Some(target) = &mut holder.target {
            target.name = truncate(&target.name).to_owned();
        }
        holder
    };
    let mut closure = contention.closure.as_deref().map(encode::closure);
    let closed_by = closure.iter_mut().flat_map(|closure| &mut closure.owner);
    closed_by.for_each(shorten_owner);
    pb::Contention {
        holders: contention.holders.iter().map(shorten).collect(),
        queue_length: encode::count(contention.queue_length),
        retry_after: retry_after_ms.map(encode::duration),
        closure,
    }
}

#[cfg(test)]
mod tests;
