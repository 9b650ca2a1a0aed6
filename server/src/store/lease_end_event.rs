//! Ends of leases that the holder did not release.

use crate::lock::{LeaseId, Owner};

/// The end of a lease's hold on a lock without a release by the holder. Reported once, to the
/// broker whose command found that the lease had ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseEndEvent {
    pub lease_id: LeaseId,
    pub owner: Owner,
    /// Fencing token of the grant.
    pub fencing_token: u64,
    /// Time from the grant to the end.
    pub held_ms: u64,
    /// Cause of the end.
    pub kind: LeaseEndCause,
    /// Reason given by the operator who revoked the lease; empty for other causes.
    pub reason: String,
}

/// Cause of the end of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseEndCause {
    /// The lease was not renewed in time, or its `disconnect_grace` has passed.
    Expired,
    /// An operator revoked the lease, and the holder did not release it in time.
    Revoked,
    /// The lease reached its `max_hold`.
    MaxHold,
}
