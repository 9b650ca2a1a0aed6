//! Errors of calls: one variant for each decision that a caller can make.

use thiserror::Error;

use super::{
    ATTEMPTS_MAX, ActiveRecovery, Contention, ENTRIES_MAX, EXCLUSIVE_WEIGHT, LOCKS_MAX, LockKey,
};

/// Error of a failed call. `grpc::status` is the only mapping to gRPC statuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LockError {
    /// Another caller holds the lock, or it is closed, and the call does not wait.
    #[error("the lock is {}", contention_text(_0))]
    Held(Contention),
    /// The wait timed out. The request has left the queue for certain.
    #[error("the lock was not granted within wait_timeout{}", closed_suffix(_0))]
    WaitTimeout(Contention),
    /// The wait of this attempt timed out, but another attempt of the call is queued or has
    /// acquired the lock.
    #[error("the wait timed out; another attempt of this call is queued or has acquired the lock")]
    StillQueued,
    /// The lease expired, or it was released and its Acquire call was repeated.
    #[error("the lease has expired or was released")]
    LeaseExpired,
    #[error("the lease has been released")]
    LeaseReleased,
    /// An operator revoked the lease.
    #[error("an operator has revoked the lease: {reason}")]
    LeaseRevoked {
        /// Reason given by the operator.
        reason: String,
    },
    /// The lease was held for its whole `max_hold`.
    #[error("the lease has reached its max_hold")]
    MaxHold,
    /// The lock has no record of the lease, current or recent.
    #[error("unknown lease: it ended too long ago or never existed")]
    LeaseNotFound,
    #[error("lease_token does not belong to lease_id")]
    NotHolder,
    /// The fencing token does not belong to a live lease.
    #[error("the fencing token does not belong to a live lease")]
    StaleToken {
        /// Newest fencing token of the lock.
        newest: u64,
    },
    /// The request id was repeated with other arguments.
    #[error("request_id was used with other arguments for this lock")]
    RequestIdReused,
    /// The lock is in use with another limit or mode, or the call needs more than the limit.
    #[error("{}", limit_mismatch(*limit))]
    LimitMismatch {
        /// Limit in use, [`EXCLUSIVE_WEIGHT`] for shared and exclusive locks. `None` if the lock is
        /// not in use.
        limit: Option<u32>,
    },
    /// The lease already holds the lock in a weaker mode than the call requests.
    #[error("the lease holds the lock in a weaker mode and cannot upgrade it")]
    UpgradeDenied,
    /// The lease is attached to a stream, and can only be changed on that stream.
    #[error("the lease is attached to another stream")]
    StaleAttach,
    /// The lease has the maximum number of entries in the lock.
    #[error("the lease has {ENTRIES_MAX} entries in the lock, the maximum")]
    TooManyEntries,
    /// The call already waits in the maximum number of attempts.
    #[error("the call already waits in {ATTEMPTS_MAX} attempts, the maximum")]
    TooManyAttempts,
    /// The lease has the maximum number of locks.
    #[error("the lease has {LOCKS_MAX} locks, the maximum")]
    TooManyLocks,
    #[error("the queue of the lock is full")]
    QueueFull,
    /// A quota is exhausted.
    #[error("{0}")]
    QuotaExceeded(QuotaExceeded),
    /// Too many acquires are waiting for the store.
    #[error("too many acquires are waiting for the store")]
    Overloaded,
    /// The store of this deployment does not support the operation. Contains the reason as a
    /// sentence.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The store is unreachable, did not answer, or rejects commands temporarily. The outcome may
    /// be unknown.
    #[error("the store is unavailable")]
    StoreUnavailable,
    /// The store has no memory for another holder or waiter.
    #[error("the store is out of memory")]
    StoreFull,
    /// The store's record of the lock has contents that brokers do not write.
    #[error("the store's record of the lock cannot be read")]
    StoreCorrupt,
    /// The store lost data. Grants resume after every lease that may have been lost has expired.
    #[error("{}", recovery_text(*recovery))]
    StoreRecovering {
        /// Time after which to retry.
        retry_after_ms: u64,
        /// The recovery, if it is known.
        recovery: Option<ActiveRecovery>,
    },
    /// The client cancelled the wait.
    #[error("the wait was cancelled")]
    Cancelled,
    #[error("this broker is shutting down")]
    Draining,
    /// Internal error of the broker. The broker's log has the details.
    #[error("internal error")]
    Internal,
}

impl LockError {
    /// Returns true if the outcome is unknown or a retry can succeed: the call may have had an
    /// effect, or may be continued later or at another broker.
    pub fn is_indeterminate(&self) -> bool {
        matches!(
            self,
            Self::StoreUnavailable
                | Self::StoreRecovering { .. }
                | Self::StoreCorrupt
                | Self::Draining
                | Self::Internal
        )
    }
}

/// An exhausted quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum QuotaExceeded {
    /// Number of locks of the caller.
    #[error(
        "the caller holds or waits for {0} locks at this broker, the maximum \
         (quotas.locks_per_caller)"
    )]
    Caller(u32),
    /// Number of locks in the namespace.
    #[error(
        "{0} locks of the namespace are held or waited for at this broker, the maximum \
         (quotas.locks_per_namespace)"
    )]
    Namespace(u32),
    /// Number of all locks.
    #[error("{0} locks are held or waited for at this broker, the maximum (quotas.locks)")]
    Broker(u32),
    /// Rate of the caller's acquires.
    #[error(
        "the caller exceeds the rate limit of {max} acquires a second (quotas.acquires_per_second)"
    )]
    Rate {
        /// Maximum per second.
        max: u32,
        /// Time until the next acquire is admitted.
        retry_after_ms: u64,
    },
    /// Number of waiting calls of the caller in one queue.
    #[error("{_0} calls of the caller wait for the lock at this broker, the maximum")]
    Waits(usize),
    /// Number of lease streams.
    #[error("{}", bound_reached("lease streams", *_0))]
    Streams(Bound),
    /// Number of watches.
    #[error("{}", bound_reached("watches", *_0))]
    Watches(Bound),
    /// Number of console pages with live updates.
    #[error("{}", bound_reached("live pages", *_0))]
    LivePages(Bound),
}

/// Limit of a resource that callers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Limit for each caller.
    PerCaller(usize),
    /// Limit for all callers together.
    Total(usize),
}

/// An error with the lock at which the call failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{lock}: {error}")]
pub struct LockFailure {
    pub lock: LockKey,
    pub error: LockError,
}

impl LockError {
    /// Returns the error with the lock at which the call failed.
    #[must_use]
    pub fn for_lock(self, lock: &LockKey) -> LockFailure {
        let lock = lock.clone();
        LockFailure { lock, error: self }
    }
}

fn bound_reached(resource: &str, bound: Bound) -> String {
    match bound {
        Bound::PerCaller(max) => {
            format!("the caller has {max} {resource} at this broker, the maximum")
        }
        Bound::Total(max) => format!("this broker has {max} {resource}, the maximum"),
    }
}

fn recovery_text(recovery: Option<ActiveRecovery>) -> String {
    recovery.map_or_else(
        || "the store is recovering from a loss of data, or does not grant so long a lock_delay yet".to_owned(),
        |recovery| recovery.sentence("the store"),
    )
}

fn contention_text(contention: &Contention) -> String {
    let closure = contention.closure.as_ref();
    closure.map_or_else(
        || "held by another lease".to_owned(),
        |closure| closure.to_string(),
    )
}

fn closed_suffix(contention: &Contention) -> String {
    let closure = contention.closure.as_ref();
    closure.map_or_else(String::new, |closure| format!("; it is {closure}"))
}

fn limit_mismatch(limit: Option<u32>) -> String {
    match limit {
        None => "the semaphore is idle and has no limit".to_owned(),
        Some(EXCLUSIVE_WEIGHT) => "the lock is in use as a shared or exclusive lock".to_owned(),
        Some(limit) => format!("the lock is in use as a semaphore of {limit} permits"),
    }
}
