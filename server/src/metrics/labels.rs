//! Label values of all metrics, except namespaces and methods.

use crate::lock::{Bound, LockError, Mode, QuotaExceeded};

pub(super) type Labels = Vec<(&'static str, String)>;
/// Name and value of a label with few values.
pub(super) type Label = (&'static str, &'static str);

pub(super) const MODES: [&str; 3] = ["exclusive", "shared", "semaphore"];

/// Outcomes of an acquire.
pub(super) const OUTCOMES: [&str; 12] = [
    "granted",
    "held",
    "wait_timeout",
    "queue_full",
    "cancelled",
    "quota",
    "invalid",
    "denied",
    "store_unavailable",
    "draining",
    "refused",
    "closed",
];
pub(super) const GRANTED: usize = 0;
pub(super) const CANCELLED: usize = 4;
pub(super) const INVALID: usize = 6;
pub(super) const DENIED: usize = 7;
const REJECTED: usize = 10;
const CLOSED: usize = 11;

pub(super) const RESULTS: [&str; 4] = ["live", "stale", "unknown", "failed"];
pub(super) const QUOTAS: [&str; 12] = [
    "locks_per_caller",
    "locks_per_namespace",
    "locks",
    "acquires_per_second",
    "acquires_at_once",
    "waits_per_caller",
    "watches_per_caller",
    "watches",
    "live_pages_per_caller",
    "live_pages",
    "streams_per_caller",
    "streams",
];

/// Reason why access control rejected a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionReason {
    /// The credential is invalid.
    Credential,
    /// The address has sent too many invalid credentials, so none are checked for a while.
    RateLimited,
    /// The rules do not allow the request.
    Denied,
    /// The request has a gRPC path but is not a gRPC call, for example that of a web page.
    NotGrpc,
    /// The host of the request is not one of the admin listener's names.
    Host,
}

/// Kind of file that is reloaded while the broker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    Configuration,
    /// Tokens, keys and policy.
    Rules,
    Certificate,
}

/// Listener of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    Api,
    Admin,
}

impl RejectionReason {
    pub(super) const ALL: [Self; 5] = [
        Self::Credential,
        Self::RateLimited,
        Self::Denied,
        Self::NotGrpc,
        Self::Host,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Credential => "credential",
            Self::RateLimited => "too_often",
            Self::Denied => "denied",
            Self::NotGrpc => "not_grpc",
            Self::Host => "host",
        }
    }
}

impl File {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Rules => "rules",
            Self::Certificate => "certificate",
        }
    }
}

impl Listener {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Admin => "admin",
        }
    }
}

/// Returns an index into [`MODES`].
pub(super) fn mode(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Semaphore { .. } => 2,
    }
}

/// Returns an index into [`OUTCOMES`].
pub(super) fn outcome(error: &LockError) -> usize {
    match error {
        LockError::Held(contention) if contention.is_closed() => CLOSED,
        LockError::Held(_) => 1,
        LockError::WaitTimeout(_) | LockError::StillQueued => 2,
        LockError::QueueFull => 3,
        LockError::Cancelled => CANCELLED,
        LockError::QuotaExceeded(_) | LockError::Overloaded => 5,
        LockError::StoreUnavailable
        | LockError::StoreFull
        | LockError::StoreCorrupt
        | LockError::StoreRecovering { .. } => 8,
        LockError::Draining => 9,
        LockError::LeaseExpired
        | LockError::LeaseReleased
        | LockError::LeaseRevoked { .. }
        | LockError::MaxHold
        | LockError::LeaseNotFound
        | LockError::NotHolder
        | LockError::StaleToken { .. }
        | LockError::RequestIdReused
        | LockError::LimitMismatch { .. }
        | LockError::UpgradeDenied
        | LockError::StaleAttach
        | LockError::TooManyEntries
        | LockError::TooManyAttempts
        | LockError::TooManyLocks
        | LockError::Unsupported(_)
        | LockError::Internal => REJECTED,
    }
}

/// Returns the label of a fencing token check.
pub(super) fn checked(result: Result<&u64, &LockError>) -> &'static str {
    match result {
        Ok(_) => RESULTS[0],
        Err(LockError::StaleToken { .. }) => RESULTS[1],
        Err(LockError::LeaseNotFound) => RESULTS[2],
        Err(_) => RESULTS[3],
    }
}

/// Returns the label of the exceeded quota, or `None` for other errors.
pub(super) fn quota(error: &LockError) -> Option<&'static str> {
    let LockError::QuotaExceeded(quota) = error else {
        return (*error == LockError::Overloaded).then_some(QUOTAS[4]);
    };
    Some(match quota {
        QuotaExceeded::Caller(_) => QUOTAS[0],
        QuotaExceeded::Namespace(_) => QUOTAS[1],
        QuotaExceeded::Broker(_) => QUOTAS[2],
        QuotaExceeded::Rate { .. } => QUOTAS[3],
        QuotaExceeded::Waits(_) => QUOTAS[5],
        QuotaExceeded::Watches(Bound::PerCaller(_)) => QUOTAS[6],
        QuotaExceeded::Watches(Bound::Total(_)) => QUOTAS[7],
        QuotaExceeded::LivePages(Bound::PerCaller(_)) => QUOTAS[8],
        QuotaExceeded::LivePages(Bound::Total(_)) => QUOTAS[9],
        QuotaExceeded::Streams(Bound::PerCaller(_)) => QUOTAS[10],
        QuotaExceeded::Streams(Bound::Total(_)) => QUOTAS[11],
    })
}
