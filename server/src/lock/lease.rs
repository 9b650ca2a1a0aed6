//! Leases, as returned to holders and as presented by them.

use super::{FencingToken, LeaseId, LeaseToken, LockKey, Mode, Ttl};

/// A grant that the store has created or renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    pub fencing_token: FencingToken,
    /// Mode of the strongest entry of the lease.
    pub mode: Mode,
    pub ttl: Ttl,
    /// Time of the grant by the clock of the store, in milliseconds since 1970.
    pub acquired_ms: u64,
    /// Number of entries of the lease; 1 without re-entry.
    pub hold_count: u32,
    /// Number of waiters of the lock.
    pub queue_length: u32,
    /// The `disconnect_grace` with which the lease was acquired.
    pub disconnect_grace_ms: Option<u64>,
    /// Span that the lease requests: that of the whole ttl, even if `ttl` is shorter.
    pub span_ms: u64,
}

/// One lock of a lease, as identified in store commands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    pub lock: LockKey,
    pub lease_id: LeaseId,
    pub fencing_token: FencingToken,
}

/// A lock held under a lease.
#[derive(Debug, Clone)]
pub struct HeldLock {
    pub lock: LockKey,
    pub grant: Grant,
}

/// The right to one or more locks for a limited time.
#[derive(Debug, Clone)]
pub struct Lease {
    pub lease_id: LeaseId,
    pub lease_token: LeaseToken,
    /// Locks of the lease. Never empty; no lock appears twice.
    pub locks: Vec<HeldLock>,
}

/// A lease presented by its holder.
#[derive(Debug, Clone)]
pub struct PresentedLease {
    pub lease_id: LeaseId,
    /// Token of the lease, which was verified against `lease_id`.
    pub lease_token: LeaseToken,
    pub ttl: Ttl,
    /// Locks of the lease: 1 to [`LOCKS_MAX`](super::LOCKS_MAX), none twice.
    pub locks: Vec<LeaseRef>,
}

impl Lease {
    /// Returns the validity of the whole lease, which is the shortest validity of its locks.
    pub fn ttl(&self) -> Ttl {
        let ttls = self.locks.iter().map(|held| held.grant.ttl);
        ttls.min().unwrap_or(Ttl::from_stored(0))
    }
}
