//! What is told of a lease whose time is over.

use crate::lock::{LeaseId, Owner};

/// A hold that its holder did not give back. It is told once, to the broker whose command found its
/// time to be over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Of which lease.
    pub lease_id: LeaseId,
    /// Whose it was.
    pub owner: Owner,
    /// The token of the grant.
    pub fencing_token: u64,
    /// From the grant to the end.
    pub held_ms: u64,
    /// What ended it.
    pub kind: EndingKind,
    /// Why an operator took it away; else empty.
    pub reason: String,
}

/// What ended a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndingKind {
    /// It was not renewed in time, or its `disconnect_grace` was over.
    Expired,
    /// An operator took it away, and it was not given back.
    Revoked,
    /// Its `max_hold` was over.
    MaxHold,
}
