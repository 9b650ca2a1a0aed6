//! Changes of locks, as sent to watches.

use crate::lock::{LeaseId, Mode, Owner};

/// Time for which a broker receives changes after [`Store::watch`](super::Store::watch).
pub const WATCHED_MS: u64 = 6_000;

/// One change of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Change {
    pub kind: ChangeKind,
    /// Lease of a holder; `None` for waiters and closures.
    pub lease_id: Option<LeaseId>,
    /// Owner of the holder, waiter or closure.
    pub owner: Owner,
    /// Mode of the holder, or requested mode of the waiter; exclusive for closures.
    pub mode: Mode,
    /// Token of a holder; 0 for waiters and closures.
    pub fencing_token: u64,
    /// Start of the hold or of the wait, or time of the closure, in milliseconds since 1970.
    pub since_ms: u64,
    /// Time until the expiry of the hold, or the end of the wait or of the closure.
    pub remaining_ms: u64,
}

/// Kind of a change of a holder, a waiter or a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// A lease acquired the lock. A provisional hand-off counts once it is claimed.
    Acquired,
    /// The holder released the lock.
    Released,
    /// A lease was found to have expired.
    Expired,
    /// A revoked lease ended without a release by the holder.
    Revoked,
    /// A waiter joined the queue.
    Queued,
    /// A waiter left the queue without a grant.
    Abandoned,
    /// The lock was closed, or is closed for longer.
    Closed,
    /// An operator opened the lock before the end of its closure.
    Opened,
}
