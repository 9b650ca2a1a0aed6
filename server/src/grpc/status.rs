//! Conversion of errors to gRPC statuses with code, reason, details and message.

use leasehold_proto::v1 as pb;
use prost::Message;
use prost_types::{Any, Duration};
use tonic::{Code, Status};
use tonic_types::{StatusExt as _, pb as rpc};

use super::encode;
use crate::access::{AuthError, Verb};
use crate::lock::{Contention, LockError, LockFailure, LockKey, QuotaExceeded};
use crate::time::millis;

const DOMAIN: &str = "leasehold.dev";
/// Maximum length of strings in details. gRPC clients reject trailers of more than 8 KiB, so the
/// details must stay below 4 KiB.
const DETAIL_TEXT_MAX_BYTES: usize = 128;
/// Maximum number of violations in an error.
pub(super) const VIOLATIONS_MAX: usize = 8;
const VIOLATIONS_IN_MESSAGE: usize = 3;
const STORE_RETRY_MS: u64 = 1_000;
const OVERLOAD_RETRY_MS: u64 = 500;
/// Memory of the store becomes free when callers release locks, or an operator makes room.
const FULL_RETRY_MS: u64 = 5_000;

/// An invalid field of a request.
pub(super) struct Violation {
    pub(super) field: String,
    /// A description of the valid values.
    pub(super) description: &'static str,
}

/// The reason why a request was rejected before it reached the broker.
pub(super) enum Rejection {
    /// Some fields are invalid.
    Invalid(Vec<Violation>),
    /// The caller may not use the verb on the lock.
    Denied(Verb, LockKey),
    /// The request fails regardless of the state of the store.
    Failed(LockFailure),
}

impl From<LockFailure> for Status {
    fn from(failure: LockFailure) -> Self {
        from_lock_error(&failure.error, &failure.lock)
    }
}

impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Invalid(violations) => invalid(violations),
            Rejection::Denied(verb, lock) => denied(verb, &lock),
            Rejection::Failed(failure) => failure.into(),
        }
    }
}

/// Returns the status of a call that could not be authenticated.
pub(super) fn unauthenticated(error: AuthError) -> Status {
    if let AuthError::RateLimited(retry_after) = error {
        let message = "too many calls without a valid credential from this address; send a valid \
                       credential, or retry later";
        let details = vec![
            error_info(pb::ErrorReason::QuotaExceeded, Vec::new()),
            retry(millis(retry_after) + 1),
        ];
        return status(Code::ResourceExhausted, message.to_owned(), details);
    }
    let message = match error {
        AuthError::NoCallerName(reason) => format!(
            "the client certificate does not identify a caller: {reason}; it must have exactly one \
             URI, a SPIFFE ID such as spiffe://example.org/worker"
        ),
        AuthError::InvalidCredential | AuthError::RateLimited(_) => {
            "missing or invalid credentials; provide a client certificate, or a bearer token in \
             the `authorization` metadata"
                .to_owned()
        }
    };
    let details = vec![error_info(pb::ErrorReason::Unauthenticated, Vec::new())];
    status(Code::Unauthenticated, message, details)
}

/// Returns the status of a call whose verb the policy allows for no lock.
pub(super) fn denied_everywhere(verb: Verb) -> Status {
    let message = format!("the policy does not allow you to {verb} any lock");
    let details = vec![error_info(pb::ErrorReason::PermissionDenied, Vec::new())];
    status(Code::PermissionDenied, message, details)
}

/// Returns the status of a call that the policy does not allow.
fn denied(verb: Verb, lock: &LockKey) -> Status {
    let message = format!(
        "{}: the policy does not allow you to {verb} it",
        display_lock(lock)
    );
    let details = vec![error_info(
        pb::ErrorReason::PermissionDenied,
        lock_metadata(lock),
    )];
    status(Code::PermissionDenied, message, details)
}

/// Returns the status of a call about `lock` that failed.
pub(super) fn from_lock_error(error: &LockError, lock: &LockKey) -> Status {
    let (code, reason) = code_and_reason(error);
    let retry_after_ms = retry_after_ms(error);
    let mut metadata = lock_metadata(lock);
    if let LockError::StaleToken { newest } = error {
        metadata.push(("newest_fencing_token".to_owned(), newest.to_string()));
    }
    let mut details = vec![error_info(reason, metadata)];
    details.extend(retry_after_ms.map(retry));
    if let LockError::Held(lock_contention) | LockError::WaitTimeout(lock_contention) = error {
        let contention = contention(lock_contention, lock, retry_after_ms);
        details.push(pack_any("leasehold.v1.Contention", &contention));
    }
    let message = format!("{}: {error}; {}", display_lock(lock), remediation(error));
    if let LockError::QuotaExceeded(quota) = error {
        details.push(quota_failure(quota));
    }
    status(code, message, details)
}

/// Returns the status of a call that failed and does not refer to one lock. `server` is the part
/// of the store that does not respond.
pub(super) fn from_error(error: &LockError, server: Option<&str>) -> Status {
    let (code, reason) = code_and_reason(error);
    let mut details = vec![error_info(reason, vec![])];
    details.extend(retry_after_ms(error).map(retry));
    let server = server.map_or_else(String::new, |server| format!(" ({server} does not answer)"));
    if let LockError::QuotaExceeded(quota) = error {
        details.push(quota_failure(quota));
    }
    // These calls have no request id.
    let remediations = [
        (LockError::StoreUnavailable, "repeat the call"),
        (LockError::Draining, "call another replica"),
    ];
    let entry = remediations
        .iter()
        .find(|(lock_error, _)| lock_error == error);
    let remediation = entry.map_or_else(|| remediation(error), |(_, remediation)| remediation);
    status(code, format!("{error}{server}; {remediation}"), details)
}

/// Returns a status that does not refer to a lock.
pub(super) fn with_reason(code: Code, reason: pb::ErrorReason, message: &str) -> Status {
    status(code, message.to_owned(), vec![error_info(reason, vec![])])
}

/// Returns the status of a call for whose response no slot was free in time.
pub(super) fn no_response_permit() -> Status {
    let message = "too many list and get requests are in progress or have unread responses; read \
                   the responses, and repeat the call after a short delay";
    let details = vec![
        error_info(pb::ErrorReason::Overloaded, Vec::new()),
        retry(OVERLOAD_RETRY_MS),
    ];
    status(Code::Unavailable, message.to_owned(), details)
}

/// Converts a status to a message of a lease stream.
pub(super) fn rejected(call_id: i64, status: &Status) -> pb::Refused {
    let details = rpc::Status::decode(status.details())
        .unwrap_or_default()
        .details;
    let error_details = status.get_error_details();
    let reason = error_details
        .error_info()
        .and_then(|info| pb::ErrorReason::from_str_name(&format!("ERROR_REASON_{}", info.reason)));
    let retry_after = error_details
        .retry_info()
        .and_then(|retry| retry.retry_delay);
    let retry_after = retry_after.and_then(|delay| Duration::try_from(delay).ok());
    pb::Refused {
        call_id,
        reason: reason.unwrap_or(pb::ErrorReason::Unspecified).into(),
        code: status.code().into(),
        message: status.message().to_owned(),
        retry_after,
        details,
    }
}

/// Returns the status of a `GetLock` for a lock without holders and waiters.
pub(super) fn idle_lock(lock: &LockKey) -> Status {
    let details = vec![error_info(
        pb::ErrorReason::LeaseNotFound,
        lock_metadata(lock),
    )];
    let message = format!(
        "{}: the lock has no holders and no waiters",
        display_lock(lock)
    );
    status(Code::NotFound, message, details)
}

/// Returns the status of a `ForceReleaseLease` that failed, or found no lease to revoke.
pub(super) fn force_release_error(error: &LockError, lock: &LockKey) -> Status {
    let messages = [
        (
            LockError::LeaseExpired,
            "the lease has already expired: there is nothing to revoke",
        ),
        (
            LockError::LeaseReleased,
            "the lease was already released: there is nothing to revoke",
        ),
        (
            LockError::LeaseNotFound,
            "the lease does not hold this lock; call GetLock to see its holders",
        ),
    ];
    let entry = messages.iter().find(|(lock_error, _)| lock_error == error);
    let Some((_, explanation)) = entry else {
        return from_lock_error(error, lock);
    };
    let (code, reason) = code_and_reason(error);
    let message = format!("{}: {explanation}", display_lock(lock));
    status(code, message, vec![error_info(reason, lock_metadata(lock))])
}

/// Returns the status of a `SetLockLimit` that changed nothing.
pub(super) fn limit_not_set(error: &LockError, lock: &LockKey) -> Status {
    if !matches!(error, LockError::LimitMismatch { .. }) {
        return from_lock_error(error, lock);
    }
    let (code, reason) = code_and_reason(error);
    let message = format!(
        "{}: the lock is held or waited for as an exclusive or shared lock, which has no limit; \
         set the limit when the lock is idle",
        display_lock(lock)
    );
    status(code, message, vec![error_info(reason, lock_metadata(lock))])
}

/// Returns the code and the reason of an error.
fn code_and_reason(error: &LockError) -> (Code, pb::ErrorReason) {
    use pb::ErrorReason as Reason;
    match error {
        LockError::Held(_) => (Code::Aborted, Reason::LockHeld),
        LockError::WaitTimeout(_) => (Code::Aborted, Reason::WaitTimeout),
        LockError::StillQueued => (Code::Aborted, Reason::StillQueued),
        LockError::LeaseExpired | LockError::LeaseReleased | LockError::MaxHold => {
            (Code::Aborted, Reason::LeaseExpired)
        }
        LockError::LeaseRevoked { .. } => (Code::Aborted, Reason::LeaseRevoked),
        LockError::Cancelled => (Code::Cancelled, Reason::Cancelled),
        LockError::LeaseNotFound => (Code::NotFound, Reason::LeaseNotFound),
        LockError::NotHolder => (Code::FailedPrecondition, Reason::NotHolder),
        LockError::StaleToken { .. } => (Code::Aborted, Reason::StaleToken),
        LockError::RequestIdReused => (Code::InvalidArgument, Reason::RequestIdReused),
        LockError::LimitMismatch { .. } => (Code::FailedPrecondition, Reason::LimitMismatch),
        LockError::UpgradeDenied => (Code::FailedPrecondition, Reason::UpgradeDenied),
        LockError::StaleAttach => (Code::Aborted, Reason::StaleAttach),
        LockError::TooManyEntries | LockError::TooManyLocks => {
            (Code::ResourceExhausted, Reason::QuotaExceeded)
        }
        LockError::TooManyAttempts => (Code::Unavailable, Reason::TooManyAttempts),
        LockError::QuotaExceeded(_) => (Code::ResourceExhausted, Reason::QuotaExceeded),
        LockError::Overloaded => (Code::Unavailable, Reason::Overloaded),
        LockError::QueueFull => (Code::ResourceExhausted, Reason::QueueFull),
        LockError::Unsupported(_) => (Code::FailedPrecondition, Reason::UnsupportedByStore),
        LockError::StoreUnavailable => (Code::Unavailable, Reason::StoreUnavailable),
        LockError::StoreFull => (Code::ResourceExhausted, Reason::StoreFull),
        LockError::StoreRecovering { .. } => (Code::Unavailable, Reason::StoreRecovering),
        LockError::Draining => (Code::Unavailable, Reason::Draining),
        LockError::StoreCorrupt | LockError::Internal => (Code::Internal, Reason::Internal),
    }
}

/// Returns the time after which a retry can succeed, if there is one.
fn retry_after_ms(error: &LockError) -> Option<u64> {
    match error {
        LockError::Held(contention) | LockError::WaitTimeout(contention) => {
            let holders = contention.holders.iter();
            let expiry_ms = holders.map(|holder| holder.remaining_ms).min();
            let lock_delay_ms = (contention.lock_delay_remaining_ms > 0)
                .then_some(contention.lock_delay_remaining_ms);
            expiry_ms.max(lock_delay_ms)
        }
        LockError::StoreUnavailable => Some(STORE_RETRY_MS),
        LockError::StoreFull => Some(FULL_RETRY_MS),
        LockError::QuotaExceeded(QuotaExceeded::Rate { retry_after_ms, .. }) => {
            Some(*retry_after_ms)
        }
        LockError::Overloaded | LockError::TooManyAttempts => Some(OVERLOAD_RETRY_MS),
        LockError::StoreRecovering { retry_after_ms } => Some(*retry_after_ms),
        LockError::Draining => Some(0),
        LockError::StillQueued
        | LockError::LeaseExpired
        | LockError::LeaseReleased
        | LockError::LeaseRevoked { .. }
        | LockError::Cancelled
        | LockError::MaxHold
        | LockError::LeaseNotFound
        | LockError::NotHolder
        | LockError::StaleToken { .. }
        | LockError::RequestIdReused
        | LockError::LimitMismatch { .. }
        | LockError::UpgradeDenied
        | LockError::StaleAttach
        | LockError::TooManyEntries
        | LockError::TooManyLocks
        | LockError::QueueFull
        | LockError::QuotaExceeded(_)
        | LockError::StoreCorrupt
        | LockError::Unsupported(_)
        | LockError::Internal => None,
    }
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

fn invalid(violations: Vec<Violation>) -> Status {
    let count = violations.len();
    let violations: Vec<_> = violations
        .into_iter()
        .take(VIOLATIONS_MAX)
        .map(|violation| Violation {
            field: truncate(&violation.field),
            ..violation
        })
        .collect();
    let displayed: Vec<_> = violations
        .iter()
        .take(VIOLATIONS_IN_MESSAGE)
        .map(|violation| format!("{} {}", violation.field, violation.description))
        .collect();
    let mut message = format!("invalid request: {}", displayed.join("; "));
    if count >= VIOLATIONS_MAX {
        message += "; and more";
    } else if count > displayed.len() {
        message += &format!("; and {} more", count - displayed.len());
    }
    let field_violations = violations
        .into_iter()
        .map(|violation| rpc::bad_request::FieldViolation {
            field: violation.field,
            description: violation.description.to_owned(),
            ..Default::default()
        })
        .collect();
    let details = vec![
        error_info(pb::ErrorReason::InvalidField, vec![]),
        pack_any(
            "google.rpc.BadRequest",
            &rpc::BadRequest { field_violations },
        ),
    ];
    status(Code::InvalidArgument, message, details)
}

fn status(code: Code, message: String, details: Vec<Any>) -> Status {
    let details = rpc::Status {
        code: code.into(),
        message: message.clone(),
        details,
    };
    Status::with_details(code, message, details.encode_to_vec().into())
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
        ("lock".to_owned(), truncate(lock.name())),
    ]
}

fn display_lock(lock: &LockKey) -> String {
    format!("lock {}/{}", lock.namespace(), truncate(lock.name()))
}

fn contention(
    contention: &Contention,
    lock: &LockKey,
    retry_after_ms: Option<u64>,
) -> pb::Contention {
    let shorten = |held| {
        let mut holder = encode::holder(lock, held);
        if let Some(owner) = &mut holder.owner {
            owner.id = truncate(&owner.id);
            owner.reason = truncate(&owner.reason);
            owner.labels.clear();
        }
        if let Some(target) = &mut holder.target {
            target.name = truncate(&target.name);
        }
        holder
    };
    pb::Contention {
        holders: contention.holders.iter().map(shorten).collect(),
        queue_length: i32::try_from(contention.queue_length).unwrap_or(i32::MAX),
        retry_after: retry_after_ms.map(encode::duration),
    }
}

fn truncate(text: &str) -> String {
    text[..text.floor_char_boundary(DETAIL_TEXT_MAX_BYTES)].to_owned()
}

#[cfg(test)]
mod tests;
