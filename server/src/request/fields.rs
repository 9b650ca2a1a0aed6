//! Validation of request fields, and the message for each violation.

use super::{RequestError, VIOLATIONS_MAX, Violation};
use crate::lock::{LeaseId, LockKey, LockName, Namespace};

pub const OWNER_ID_MAX_BYTES: usize = 256;
pub const REASON_MAX_BYTES: usize = 512;

/// The violations found in a request so far.
#[derive(Debug, Default)]
pub struct FieldValidator {
    violations: Vec<Violation>,
}

/// Longest closure of a lock by an operator: 31 days.
const CLOSURE_MAX_MS: u64 = 2_678_400_000;

impl FieldValidator {
    pub fn violation(&mut self, field: impl Into<String>, description: &'static str) {
        self.violations.push(Violation {
            field: field.into(),
            description,
        });
    }

    pub fn violation_count(&self) -> usize {
        self.violations.len()
    }

    /// Returns true if an error has no room for further violations, so that the rest of a list
    /// need not be checked.
    pub fn are_full(&self) -> bool {
        self.violations.len() >= VIOLATIONS_MAX
    }

    /// Returns the decoded value if there are no violations.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, RequestError> {
        match (value, self.violations.is_empty()) {
            (Some(value), true) => Ok(value),
            (_, _) => Err(RequestError::Invalid(self.violations)),
        }
    }

    pub fn lock(&mut self, path: &str, namespace: &str, name: &str) -> Option<LockKey> {
        let field_path = |field: &str| match path {
            "" => field.to_owned(),
            path => format!("{path}.{field}"),
        };
        let namespace = Namespace::parse(namespace)
            .map_err(|problem| self.violation(field_path("namespace"), problem));
        let name =
            LockName::parse(name).map_err(|problem| self.violation(field_path("name"), problem));
        Some(LockKey::new(namespace.ok()?, name.ok()?))
    }

    /// Checks the reason that an operator gives.
    pub fn operator_reason(&mut self, reason: &str) {
        if !(1..=REASON_MAX_BYTES).contains(&reason.len()) {
            self.violation("reason", "must be 1 to 512 bytes: it is shown to callers");
        }
    }

    /// Checks the end of a closure by an operator, in milliseconds since 1970.
    pub fn closure_end(&mut self, field: &str, until_ms: u64, now_ms: u64) {
        if until_ms <= now_ms {
            self.violation(field, "must not be in the past");
        } else if until_ms - now_ms > CLOSURE_MAX_MS {
            self.violation(field, "must be at most 31 days from now");
        }
    }

    pub fn lease_id(&mut self, field: &str, text: &str) -> Option<LeaseId> {
        let lease_id = LeaseId::parse(text);
        if lease_id.is_none() {
            self.violation(field, "must be the id of a lease as it was received");
        }
        lease_id
    }
}
