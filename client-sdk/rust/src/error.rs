//! Everything that can go wrong, one variant for each reason that a caller may treat differently.

mod read;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

pub(crate) use self::read::{holder, is_open, lost, refused, status, time};

/// Why a lock was not taken.
///
/// Messages are for people; branch on the variants. New ones may come.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else holds the lock, and the call did not wait.
    #[error("{0}")]
    Held(Busy),
    /// The wait timed out. The call has left the queue, unless another attempt of it is still queued or has
    /// been granted the lock (`STILL_QUEUED`).
    #[error("{0}")]
    WaitTimeout(Busy),
    /// The lease given to [`Lock::under`](crate::Lock::under) is over.
    #[error("the lease that the lock was to be added to is over: {0}")]
    LeaseLost(LostReason),
    /// Another limit or mode is in use on this lock.
    #[error("{0}")]
    LimitMismatch(Refusal),
    /// Shared to exclusive under one lease.
    #[error("{0}")]
    UpgradeDenied(Refusal),
    /// A field of the call is not legal.
    #[error("{0}")]
    Invalid(Refusal),
    /// The lock's line is full.
    #[error("{0}")]
    QueueFull(Refusal),
    /// A quota of the broker is used up.
    #[error("{0}")]
    QuotaExceeded(Refusal),
    /// The broker's store has no memory for another holder or waiter.
    #[error("{0}")]
    StoreFull(Refusal),
    /// The broker's store cannot do that.
    #[error("{0}")]
    UnsupportedByStore(Refusal),
    /// The credential is missing or not accepted.
    #[error("{0}")]
    Unauthenticated(Refusal),
    /// The credential does not allow that.
    #[error("{0}")]
    PermissionDenied(Refusal),
    /// No broker, or no store behind it, could answer in time. The call was repeated until then, and
    /// was given up: if it did take the lock, that runs out by itself.
    #[error("{0}")]
    Unavailable(Refusal),
    /// The store has lost data and grants nothing until every lease that it may have forgotten is
    /// over.
    #[error("{0}")]
    StoreRecovering(Refusal),
    /// A fault of the broker.
    #[error("{0}")]
    Internal(Refusal),
    /// The client was shut down.
    #[error("the client is shut down")]
    Closed,
    /// Anything else that a broker says, perhaps a newer one than this client.
    #[error("{0}")]
    Other(Refusal),
}

/// Who was in the way.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Busy {
    /// For people.
    pub message: String,
    /// At most 5.
    pub holders: Vec<Holder>,
    /// How many wait.
    pub queue_length: u32,
    /// The shortest time until a holder's lease runs out unless it is renewed.
    pub retry_after: Option<Duration>,
}

/// What the broker said.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Refusal {
    /// For people.
    pub message: String,
    /// When to try again, if that is worth while.
    pub retry_after: Option<Duration>,
}

/// Somebody who holds a lock, as others may see it. A hint, perhaps stale already.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Public identifier of the lease.
    pub lease_id: String,
    /// The process.
    pub owner: String,
    /// Why it took the lock.
    pub reason: String,
    /// Its fencing token.
    pub fencing_token: i64,
    /// Since when, by the broker's clock.
    pub since: Option<SystemTime>,
    /// Time left on its lease.
    pub remaining: Duration,
}

/// Why a lease is over although nobody released it here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal was confirmed in time: the network, the broker or its store could not be reached,
    /// or this process stood still.
    #[error("no renewal was confirmed in time")]
    Expired,
    /// An operator took it away.
    #[error("revoked: {0}")]
    Revoked(String),
    /// The store does not know it any more.
    #[error("the store lost it")]
    StoreLost,
    /// It has been held for all of its `max_hold`.
    #[error("held for all of its max_hold")]
    MaxHold,
    /// It was given back, here or with a copy of the lease.
    #[error("released")]
    Released,
    /// Somebody took it over with a copy of the lease.
    #[error("moved to another client")]
    Moved,
    /// The client's credential ran out.
    #[error("the credential ran out")]
    CredentialExpired,
    /// The client was shut down.
    #[error("the client is shut down")]
    Closed,
    /// A reason that this client does not know.
    #[error("{0}")]
    Other(String),
}

impl LostReason {
    /// Whether the store keeps the lock for the lease for a while, so that it is worth giving back.
    pub(crate) fn leaves_the_lock(&self) -> bool {
        matches!(self, Self::Revoked(_) | Self::MaxHold)
    }
}

/// Why a release did not go as hoped. The guard is gone in any case.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lease was over before: what it guarded may have overlapped with another holder's work,
    /// unless a fencing token kept them apart.
    #[error("the lease was over before it was released: {0}")]
    Lost(#[from] LostReason),
    /// No broker has confirmed it while the lease could have lived; it has run out by now.
    #[error("no broker has confirmed the release; the lock has run out by itself")]
    Unconfirmed,
    /// The broker would not.
    #[error("{0}")]
    Refused(Refusal),
}

/// Why [`Lock::run`](crate::Lock::run) has no result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not taken; the work was not begun.
    #[error(transparent)]
    Acquire(#[from] Error),
    /// The lock was lost, and the work was dropped where it stood.
    #[error("the lock was lost: {0}")]
    Lost(#[from] LostReason),
    /// The work was done, but whether it was alone to the end is not certain.
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

/// Why a client could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No endpoint was given.
    #[error("no endpoint: give at least one, as in http://127.0.0.1:7070")]
    NoEndpoint,
    /// An endpoint is none.
    #[error("endpoint {endpoint:?}: {why}; expected a URL as in http://127.0.0.1:7070")]
    InvalidEndpoint {
        /// As it was given.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// The credential has characters other than printable ones of ASCII, or its file cannot be read.
    #[error("the credential {0}")]
    InvalidCredential(String),
    /// A bearer token would be sent unencrypted to another machine.
    #[error(
        "endpoint {endpoint:?}: the bearer token would cross the network unencrypted; use https, or \
         `allow_insecure_token` where the network itself is trusted"
    )]
    InsecureToken {
        /// As it was given.
        endpoint: String,
    },
    /// The owner is empty or longer than 256 bytes.
    #[error("the owner's name must have 1 to 256 bytes")]
    InvalidOwner,
    /// The brokers answer, and accept no call with this credential, or without one.
    #[error("the credential is missing or not accepted: {0}")]
    CredentialRefused(String),
    /// No broker answers.
    #[error("no broker answers: {0}")]
    Unreachable(String),
    /// The client's thread could not be started.
    #[error("the client's thread did not start: {0}")]
    Thread(#[from] std::io::Error),
}

impl Error {
    /// When to try again, if that is worth while.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Held(busy) | Self::WaitTimeout(busy) => busy.retry_after,
            Self::LimitMismatch(refusal)
            | Self::UpgradeDenied(refusal)
            | Self::Invalid(refusal)
            | Self::QueueFull(refusal)
            | Self::QuotaExceeded(refusal)
            | Self::StoreFull(refusal)
            | Self::UnsupportedByStore(refusal)
            | Self::Unauthenticated(refusal)
            | Self::PermissionDenied(refusal)
            | Self::Unavailable(refusal)
            | Self::StoreRecovering(refusal)
            | Self::Internal(refusal)
            | Self::Other(refusal) => refusal.retry_after,
            Self::LeaseLost(_) | Self::Closed => None,
        }
    }

    /// Some who hold the lock, if they were in the way.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        if let Self::Held(busy) | Self::WaitTimeout(busy) = self {
            return &busy.holders;
        }
        &[]
    }
}

impl Refusal {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            message,
            retry_after: None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (index, holder) in self.holders.iter().enumerate() {
            let join = if index == 0 { "; held by" } else { "," };
            write!(f, "{join} {}", holder.owner)?;
            if !holder.reason.is_empty() {
                write!(f, " ({})", holder.reason)?;
            }
        }
        Ok(())
    }
}
