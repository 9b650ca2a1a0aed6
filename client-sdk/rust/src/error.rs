//! Errors of the client, with one variant for each reason that a caller may handle differently.

mod convert;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

pub(crate) use self::convert::{
    closure, duration, from_refused, holder, is_retryable, lost_reason, recovery, recovery_of,
    refused_from_status,
};

/// Reason for which a lock was not acquired.
///
/// Messages are meant for people; branch on the variants. Variants may be added.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another caller holds the lock or the lock is closed, and the call did not wait.
    #[error("{0}")]
    Held(Contention),
    /// The wait timed out. The call has left the queue, unless another attempt of it is still
    /// queued or has been granted the lock (`STILL_QUEUED`).
    #[error("{0}")]
    WaitTimeout(Contention),
    /// The lease given to [`Lock::under`](crate::Lock::under) has ended.
    #[error("the lease that the lock should be added to has ended: {0}")]
    LeaseLost(LostReason),
    /// Another limit or mode is in use on this lock.
    #[error("{0}")]
    LimitMismatch(ErrorDetail),
    /// The lease holds the lock as shared and requested it as exclusive.
    #[error("{0}")]
    UpgradeDenied(ErrorDetail),
    /// A field of the call is invalid.
    #[error("{0}")]
    Invalid(ErrorDetail),
    /// The queue of the lock is full.
    #[error("{0}")]
    QueueFull(ErrorDetail),
    /// A quota of the broker is exhausted.
    #[error("{0}")]
    QuotaExceeded(ErrorDetail),
    /// The broker's store has no memory for another holder or waiter.
    #[error("{0}")]
    StoreFull(ErrorDetail),
    /// The broker's store does not support the request.
    #[error("{0}")]
    UnsupportedByStore(ErrorDetail),
    /// The credential is missing or was not accepted.
    #[error("{0}")]
    Unauthenticated(ErrorDetail),
    /// The credential does not authorize the request.
    #[error("{0}")]
    PermissionDenied(ErrorDetail),
    /// No broker responded in time, or its store did not. The client repeated the call until then.
    /// If an attempt acquired the lock nevertheless, its lease expires.
    #[error("{0}")]
    Unavailable(ErrorDetail),
    /// The store has lost data, and grants nothing until every lease that may have been lost has
    /// expired.
    #[error("{0}")]
    StoreRecovering(ErrorDetail),
    /// An internal error of the broker.
    #[error("{0}")]
    Internal(ErrorDetail),
    /// The client was shut down.
    #[error("the client is shut down")]
    Closed,
    /// Any other rejection, perhaps of a broker that is newer than this client.
    #[error("{0}")]
    Other(ErrorDetail),
}

/// Contention: holders and waiters for which an acquire was rejected.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Contention {
    /// Message of the broker, for people.
    pub message: String,
    /// Some holders of the lock; at most 5.
    pub holders: Vec<Holder>,
    /// Number of waiters in the queue of the lock.
    pub queue_length: u32,
    /// Shortest time until the lease of a holder expires unless it is renewed.
    pub retry_after: Option<Duration>,
    /// Closure of the lock, if the lock is closed.
    pub closure: Option<Box<Closure>>,
}

/// A period in which a lock grants nothing new. A hint that may be stale.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closure {
    /// Cause of the closure.
    pub cause: ClosureCause,
    /// Name of the process whose lease has ended, or of the operator; empty if the caller may not
    /// observe the lock.
    pub owner: String,
    /// Reason of the process for its lease, or of the operator.
    pub reason: String,
    /// End of the period by the clock of the store.
    pub until: Option<SystemTime>,
    /// Time until the end of the period.
    pub remaining: Duration,
}

/// Cause of a [`Closure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClosureCause {
    /// The `lock_delay` of a lease that expired or was revoked.
    LockDelay,
    /// The `at_least` of a lease that has ended.
    AtLeast,
    /// A command of an operator.
    Operator,
    /// Another cause, of a broker that is newer than this client.
    Other,
}

/// Rejection by a broker.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ErrorDetail {
    /// Message of the broker, for people.
    pub message: String,
    /// Time after which a retry may succeed, if the broker sent one.
    pub retry_after: Option<Duration>,
}

/// A holder of a lock, as other callers may see it. A hint that may be stale.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Public identifier of the lease.
    pub lease_id: String,
    /// Name of the process that holds the lock.
    pub owner: String,
    /// Reason for which the process acquired the lock.
    pub reason: String,
    /// Fencing token of the grant.
    pub fencing_token: i64,
    /// Time of the grant by the broker's clock.
    pub since: Option<SystemTime>,
    /// Time until the lease expires.
    pub remaining: Duration,
}

/// Reason for which a lease ended although its guard did not release it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal was confirmed in time: the network, the broker or its store was unavailable, or
    /// this process was paused.
    #[error("no renewal was confirmed in time")]
    Expired,
    /// An operator revoked the lease, with this message.
    #[error("revoked: {0}")]
    Revoked(String),
    /// The store has no record of the lease.
    #[error("the store lost the lease")]
    StoreLost,
    /// The lock was held for the whole of its `max_hold`.
    #[error("the lease has reached its max_hold")]
    MaxHold,
    /// The lease was released, by this client or with a copy of the lease.
    #[error("released")]
    Released,
    /// Another client attached the lease with a copy of it.
    #[error("moved to another client")]
    Moved,
    /// The client's credential expired.
    #[error("the credential expired")]
    CredentialExpired,
    /// The client was shut down.
    #[error("the client is shut down")]
    Closed,
    /// A reason that this version of the client does not define, as text.
    #[error("{0}")]
    Other(String),
}

impl LostReason {
    /// Returns true if the store keeps the lock for some time after the end of the lease, so that a
    /// release frees the lock earlier.
    pub(crate) fn needs_release(&self) -> bool {
        matches!(self, Self::Revoked(_) | Self::MaxHold)
    }
}

/// Error of a release. The guard is consumed in any case.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lease ended before the release. The protected work may have overlapped with that of
    /// another holder, unless a fencing token prevented it.
    #[error("the lease ended before it was released: {0}")]
    Lost(#[from] LostReason),
    /// No broker confirmed the release before the lease expired or the client closed. The lease
    /// expires if it was not released.
    #[error("no broker has confirmed the release; the lease expires if it was not released")]
    Unconfirmed,
    /// A broker rejected the release.
    #[error("{0}")]
    Refused(ErrorDetail),
}

/// Reason for which [`Lock::run`](crate::Lock::run) returned no result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired, and the work was not started.
    #[error(transparent)]
    Acquire(#[from] Error),
    /// The lock was lost, and the work was dropped at its current await.
    #[error("the lock was lost: {0}")]
    Lost(#[from] LostReason),
    /// The work was completed, but the lock may have been lost before its end.
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

/// Error of connecting a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No endpoint was given.
    #[error("no endpoint: give at least one, as in http://127.0.0.1:7070")]
    NoEndpoint,
    /// An endpoint is not a usable http or https URL.
    #[error("endpoint {endpoint:?}: {reason}; expected a URL as in http://127.0.0.1:7070")]
    InvalidEndpoint {
        /// Endpoint as it was given.
        endpoint: String,
        /// Reason for which the endpoint is invalid.
        reason: String,
    },
    /// The credential contains characters other than printable ASCII, or its file cannot be read.
    #[error("the credential {0}")]
    InvalidCredential(String),
    /// A bearer token would be sent unencrypted to another machine.
    #[error(
        "endpoint {endpoint:?}: the bearer token would be sent unencrypted to another machine; use \
         https, or set `allow_insecure_token` on a trusted network"
    )]
    InsecureToken {
        /// Endpoint as it was given.
        endpoint: String,
    },
    /// The owner is empty or longer than 256 bytes.
    #[error("the owner's name must have 1 to 256 bytes")]
    InvalidOwner,
    /// The brokers respond, but accept no call with this credential, or without one.
    #[error("the credential is missing or not accepted: {0}")]
    CredentialRefused(String),
    /// No broker responded, for the given reasons.
    #[error("no broker answers: {0}")]
    Unreachable(String),
    /// The client's thread could not be started.
    #[error("the client's thread did not start: {0}")]
    Thread(#[from] std::io::Error),
}

impl Error {
    /// Returns the time after which a retry may succeed, if the broker sent one.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Held(contention) | Self::WaitTimeout(contention) => contention.retry_after,
            Self::LimitMismatch(detail)
            | Self::UpgradeDenied(detail)
            | Self::Invalid(detail)
            | Self::QueueFull(detail)
            | Self::QuotaExceeded(detail)
            | Self::StoreFull(detail)
            | Self::UnsupportedByStore(detail)
            | Self::Unauthenticated(detail)
            | Self::PermissionDenied(detail)
            | Self::Unavailable(detail)
            | Self::StoreRecovering(detail)
            | Self::Internal(detail)
            | Self::Other(detail) => detail.retry_after,
            Self::LeaseLost(_) | Self::Closed => None,
        }
    }

    /// Returns some holders of the lock, at most 5, if the lock was held. Otherwise empty.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        if let Self::Held(contention) | Self::WaitTimeout(contention) = self {
            return &contention.holders;
        }
        &[]
    }
}

impl ErrorDetail {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            message,
            retry_after: None,
        }
    }
}

impl fmt::Display for ErrorDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (index, holder) in self.holders.iter().enumerate() {
            let join = if index == 0 { "; held by" } else { "," };
            write!(f, "{join} {}", holder.owner)?;
            if !holder.reason.is_empty() {
                write!(f, " ({})", holder.reason)?;
            }
        }
        if let Some(closure) = self
            .closure
            .as_ref()
            .filter(|closure| !closure.owner.is_empty())
        {
            write!(f, "; closed by {}", closure.owner)?;
            if !closure.reason.is_empty() {
                write!(f, " ({})", closure.reason)?;
            }
        }
        Ok(())
    }
}
