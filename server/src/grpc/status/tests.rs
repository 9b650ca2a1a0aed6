//! The longest refusals stay within what gRPC clients read.

use super::*;
use crate::lock::{
    Bound, FencingToken, HELD_SHOWN, Holder, LeaseId, LockName, Mode, NAME_MAX_BYTES, Namespace,
    Owner,
};

const DETAILS_MAX_BYTES: usize = 4_096;
/// Of all metadata of an answer (SETTINGS_MAX_HEADER_LIST_SIZE of grpc-java and gRPC core).
const METADATA_MAX_BYTES: usize = 8_192;
/// More than the other metadata of an answer: status, content type, date, and names.
const OTHER_METADATA_BYTES: usize = 512;
/// The longest reason of an operator.
const REASON_BYTES: usize = 512;
/// Its UTF-8 becomes the longest text when it is percent-encoded.
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
        holders: vec![holder; HELD_SHOWN],
        queue_length: u32::MAX,
        closed_ms: u64::from(u32::MAX),
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
        LockError::LimitMismatch { limit: 1_000 },
        LockError::TooManyAttempts,
        LockError::QuotaExceeded(Quota::Namespace(u32::MAX)),
        LockError::QuotaExceeded(Quota::Rate {
            most: u32::MAX,
            retry_after_ms,
        }),
        LockError::QuotaExceeded(Quota::Waits(usize::MAX)),
        LockError::QuotaExceeded(Quota::Streams(Bound::PerCaller(usize::MAX))),
        LockError::QuotaExceeded(Quota::Watches(Bound::PerCaller(usize::MAX))),
        LockError::StoreRecovering { retry_after_ms },
    ]
}

fn violations(field: &str, count: usize) -> Vec<Violation> {
    let violation = || Violation {
        field: field.to_owned(),
        description: "must be the id of a lease as it was received, which is not what is there now",
    };
    std::iter::repeat_with(violation).take(count).collect()
}

/// Bytes of the two texts of an answer as they are sent: percent-encoded, and in base64.
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
    let errors = longest_errors();
    let mut refusals: Vec<_> = errors.iter().map(|error| of(error, &lock)).collect();
    refusals.extend(errors.iter().map(|error| not_taken(error, &lock)));
    refusals.extend(errors.iter().map(|error| limit_not_set(error, &lock)));
    refusals.extend(errors.iter().map(|error| of_all(error, None)));
    refusals.push(denied(Verb::ForceRelease, &lock));
    refusals.push(idle_lock(&lock));
    for field in ["lease.grants[63].target.namespace", &WIDE.repeat(1_000)] {
        for count in [1, VIOLATIONS_MAX, VIOLATIONS_MAX + 1, 1_000] {
            refusals.push(invalid(violations(field, count)));
        }
    }
    for status in refusals {
        let (message, details) = (status.message(), status.details().len());
        assert!(details < DETAILS_MAX_BYTES, "{details} bytes: {message}");
        let sent = sent_bytes(&status) + OTHER_METADATA_BYTES;
        assert!(sent < METADATA_MAX_BYTES, "{sent} bytes: {message}");
    }
}

#[test]
fn the_first_violations_are_shown() {
    for (count, end) in [
        (3, "now"),
        (7, "; and 4 more"),
        (8, "; and more"),
        (20, "; and more"),
    ] {
        let status = invalid(violations("field", count));
        let shown = status.get_details_bad_request().expect("a BadRequest");
        assert_eq!(shown.field_violations.len(), count.min(VIOLATIONS_MAX));
        let message = status.message();
        assert!(message.ends_with(end), "{message}");
    }
}
