//! Tests that the longest errors are within the limits of gRPC clients.

use tonic_types::StatusExt as _;

use super::*;
use crate::{
    access::Verb,
    lock::{
        Bound, CONTENTION_HOLDERS_MAX, FencingToken, Holder, LeaseId, LockName, Mode,
        NAME_MAX_BYTES, Namespace, Owner, Recovery, RecoveryCause,
    },
};

const DETAILS_MAX_BYTES: usize = 4_096;
/// Maximum size of all metadata of a response (SETTINGS_MAX_HEADER_LIST_SIZE of
/// grpc-java and gRPC core).
const METADATA_MAX_BYTES: usize = 8_192;
/// Upper bound for the other metadata of a response: status, content type, date, and names.
const OTHER_METADATA_BYTES: usize = 512;
/// Maximum length of an operator's reason.
const REASON_BYTES: usize = 512;
/// The longest explanation in place of the text of an error.
const EXPLANATION: &str = "the lock is held or waited for as an exclusive or shared lock, which has \
                           no limit; set the limit when the lock is idle";
/// A character whose UTF-8 encoding has the longest percent-encoding.
const WIDE: &str = "\u{10ffff}";

fn longest_lock() -> LockKey {
    let namespace = Namespace::parse(&"n".repeat(63)).expect("a legal namespace");
    let name = LockName::parse(&WIDE.repeat(NAME_MAX_BYTES / WIDE.len()));
    LockKey::new(namespace, name.expect("a legal name"))
}

fn longest_contention() -> Contention {
    let holder = Holder {
        lease_id: LeaseId::parse(&"a".repeat(26)).expect("a legal id"),
        owner: Owner {
            id: WIDE.repeat(64),
            reason: WIDE.repeat(128),
            labels: vec![("key".repeat(21), "value".repeat(100))],
            trace: None,
        },
        mode: Mode::Semaphore {
            permits: 1_000,
            limit: 1_000,
        },
        fencing_token: FencingToken::new(FencingToken::MAX).expect("the largest"),
        since_ms: u64::from(u32::MAX) * 1_000,
        remaining_ms: u64::from(u32::MAX),
    };
    Contention {
        holders: vec![holder; CONTENTION_HOLDERS_MAX],
        queue_length: u32::MAX,
        closure: None,
    }
}

fn longest_errors() -> Vec<LockError> {
    let retry_after_ms = u64::from(u32::MAX);
    let newest = FencingToken::MAX;
    vec![
        LockError::Held(longest_contention()),
        LockError::WaitTimeout(longest_contention()),
        LockError::StillQueued,
        LockError::LeaseRevoked {
            reason: WIDE.repeat(REASON_BYTES / WIDE.len()),
        },
        LockError::StaleToken { newest },
        LockError::LimitMismatch { limit: Some(1_000) },
        LockError::TooManyAttempts,
        LockError::QuotaExceeded(QuotaExceeded::Namespace(u32::MAX)),
        LockError::QuotaExceeded(QuotaExceeded::Rate {
            max: u32::MAX,
            retry_after_ms,
        }),
        LockError::QuotaExceeded(QuotaExceeded::Waits(usize::MAX)),
        LockError::QuotaExceeded(QuotaExceeded::Streams(Bound::PerCaller(usize::MAX))),
        LockError::QuotaExceeded(QuotaExceeded::Watches(Bound::PerCaller(usize::MAX))),
        LockError::StoreRecovering {
            retry_after_ms,
            recovery: Recovery {
                cause: Some(RecoveryCause::SlotMoved),
                since_ms: Some(0),
                until_ms: u64::MAX,
            }
            .active_at(u64::MAX - 1),
        },
    ]
}

fn invalid(field: &str, count: usize) -> RequestError {
    let violation = || Violation {
        field: field.to_owned(),
        description: "must be the id of a lease as it was received, which is not what is there now",
    };
    RequestError::Invalid(std::iter::repeat_with(violation).take(count).collect())
}

/// Returns the size of the two texts of a response as they are sent:
/// percent-encoded, and in base64.
fn sent_bytes(status: &Status) -> usize {
    let message = status.message().bytes();
    let message = message.map(|byte| match byte {
        b' '..=b'~' if byte != b'%' => 1,
        _ => 3,
    });
    message.sum::<usize>() + status.details().len().div_ceil(3) * 4
}

#[test]
fn the_longest_refusals_can_be_read() {
    let lock = longest_lock();
    let mut errors = vec![
        RequestError::Denied(Verb::ForceRelease, lock.clone()),
        RequestError::explained(LockError::LeaseNotFound, &lock, EXPLANATION),
    ];
    for error in longest_errors() {
        errors.push(error.clone().for_lock(&lock).into());
        errors.push(error.into());
    }
    for field in ["lease.grants[63].target.namespace", &WIDE.repeat(1_000)] {
        for count in [1, VIOLATIONS_MAX, VIOLATIONS_MAX + 1, 1_000] {
            errors.push(invalid(field, count));
        }
    }
    for status in errors.into_iter().map(Status::from) {
        let (message, details) = (status.message(), status.details().len());
        assert!(details < DETAILS_MAX_BYTES, "{details} bytes: {message}");
        let size = sent_bytes(&status) + OTHER_METADATA_BYTES;
        assert!(size < METADATA_MAX_BYTES, "{size} bytes: {message}");
    }
}

#[test]
fn the_first_violations_are_in_the_message() {
    for (count, end) in [
        (3, "now"),
        (7, "; and 4 more"),
        (8, "; and more"),
        (20, "; and more"),
    ] {
        let status = Status::from(invalid("field", count));
        let bad_request = status.get_details_bad_request().expect("a BadRequest");
        assert_eq!(
            bad_request.field_violations.len(),
            count.min(VIOLATIONS_MAX)
        );
        let message = status.message();
        assert!(message.ends_with(end), "{message}");
    }
}
