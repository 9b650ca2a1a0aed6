//! Why a call did not get what it asked for: one variant a decision that the caller can make.

use thiserror::Error;

use super::{ATTEMPTS_MAX, Contention, ENTRIES_MAX, LOCKS_MAX, LockKey, WHOLE};

/// The outcome of a call that failed. `grpc::status` is the one table from here to the wire.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LockError {
    /// Somebody else holds the lock and the caller would not wait.
    #[error("the lock is held by someone else")]
    Held(Contention),
    /// The wait is over; the caller is out of the queue for certain.
    #[error("the lock was not granted within wait_timeout")]
    WaitTimeout(Contention),
    /// The wait of this attempt is over, but another attempt of the call is in the queue or has been
    /// granted the lock.
    #[error("the wait timed out; another attempt of this call is queued or has acquired the lock")]
    StillQueued,
    /// The lease is over: it expired, or it was given back and its Acquire came again.
    #[error("the lease is over")]
    LeaseExpired,
    /// The lease was given back.
    #[error("the lease has been given back")]
    LeaseReleased,
    /// An operator has taken the lease away.
    #[error("an operator has revoked the lease: {reason}")]
    LeaseRevoked {
        /// What the operator says.
        reason: String,
    },
    /// The lease has been held for its `max_hold`.
    #[error("the lease has been held for all of its max_hold")]
    MaxHold,
    /// Nothing is known of such a lease on the lock that it names.
    #[error("no such lease, now or recently")]
    LeaseNotFound,
    /// The lease token does not belong to the lease id.
    #[error("lease_token does not belong to lease_id")]
    NotHolder,
    /// The fencing token is not that of a live lease.
    #[error("the fencing token is not that of a live lease")]
    StaleToken {
        /// The newest token given for the lock.
        newest: u64,
    },
    /// The request id came back with other arguments.
    #[error("request_id was used with other arguments for this lock")]
    RequestIdReused,
    /// The lock is in use with another limit or mode, or the call wants more than all of it.
    #[error("{}", limit_mismatch(*limit))]
    LimitMismatch {
        /// The limit in use, [`WHOLE`] for shared and exclusive locks; 0 if the lock is not in use.
        limit: u32,
    },
    /// A lease that holds the lock asked for more of it than it holds.
    #[error("a lease cannot strengthen its hold on a lock")]
    UpgradeDenied,
    /// The lease is on a stream, and is changed only there.
    #[error("the lease is on another stream")]
    StaleAttach,
    /// The lease has entered the lock as often as it may.
    #[error("the lease has entered the lock {ENTRIES_MAX} times")]
    TooManyEntries,
    /// The call already waits in the maximum number of attempts.
    #[error("the call already waits in {ATTEMPTS_MAX} attempts, the maximum")]
    TooManyAttempts,
    /// The lease has as many locks as it may.
    #[error("the lease has {LOCKS_MAX} locks already")]
    TooManyLocks,
    /// The lock's queue is full.
    #[error("the queue of the lock is full")]
    QueueFull,
    /// A quota is used up.
    #[error("{0}")]
    QuotaExceeded(Quota),
    /// Too many acquires are under way.
    #[error("the store has not answered too many acquires")]
    Overloaded,
    /// This deployment's store cannot do that; why, in a sentence.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The store cannot be reached, did not answer, or refuses for now: the outcome may be unknown.
    #[error("the store cannot be used now")]
    StoreUnavailable,
    /// The store has no memory for another holder or waiter.
    #[error("the store is out of memory")]
    StoreFull,
    /// What the store holds of the lock is not what brokers write there.
    #[error("the store's record of the lock cannot be read")]
    StoreCorrupt,
    /// The store lost data; grants resume when every lease that it may have forgotten is over.
    #[error("the store is recovering from a loss of data")]
    StoreRecovering {
        /// When to ask again.
        retry_after_ms: u64,
    },
    /// The client gave up the wait.
    #[error("the wait was given up")]
    Cancelled,
    /// This broker is going away.
    #[error("this broker is shutting down")]
    Draining,
    /// A fault of the broker; its log has the details.
    #[error("internal error")]
    Internal,
}

impl LockError {
    /// The call may have got something all the same, or is to go on later or elsewhere.
    pub fn is_open(&self) -> bool {
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

/// A quota that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Quota {
    /// Of the caller's locks.
    #[error(
        "the caller has {0} locks, or waits for them, at this broker (quotas.locks_per_caller)"
    )]
    Caller(u32),
    /// Of the namespace's locks.
    #[error(
        "the namespace has {0} locks, or waits for them, at this broker (quotas.locks_per_namespace)"
    )]
    Namespace(u32),
    /// Of all locks.
    #[error("this broker has {0} locks, or waits for them (quotas.locks)")]
    Broker(u32),
    /// Of the caller's acquires.
    #[error(
        "the caller acquires more often than {most} times a second (quotas.acquires_per_second)"
    )]
    Rate {
        /// A second.
        most: u32,
        /// When there may be one more.
        retry_after_ms: u64,
    },
    /// Of the caller's calls in one queue.
    #[error("{_0} calls of the caller wait for the lock at this broker, the maximum")]
    Waits(usize),
    /// Of lease streams.
    #[error("{}", bound_reached("lease streams", *_0))]
    Streams(Bound),
    /// Of watches.
    #[error("{}", bound_reached("watches", *_0))]
    Watches(Bound),
    /// Of pages that are told of changes.
    #[error("{}", bound_reached("live pages", *_0))]
    LivePages(Bound),
}

/// A bound of something that callers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Of each caller.
    PerCaller(usize),
    /// Of all callers together.
    Total(usize),
}

/// Which of its locks a call failed at, and why.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{lock}: {error}")]
pub struct Failed {
    /// The lock.
    pub lock: LockKey,
    /// Why.
    pub error: LockError,
}

impl LockError {
    /// The failure of a call at this lock.
    #[must_use]
    pub fn at(self, lock: &LockKey) -> Failed {
        let lock = lock.clone();
        Failed { lock, error: self }
    }
}

fn bound_reached(what: &str, bound: Bound) -> String {
    match bound {
        Bound::PerCaller(most) => {
            format!("the caller has {most} {what} at this broker, the maximum")
        }
        Bound::Total(most) => format!("this broker has {most} {what}, the maximum"),
    }
}

fn limit_mismatch(limit: u32) -> String {
    match limit {
        0 => "no limit is in use on this semaphore".to_owned(),
        WHOLE => "the lock is in use as a shared or exclusive lock".to_owned(),
        limit => format!("the lock is in use as a semaphore of {limit} permits"),
    }
}
