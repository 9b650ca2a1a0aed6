//! What the verbs of a store answer.

#[cfg(doc)]
use super::Store;
use super::{HandOff, Revocation};
use crate::lock::{Attachment, Contention, Force, Grant, Holder, Revoke};

/// Reply of [`Store::acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The request holds the lock, now or already.
    Granted(Grant),
    /// The request is in line.
    Queued {
        /// When the lock may become free by itself: touch it then. 0: nobody can tell.
        next_event_ms: u64,
        /// Its place: those of waiters before it are lower. 0: it was dropped from the line just now.
        place: u64,
        /// How many wait up to and with it, if it is the last; 0: somebody is behind it, look.
        position: u32,
        /// The newest token that the lock had granted then; 0: none. A hand-off to this request with no
        /// newer one was taken back before: it is nobody's any more, however late it is heard of.
        last_fencing_token: u64,
        /// The era of the store in which it is in line, if there are several.
        era: Option<EraId>,
    },
    /// Held by someone else, and the request does not wait.
    Held(Contention),
    /// The lock is in use with another limit, or the call wants more than all of it.
    LimitMismatch {
        /// The limit in use; 0 if the lock is not in use.
        limit: u32,
    },
    /// The lease, or the call that waits, is on another stream, and was put there later.
    StaleAttach,
    /// The lease holds the lock, but less of it than the call wants.
    UpgradeDenied,
    /// The lease has entered the lock as often as it may.
    TooManyEntries,
    /// The call waits, in as many attempts as a place in line takes.
    TooManyAttempts,
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
    /// The queue is full.
    QueueFull,
    /// The request id was used with other arguments.
    RequestIdReused,
    /// The lease that this request made or entered is over, or its entry is.
    Ended,
    /// This attempt was cancelled before it arrived.
    Cancelled,
}

/// Reply of [`Store::renew`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The lease, extended.
    Extended(Grant),
    /// The lease is on another stream; it is not extended.
    Elsewhere,
    /// The lease has been held as long as it may; it is not extended any more.
    MaxHold,
    /// The lease was revoked; it is not extended any more, or over.
    Revoked {
        /// Why.
        reason: String,
    },
    /// The lease had expired.
    Expired,
    /// The lease had been released.
    Released,
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
}

/// Reply of [`Store::attach`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// On the stream, with the validity that it had.
    Attached(Grant),
    /// It is on another stream, and was put there later.
    Stale,
    /// The lease has been held as long as it may.
    MaxHold,
    /// The lease was revoked.
    Revoked {
        /// Why.
        reason: String,
    },
    /// The lease had expired.
    Expired,
    /// The lease had been released.
    Released,
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
}

/// Reply of [`Store::release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// Given back now.
    Now {
        /// Entries left.
        hold_count: u32,
    },
    /// Given back before, or an entry that the lease does not have.
    Already {
        /// Entries left.
        hold_count: u32,
    },
    /// The lease is on another stream; nothing is changed.
    Elsewhere,
    /// The lease had expired: the work may have overlapped.
    Expired,
    /// The lease had been revoked, and is over: the work may have overlapped.
    Revoked {
        /// Why.
        reason: String,
    },
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
}

/// Reply of [`Store::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The last attempt: the request left the queue.
    Dequeued,
    /// The last attempt: the request's entry is off the lock.
    Freed,
    /// The request keeps its place or its lock: other attempts of it are left, or it never listed this one.
    Kept,
    /// Nothing is known of the request. The attempt will be refused should it still arrive.
    Unknown,
}

/// Reply of [`Store::set_limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitSet {
    /// Done.
    Set {
        /// The limit in use before, or the one that was removed; 0 if there was none.
        previous: u32,
    },
    /// The lock is held or waited for as a shared or exclusive lock.
    Mismatch,
}

/// Reply of [`Store::revoke`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// Done, unless nothing was to be done.
    Taken {
        /// Who held the lock before.
        holder: Box<Holder>,
        /// How many waited.
        queue_length: u32,
        /// The stream that is told.
        on: Option<Attachment>,
    },
    /// It was revoked before, and is over.
    Already,
    /// The lease had expired.
    Expired,
    /// The lease had been released.
    Released,
    /// The lock knows no such lease.
    NotFound,
}

/// Reply of [`Store::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// A live lease holds the lock with this token.
    Live {
        /// Time left in the store.
        remaining_ms: u64,
    },
    /// None does.
    Stale {
        /// The newest token given.
        newest: u64,
    },
    /// Nothing is known of the lock.
    Unknown,
}

/// Reply of [`Store::touch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// This broker was unknown or silent here: its waiters must join again.
    pub rejoin: bool,
    /// When the lock may become free by itself: touch it then. 0: nobody can tell.
    pub next_event_ms: u64,
    /// The grants that belong to calls at this broker, which may not have heard of them.
    pub held: Vec<HandOff>,
    /// Where to go on: there are more holders than one touch looks through.
    pub more_from: Option<usize>,
    /// The era of the store, if there are several. In another one than before the store may have lost the
    /// places of waiters.
    pub era: Option<EraId>,
}

/// Names what a store keeps between two losses of data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EraId(Box<str>);

impl EraId {
    /// `None` of an empty name: the store could not say.
    pub fn new(name: &str) -> Option<Self> {
        (!name.is_empty()).then(|| Self(name.into()))
    }
}

impl Revoked {
    /// What the stream of the lease is to hear.
    pub fn to_tell(&self, revoke: &Revoke) -> Option<Revocation> {
        let Self::Taken { on: Some(on), .. } = self else {
            return None;
        };
        (revoke.force != Force::None).then(|| Revocation {
            lease_id: revoke.lease_id,
            on: *on,
            grace_ms: revoke.grace_ms,
            reason: revoke.reason.clone(),
        })
    }
}
