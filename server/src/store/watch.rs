//! What is told of a lock to those who watch.

use crate::lock::{LeaseId, Mode, Owner};

/// How long what changes is told after [`Store::watch`](super::Store::watch).
pub const WATCHED_MS: u64 = 6_000;

/// One change of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The lease; `None` of those who wait.
    pub lease_id: Option<LeaseId>,
    /// Whose it is.
    pub owner: Owner,
    /// How the lock is held, or is to be.
    pub mode: Mode,
    /// The token; 0 of those who wait.
    pub fencing_token: u64,
    /// Since when it is held or waited for, in milliseconds since 1970.
    pub since_ms: u64,
    /// Time left to hold it or to wait.
    pub remaining_ms: u64,
}

/// What happened to a holder or a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The lock was granted, and the grant can be relied on.
    Acquired,
    /// The lock was given back.
    Released,
    /// A lease was found to have run out.
    Expired,
    /// A lease that an operator has revoked is over, without having been given back.
    Revoked,
    /// Somebody joined the line.
    Queued,
    /// Somebody left the line without the lock.
    Abandoned,
}
