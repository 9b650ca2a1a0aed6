//! Replies of the methods of [`Store`].

#[cfg(doc)]
use super::Store;
use super::{HandOff, Revocation};
use crate::lock::{Attachment, Contention, Grant, Holder, RevokeCommand, RevokeMode};

/// Reply of [`Store::acquire`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The request holds the lock, since now or since an earlier attempt.
    Granted(Grant),
    /// The request is queued.
    Queued {
        /// Time until the lock may become free without a release, if it is known; the broker then
        /// touches the lock.
        next_event_ms: Option<u64>,
        /// Queue sequence number, lower for waiters that joined earlier. `None` if the request was
        /// removed from the queue by this command.
        sequence: Option<u64>,
        /// Queue position, counted from 1, if the request is the last in the queue. `None` if
        /// requests are queued behind it; the position must then be read from the store.
        position: Option<u32>,
        /// Newest fencing token of the lock at that time, 0 before the first. A hand-off to this request
        /// with a token up to this one was cancelled earlier. The broker must ignore the hand-off,
        /// however late it arrives.
        last_fencing_token: u64,
        /// Era in which the request is queued, if the store has several eras.
        era: Option<EraId>,
    },
    /// Another lease holds the lock, and the request does not wait.
    Held(Contention),
    /// The lock is in use with another limit, or the request needs more than the limit.
    LimitMismatch {
        /// Limit in use, if the lock is in use.
        limit: Option<u32>,
    },
    /// The lease or the waiting call was attached to another stream later.
    StaleAttach,
    /// The lease holds the lock in a weaker mode than the request.
    UpgradeDenied,
    /// The lease has the maximum number of entries in the lock.
    TooManyEntries,
    /// The call already waits in the maximum number of attempts.
    TooManyAttempts,
    /// The lock has no record of the lease, or the lease holds a newer grant.
    NotFound,
    QueueFull,
    /// The request id was used with other arguments.
    RequestIdReused,
    /// The lease that this request created or entered has ended, or the entry was released.
    Ended,
    /// This attempt was cancelled before it arrived.
    Cancelled,
}

/// Reply of a command about a lease: the result, or the reason for which the command was not
/// applied.
pub type LeaseReply<T> = Result<T, LeaseRejection>;

/// Reason for which a command was not applied to a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LeaseRejection {
    /// The lease is attached to another stream, and was not changed.
    Elsewhere,
    /// The lease has reached its `max_hold`, and is not extended further.
    MaxHold,
    /// The lease was revoked: it is not extended further, or has ended.
    Revoked {
        /// Reason given by the operator.
        reason: String,
    },
    /// The lease had expired. The work of its holder may have overlapped with that of the next
    /// holder.
    Expired,
    /// The lease was released.
    Released,
    /// The lock has no record of the lease, or the lease holds a newer grant.
    NotFound,
}

/// Result of [`Store::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Released {
    /// True if an earlier command released the lease, or if the lease does not have the entry.
    pub already_released: bool,
    /// Number of remaining entries.
    pub hold_count: u32,
}

/// Reply of [`Store::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cancelled {
    /// The attempt was the last of its request, which left the queue.
    Dequeued,
    /// The attempt was the last of its request, whose entry was released.
    Freed,
    /// The request keeps its queue position or its lock: it has other attempts, or does not list
    /// this attempt.
    Kept,
    /// The lock has no record of the request. The attempt is rejected if it arrives later.
    Unknown,
}

/// Reply of [`Store::set_limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitSet {
    Set {
        /// Limit in use before, or the removed limit, if there was one.
        previous: Option<u32>,
    },
    /// The lock has holders or waiters in shared or exclusive mode.
    Mismatch,
}

/// Result of [`Store::revoke`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Revoked {
    /// The lease was revoked. With [`RevokeMode::DryRun`] nothing was changed.
    Taken(RevokedLease),
    /// The lease was revoked earlier and has ended.
    Already,
}

/// A lease that was revoked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RevokedLease {
    /// State of the holder before the revocation.
    pub holder: Box<Holder>,
    /// Number of waiters.
    pub queue_length: u32,
    /// Stream of the lease, which is notified.
    pub on: Option<Attachment>,
}

/// Reply of [`Store::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checked {
    /// A live lease holds the lock with this token.
    Live {
        /// Time until the expiry in the store.
        remaining_ms: u64,
    },
    /// No live lease holds the lock with this token.
    Stale {
        /// Newest fencing token of the lock.
        newest: u64,
    },
    /// The store has no record of the lock.
    Unknown,
}

/// Reply of [`Store::touch`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Touched {
    /// True if waiters of this broker must repeat their requests: the broker was unknown or silent
    /// at this lock, or one of its waiters belongs to a lease that now holds the lock.
    pub rejoin: bool,
    /// Time until the lock may become free without a release, if it is known; the broker then
    /// touches the lock again.
    pub next_event_ms: Option<u64>,
    /// Grants to calls at this broker, of which the notifications may have been lost.
    pub held: Vec<HandOff>,
    /// Slot at which the next touch continues, if there are more holders than one touch reads.
    pub more_from: Option<usize>,
    /// Era of the store, if the store has several eras. A store in another era than before may have
    /// lost the queue positions of waiters.
    pub era: Option<EraId>,
}

/// Id of an era, the period between two losses of data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EraId(Box<str>);

impl EraId {
    /// Returns `None` for an empty name, which stands for an unknown era.
    pub fn new(name: &str) -> Option<Self> {
        (!name.is_empty()).then(|| Self(name.into()))
    }
}

impl RevokedLease {
    /// Returns the revocation to send to the stream of the lease, if there is one.
    pub fn to_revocation(&self, revoke: &RevokeCommand) -> Option<Revocation> {
        let attachment = self.on.filter(|_| revoke.mode != RevokeMode::DryRun)?;
        Some(Revocation {
            lease_id: revoke.lease_id,
            attachment,
            grace_ms: revoke.grace_ms,
            reason: revoke.reason.clone(),
        })
    }
}
