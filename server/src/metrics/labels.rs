//! The values that labels may have: all of them are here, but for namespaces and methods.

use crate::{
    history::EndReason,
    lock::{Bound, LockError, Mode, Quota},
};

/// The labels of one series.
pub(super) type Labels = Vec<(&'static str, String)>;

pub(super) const MODES: [&str; 3] = ["exclusive", "shared", "semaphore"];

/// What became of an acquire.
pub(super) const OUTCOMES: [&str; 11] = [
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
];
pub(super) const GRANTED: usize = 0;
pub(super) const CANCELLED: usize = 4;
pub(super) const INVALID: usize = 6;
pub(super) const DENIED: usize = 7;
const REFUSED: usize = 10;

pub(super) const REASONS: [&str; 6] = [
    "released",
    "expired",
    "revoked",
    "store_lost",
    "max_hold",
    "credential_expired",
];

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

/// Why a call was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// What its caller showed is worth nothing.
    Credential,
    /// So much of that came from its address that nothing more is looked at for a while.
    TooOften,
    /// The rules do not allow it.
    Denied,
    /// A request to a path of gRPC that is no call of gRPC, such as one of a web page.
    NotGrpc,
    /// It calls the admin listener by a name that is not among the listener's own.
    Host,
}

/// What is read again while the broker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    /// The configuration.
    Configuration,
    /// Tokens, keys and policy.
    Rules,
    /// The certificate.
    Certificate,
}

/// Where a connection came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// That of the API.
    Api,
    /// That of operators.
    Admin,
}

impl Refusal {
    pub(super) const ALL: [Self; 5] = [
        Self::Credential,
        Self::TooOften,
        Self::Denied,
        Self::NotGrpc,
        Self::Host,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Credential => "credential",
            Self::TooOften => "too_often",
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

/// Of [`MODES`].
pub(super) fn mode(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Semaphore { .. } => 2,
    }
}

/// Of [`OUTCOMES`].
pub(super) fn outcome(error: &LockError) -> usize {
    match error {
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
        | LockError::Internal => REFUSED,
    }
}

/// Of [`REASONS`].
pub(super) fn reason(reason: EndReason) -> usize {
    match reason {
        EndReason::Released => 0,
        EndReason::Expired => 1,
        EndReason::Revoked => 2,
        EndReason::StoreLost => 3,
        EndReason::MaxHold => 4,
        EndReason::CredentialExpired => 5,
    }
}

/// What a look at a fencing token said.
pub(super) fn checked(result: Result<&u64, &LockError>) -> &'static str {
    match result {
        Ok(_) => RESULTS[0],
        Err(LockError::StaleToken { .. }) => RESULTS[1],
        Err(LockError::LeaseNotFound) => RESULTS[2],
        Err(_) => RESULTS[3],
    }
}

/// Which quota is used up, if that is why.
pub(super) fn quota(error: &LockError) -> Option<&'static str> {
    let LockError::QuotaExceeded(quota) = error else {
        return (*error == LockError::Overloaded).then_some(QUOTAS[4]);
    };
    Some(match quota {
        Quota::Caller(_) => QUOTAS[0],
        Quota::Namespace(_) => QUOTAS[1],
        Quota::Broker(_) => QUOTAS[2],
        Quota::Rate { .. } => QUOTAS[3],
        Quota::Waits(_) => QUOTAS[5],
        Quota::Watches(Bound::PerCaller(_)) => QUOTAS[6],
        Quota::Watches(Bound::Total(_)) => QUOTAS[7],
        Quota::LivePages(Bound::PerCaller(_)) => QUOTAS[8],
        Quota::LivePages(Bound::Total(_)) => QUOTAS[9],
        Quota::Streams(Bound::PerCaller(_)) => QUOTAS[10],
        Quota::Streams(Bound::Total(_)) => QUOTAS[11],
    })
}
