//! Validation of protobuf fields, and the message for each violation.

use leasehold_proto::v1::{self as pb, LockMode, LockRef, LockTarget};
use prost::Message as _;
use prost_types::{Duration, Timestamp};

use crate::{
    lock::{FencingToken, Limits, LockKey, Mode, Owner, PERMITS_MAX, RequestId, Target, Ttl},
    request::{FieldValidator, OWNER_ID_MAX_BYTES, REASON_MAX_BYTES},
};

const LABELS_MAX: usize = 16;
const LABEL_KEY_MAX_BYTES: usize = 63;
const OWNER_MAX_BYTES: usize = 1_024;
/// The range of `google.protobuf.Duration`: about 10,000 years.
const SECONDS_MAX: i64 = 315_576_000_000;
const NANOS_MAX: i32 = 999_999_999;

/// Returns a time in milliseconds since 1970; 0 for times before that.
pub(super) fn unix_millis(time: Timestamp) -> u64 {
    match (u64::try_from(time.seconds), u64::try_from(time.nanos)) {
        (Ok(seconds), Ok(nanos)) => seconds
            .saturating_mul(1_000)
            .saturating_add(nanos / 1_000_000),
        _ => 0,
    }
}

impl FieldValidator {
    pub(super) fn required<T, R>(
        &mut self,
        field: &str,
        value: Option<T>,
        decode: impl FnOnce(&mut Self, T) -> Option<R>,
    ) -> Option<R> {
        let Some(value) = value else {
            self.violation(field, "is required");
            return None;
        };
        decode(self, value)
    }

    pub(super) fn required_lock(&mut self, lock: Option<LockRef>) -> Option<LockKey> {
        self.required("lock", lock, |fields, lock| {
            fields.lock("lock", &lock.namespace, &lock.name)
        })
    }

    /// Decodes a lock and the mode in which it is acquired.
    pub(super) fn target(&mut self, path: &str, target: &LockTarget) -> Option<Target> {
        let mode = match LockMode::try_from(target.mode) {
            Ok(LockMode::Unspecified | LockMode::Exclusive) => Some(Mode::Exclusive),
            Ok(LockMode::Shared) => Some(Mode::Shared),
            Ok(LockMode::Semaphore) => {
                let permits = self.permits(path, "permits", target.permits);
                let limit = self.permits(path, "limit", target.limit);
                if limit > 0 && permits > limit {
                    self.violation(format!("{path}.permits"), "must be at most limit");
                }
                let permits = permits.max(1);
                Some(Mode::Semaphore { permits, limit })
            }
            Err(_) => {
                self.violation(format!("{path}.mode"), "must be a known LockMode");
                None
            }
        };
        if matches!(mode, Some(Mode::Exclusive | Mode::Shared)) {
            for (field, value) in [("permits", target.permits), ("limit", target.limit)] {
                if value != 0 {
                    self.violation(format!("{path}.{field}"), "is for mode SEMAPHORE only");
                }
            }
        }
        let lock = self.lock(path, &target.namespace, &target.name)?;
        Some(Target { lock, mode: mode? })
    }

    fn permits(&mut self, path: &str, field: &str, value: i32) -> u32 {
        match u32::try_from(value) {
            Ok(value) if value <= PERMITS_MAX => value,
            _ => {
                self.violation(format!("{path}.{field}"), "must be 0 to 1000");
                0
            }
        }
    }

    /// Returns the duration in milliseconds; `None` if it is unset or invalid.
    pub(super) fn ttl(&mut self, field: &str, ttl: Option<Duration>) -> Option<u64> {
        let nanos = self.nanos(field, ttl?)?;
        if nanos <= 0 {
            self.violation(field, "must be more than 0");
            return None;
        }
        Some(millis(nanos))
    }

    /// Returns the duration in milliseconds; 0 if it is unset or invalid.
    pub(super) fn wait(&mut self, field: &str, wait: Option<Duration>) -> u64 {
        let Some(nanos) = wait.and_then(|wait| self.nanos(field, wait)) else {
            return 0;
        };
        if nanos < 0 {
            self.violation(field, "must not be negative");
        }
        millis(nanos)
    }

    pub(super) fn lock_delay(&mut self, lock_delay_ms: u64, limits: &Limits) {
        if lock_delay_ms > limits.lock_delay_max_ms {
            self.violation(
                "lock_delay",
                "must be at most limits.lock_delay_max of the broker, by default 10 s",
            );
        }
    }

    /// Checks an `at_least` that is set. `ttl` is the validity of the lease.
    pub(super) fn at_least(&mut self, at_least_ms: u64, ttl: Ttl, limits: &Limits) {
        if at_least_ms > limits.at_least_max_ms {
            self.violation(
                "at_least",
                "must be at most limits.at_least_max of the broker, by default 24 h",
            );
        } else if at_least_ms < ttl.as_millis() {
            self.violation("at_least", "must not be shorter than ttl");
        }
    }

    pub(super) fn request_id(&mut self, text: &str) -> Option<RequestId> {
        if text.is_empty() {
            return None;
        }
        let id = RequestId::parse(text);
        if id.is_none() {
            self.violation("request_id", "must be a UUID");
        }
        id
    }

    pub(super) fn attach_number(&mut self, number: i32) -> Option<u32> {
        let number = u32::try_from(number).ok().filter(|number| *number > 0);
        if number.is_none() {
            self.violation("attach_number", "must be at least 1");
        }
        number
    }

    pub(super) fn fencing_token(&mut self, field: &str, token: i64) -> Option<FencingToken> {
        let token = u64::try_from(token).ok().and_then(FencingToken::new);
        if token.is_none() {
            self.violation(field, "must be 1 to 9007199254740991");
        }
        token
    }

    fn nanos(&mut self, field: &str, duration: Duration) -> Option<i128> {
        let Duration { seconds, nanos } = duration;
        let violation_count = self.violation_count();
        if !(-SECONDS_MAX..=SECONDS_MAX).contains(&seconds) {
            self.violation(
                field,
                "seconds must be within -315576000000 and 315576000000",
            );
        }
        if !(-NANOS_MAX..=NANOS_MAX).contains(&nanos) {
            self.violation(field, "nanos must be within -999999999 and 999999999");
        } else if seconds.signum() * i64::from(nanos.signum()) < 0 {
            self.violation(field, "nanos must have the sign of seconds");
        }
        let is_legal = self.violation_count() == violation_count;
        is_legal.then(|| i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
    }
}

/// Decodes an owner. Returns `None` if the owner is invalid.
pub(super) fn owner(fields: &mut FieldValidator, owner: pb::Owner) -> Option<Owner> {
    let violation_count = fields.violation_count();
    match owner.id.len() {
        0 => fields.violation("owner.id", "must not be empty"),
        1..=OWNER_ID_MAX_BYTES => {}
        _ => fields.violation("owner.id", "must be at most 256 bytes"),
    }
    if owner.reason.len() > REASON_MAX_BYTES {
        fields.violation("owner.reason", "must be at most 512 bytes");
    }
    if owner.encoded_len() > OWNER_MAX_BYTES {
        fields.violation("owner", "must be at most 1024 bytes in all");
    }
    let mut labels: Vec<_> = owner.labels.into_iter().collect();
    labels.sort();
    label_keys(fields, &labels);
    let is_legal = fields.violation_count() == violation_count;
    is_legal.then_some(Owner {
        id: owner.id,
        reason: owner.reason,
        labels,
        trace: None,
    })
}

/// Checks the label keys. Beyond the maximum number of labels the keys are not checked, so that the
/// list of violations stays short.
fn label_keys(fields: &mut FieldValidator, labels: &[(String, String)]) {
    if labels.len() > LABELS_MAX {
        fields.violation("owner.labels", "must be at most 16");
        return;
    }
    for (key, _) in labels {
        if !(1..=LABEL_KEY_MAX_BYTES).contains(&key.len()) {
            let truncated = &key[..key.floor_char_boundary(LABEL_KEY_MAX_BYTES)];
            fields.violation(
                format!("owner.labels[{truncated:?}]"),
                "keys must be 1 to 63 bytes",
            );
        }
    }
}

/// Converts to milliseconds, rounded up so that a positive duration stays positive.
fn millis(nanos: i128) -> u64 {
    u64::try_from(nanos.max(0).unsigned_abs().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
