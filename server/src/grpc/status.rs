//! The one table from a refusal to the wire: code, reason, details and the sentence for people.

use leasehold_proto::v1 as pb;
use prost::Message;
use prost_types::{Any, Duration};
use tonic::{Code, Status};
use tonic_types::{StatusExt as _, pb as rpc};

use super::encode;
use crate::access::{Unknown, Verb};
use crate::lock::{Contention, Failed, LockError, LockKey, Quota};

const DOMAIN: &str = "leasehold.dev";
/// Strings in details are cut to this: gRPC clients refuse trailers of more than 8 KiB, so that details
/// must stay below 4 KiB.
const SHOWN_MAX_BYTES: usize = 128;
/// Violations that an error shows.
pub(super) const VIOLATIONS_MAX: usize = 8;
const VIOLATIONS_IN_MESSAGE: usize = 3;
const STORE_RETRY_MS: u64 = 1_000;
/// Memory comes back when others give their locks up, or somebody makes room.
const OVERLOAD_RETRY_MS: u64 = 500;
const FULL_RETRY_MS: u64 = 5_000;

/// One field of a request that is not legal.
pub(super) struct Violation {
    /// The path of the field.
    pub(super) field: String,
    /// What would be legal.
    pub(super) description: &'static str,
}

/// Why a request did not get to the broker.
pub(super) enum Refused {
    /// These fields are wrong.
    Invalid(Vec<Violation>),
    /// The caller may not do that to this lock.
    Denied(Verb, LockKey),
    /// It cannot be done, whatever the broker would say.
    Failed(Failed),
}

impl From<Failed> for Status {
    fn from(failed: Failed) -> Self {
        of(&failed.error, &failed.lock)
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Invalid(violations) => invalid(violations),
            Refused::Denied(verb, lock) => denied(verb, &lock),
            Refused::Failed(failed) => failed.into(),
        }
    }
}

/// Nobody knows who calls.
pub(super) fn unknown(why: Unknown) -> Status {
    if let Unknown::TooOften(early) = why {
        let message =
            "too many calls without a good credential come from this address; show one, or wait";
        let early_ms = u64::try_from(early.as_millis()).unwrap_or(u64::MAX);
        let details = vec![
            info(pb::ErrorReason::QuotaExceeded, Vec::new()),
            retry(early_ms + 1),
        ];
        return status(Code::ResourceExhausted, message.to_owned(), details);
    }
    let message = match why {
        Unknown::Unnamed(why) => format!(
            "the client certificate names no caller: {why}; it must have exactly one URI, a SPIFFE ID \
             such as spiffe://example.org/worker"
        ),
        Unknown::Worthless | Unknown::TooOften(_) => {
            "no credential that is good now; show a client \
            certificate, or a bearer token in the metadata `authorization`"
                .to_owned()
        }
    };
    let details = vec![info(pb::ErrorReason::Unauthenticated, Vec::new())];
    status(Code::Unauthenticated, message, details)
}

/// What the policy allows for no lock.
pub(super) fn denied_everywhere(verb: Verb) -> Status {
    let message = format!("the policy does not allow you to {verb} any lock");
    let details = vec![info(pb::ErrorReason::PermissionDenied, Vec::new())];
    status(Code::PermissionDenied, message, details)
}

/// What the policy does not allow.
fn denied(verb: Verb, lock: &LockKey) -> Status {
    let message = format!(
        "{}: the policy does not allow you to {verb} it",
        shown(lock)
    );
    let details = vec![info(pb::ErrorReason::PermissionDenied, named(lock))];
    status(Code::PermissionDenied, message, details)
}

/// The status of a call about `lock` that failed.
pub(super) fn of(error: &LockError, lock: &LockKey) -> Status {
    let (code, reason) = kind(error);
    let retry_after_ms = retry_after_ms(error);
    let mut metadata = named(lock);
    if let LockError::StaleToken { newest } = error {
        metadata.push(("newest_fencing_token".to_owned(), newest.to_string()));
    }
    let mut details = vec![info(reason, metadata)];
    details.extend(retry_after_ms.map(retry));
    if let LockError::Held(in_the_way) | LockError::WaitTimeout(in_the_way) = error {
        let contention = contention(in_the_way, lock, retry_after_ms);
        details.push(any("leasehold.v1.Contention", &contention));
    }
    let message = format!("{}: {error}; {}", shown(lock), next(error));
    if let LockError::QuotaExceeded(quota) = error {
        details.push(quota_failure(quota));
    }
    status(code, message, details)
}

/// The status of a call about no one lock; `missing` is the part of the store that does not answer.
pub(super) fn of_all(error: &LockError, missing: Option<&str>) -> Status {
    let (code, reason) = kind(error);
    let mut details = vec![info(reason, vec![])];
    details.extend(retry_after_ms(error).map(retry));
    let missing = missing.map_or_else(String::new, |server| format!(" ({server} does not answer)"));
    if let LockError::QuotaExceeded(quota) = error {
        details.push(quota_failure(quota));
    }
    // These have no request_id.
    let known = [
        (LockError::StoreUnavailable, "repeat the call"),
        (LockError::Draining, "call another replica"),
    ];
    let known = known.iter().find(|(known, _)| known == error);
    let next = known.map_or_else(|| next(error), |(_, next)| next);
    status(code, format!("{error}{missing}; {next}"), details)
}

/// A status that is about no lock.
pub(super) fn plain(code: Code, reason: pb::ErrorReason, message: &str) -> Status {
    status(code, message.to_owned(), vec![info(reason, vec![])])
}

/// The status of a call that found no place for its answer in time.
pub(super) fn no_place() -> Status {
    let message = "too many lists, or looks at a lock, are made or not read yet; read the answers, and \
        repeat the call a moment later";
    let details = vec![
        info(pb::ErrorReason::Overloaded, Vec::new()),
        retry(OVERLOAD_RETRY_MS),
    ];
    status(Code::Unavailable, message.to_owned(), details)
}

/// The same as a message of a stream.
pub(super) fn refused(call_id: i64, status: &Status) -> pb::Refused {
    let details = rpc::Status::decode(status.details())
        .unwrap_or_default()
        .details;
    let known = status.get_error_details();
    let reason = known
        .error_info()
        .and_then(|info| pb::ErrorReason::from_str_name(&format!("ERROR_REASON_{}", info.reason)));
    let retry_after = known.retry_info().and_then(|retry| retry.retry_delay);
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

/// The status of a look at a lock that nobody holds or waits for.
pub(super) fn idle_lock(lock: &LockKey) -> Status {
    let details = vec![info(pb::ErrorReason::LeaseNotFound, named(lock))];
    let message = format!("{}: nobody holds this lock or waits for it", shown(lock));
    status(Code::NotFound, message, details)
}

/// The status of a forced release that had nothing to take, or could not.
pub(super) fn not_taken(error: &LockError, lock: &LockKey) -> Status {
    let known = [
        (
            LockError::LeaseExpired,
            "the lease has expired: nothing is left to take away",
        ),
        (
            LockError::LeaseReleased,
            "the lease was given back: nothing is left to take away",
        ),
        (
            LockError::LeaseNotFound,
            "the lease does not hold this lock; look who does",
        ),
    ];
    let Some((_, why)) = known.iter().find(|(known, _)| known == error) else {
        return of(error, lock);
    };
    let (code, reason) = kind(error);
    let message = format!("{}: {why}", shown(lock));
    status(code, message, vec![info(reason, named(lock))])
}

/// Returns the status of a `SetLockLimit` that changed nothing.
pub(super) fn limit_not_set(error: &LockError, lock: &LockKey) -> Status {
    if !matches!(error, LockError::LimitMismatch { .. }) {
        return of(error, lock);
    }
    let (code, reason) = kind(error);
    let message = format!(
        "{}: the lock is held or waited for as an exclusive or shared lock, which has no limit; \
         set the limit when the lock is idle",
        shown(lock)
    );
    status(code, message, vec![info(reason, named(lock))])
}

/// The table.
fn kind(error: &LockError) -> (Code, pb::ErrorReason) {
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

/// When to try again, where that is worth while.
fn retry_after_ms(error: &LockError) -> Option<u64> {
    match error {
        LockError::Held(contention) | LockError::WaitTimeout(contention) => {
            let holders = contention.holders.iter();
            let first_ms = holders.map(|holder| holder.remaining_ms).min();
            let closed_ms = (contention.closed_ms > 0).then_some(contention.closed_ms);
            first_ms.max(closed_ms)
        }
        LockError::StoreUnavailable => Some(STORE_RETRY_MS),
        LockError::StoreFull => Some(FULL_RETRY_MS),
        LockError::QuotaExceeded(Quota::Rate { retry_after_ms, .. }) => Some(*retry_after_ms),
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

/// What the caller should do now.
fn next(error: &LockError) -> &'static str {
    match error {
        LockError::Held(_) => "try again later, or set wait_timeout to wait in line",
        LockError::WaitTimeout(_) => "the call has left the queue: acquire again to join its end",
        LockError::StillQueued => "repeat the call with the same request_id",
        LockError::LeaseExpired
        | LockError::LeaseReleased
        | LockError::LeaseRevoked { .. }
        | LockError::MaxHold => "stop the work it guarded, and acquire with a new request_id",
        LockError::LeaseNotFound => "treat it as lost, and acquire again",
        LockError::NotHolder => "hand the lease back exactly as it was received",
        LockError::StaleToken { .. } => "refuse the work that came with it",
        LockError::RequestIdReused => "use a fresh UUID for every acquire",
        LockError::LimitMismatch { .. } => {
            "ask for the limit in use (limit 0 takes it) and for no more permits than that"
        }
        LockError::UpgradeDenied => {
            "release the lease, and acquire as strongly as the work will ever need"
        }
        LockError::StaleAttach => "change it on the stream that holds it, or attach it anew",
        LockError::TooManyEntries => "release entries that are over",
        LockError::TooManyAttempts => {
            "wait for the answer to one of them, or repeat the call with the same request_id a moment later"
        }
        LockError::TooManyLocks => "release locks of it, or begin another lease",
        LockError::Cancelled => "acquire again to join the end of the line",
        LockError::QuotaExceeded(Quota::Rate { .. }) => "repeat the call later",
        LockError::QuotaExceeded(Quota::Waits(_)) => {
            "acquire the lock again when fewer of these calls wait"
        }
        LockError::QuotaExceeded(Quota::Streams(_)) => {
            "use one stream for all leases of a process, and end others"
        }
        LockError::QuotaExceeded(Quota::Watches(_)) => "end a watch, or use one for several locks",
        LockError::QuotaExceeded(Quota::LivePages(_)) => "close a page",
        LockError::QuotaExceeded(_) => "release locks, or have the operator raise the quota",
        LockError::Overloaded => "repeat the call with the same request_id a moment later",
        LockError::QueueFull => "try again when fewer wait",
        LockError::Unsupported(_) => "ask for it where the store is one Redis, or do without it",
        LockError::StoreUnavailable => "repeat the call with the same request_id",
        LockError::StoreFull => {
            "repeat the call later; leases are renewed and released all the same"
        }
        LockError::StoreRecovering { .. } => "repeat the call with the same request_id later",
        LockError::Draining => "repeat the call with the same request_id on another replica",
        LockError::StoreCorrupt | LockError::Internal => "the log of the broker has the details",
    }
}

fn invalid(violations: Vec<Violation>) -> Status {
    let count = violations.len();
    let violations: Vec<_> = violations
        .into_iter()
        .take(VIOLATIONS_MAX)
        .map(|violation| Violation {
            field: cut(&violation.field),
            ..violation
        })
        .collect();
    let shown: Vec<_> = violations
        .iter()
        .take(VIOLATIONS_IN_MESSAGE)
        .map(|violation| format!("{} {}", violation.field, violation.description))
        .collect();
    let mut message = format!("invalid request: {}", shown.join("; "));
    if count >= VIOLATIONS_MAX {
        message += "; and more";
    } else if count > shown.len() {
        message += &format!("; and {} more", count - shown.len());
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
        info(pb::ErrorReason::InvalidField, vec![]),
        any(
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

fn info(reason: pb::ErrorReason, metadata: Vec<(String, String)>) -> Any {
    let reason = reason.as_str_name();
    any(
        "google.rpc.ErrorInfo",
        &rpc::ErrorInfo {
            reason: reason.trim_start_matches("ERROR_REASON_").to_owned(),
            domain: DOMAIN.to_owned(),
            metadata: metadata.into_iter().collect(),
        },
    )
}

fn any(name: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: message.encode_to_vec(),
    }
}

fn quota_failure(quota: &Quota) -> Any {
    let violation = rpc::quota_failure::Violation {
        description: quota.to_string(),
        ..Default::default()
    };
    let violations = vec![violation];
    any("google.rpc.QuotaFailure", &rpc::QuotaFailure { violations })
}

fn retry(after_ms: u64) -> Any {
    let retry_delay = Some(encode::duration(after_ms));
    any("google.rpc.RetryInfo", &rpc::RetryInfo { retry_delay })
}

fn named(lock: &LockKey) -> Vec<(String, String)> {
    vec![
        ("namespace".to_owned(), lock.namespace().to_owned()),
        ("lock".to_owned(), cut(lock.name())),
    ]
}

fn shown(lock: &LockKey) -> String {
    format!("lock {}/{}", lock.namespace(), cut(lock.name()))
}

fn contention(
    in_the_way: &Contention,
    lock: &LockKey,
    retry_after_ms: Option<u64>,
) -> pb::Contention {
    let shorten = |held| {
        let mut holder = encode::holder(lock, held);
        if let Some(owner) = &mut holder.owner {
            owner.id = cut(&owner.id);
            owner.reason = cut(&owner.reason);
            owner.labels.clear();
        }
        if let Some(target) = &mut holder.target {
            target.name = cut(&target.name);
        }
        holder
    };
    pb::Contention {
        holders: in_the_way.holders.iter().map(shorten).collect(),
        queue_length: i32::try_from(in_the_way.queue_length).unwrap_or(i32::MAX),
        retry_after: retry_after_ms.map(encode::duration),
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(SHOWN_MAX_BYTES)].to_owned()
}

#[cfg(test)]
mod tests;
