//! A lease as it goes to its holder, and as the holder shows it again.

use super::{FencingToken, LeaseId, LeaseToken, LockKey, Mode, Ttl};

/// A grant that the store has made or renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The token.
    pub fencing_token: FencingToken,
    /// How the lock is held: by the strongest of its entries.
    pub mode: Mode,
    /// Validity.
    pub ttl: Ttl,
    /// When it was granted, by the store's clock, in milliseconds since 1970.
    pub acquired_ms: u64,
    /// How many entries the lease has; 1 unless it entered again.
    pub hold_count: u32,
    /// How many wait for the lock.
    pub queue_length: u32,
    /// The `disconnect_grace` that the lease was acquired with.
    pub disconnect_grace_ms: Option<u64>,
}

/// One lock of a lease, as a store asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRef {
    /// The lock.
    pub lock: LockKey,
    /// The lease.
    pub lease_id: LeaseId,
    /// The token of its grant.
    pub fencing_token: FencingToken,
}

/// One lock held under a lease.
#[derive(Debug, Clone)]
pub struct HeldLock {
    /// The lock.
    pub lock: LockKey,
    /// Its grant.
    pub grant: Grant,
}

/// A claim on one or more locks.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The public name.
    pub lease_id: LeaseId,
    /// The secret proof.
    pub lease_token: LeaseToken,
    /// Never none; no lock twice.
    pub locks: Vec<HeldLock>,
}

/// A lease as its holder shows it again: what of it matters to the broker.
#[derive(Debug, Clone)]
pub struct ShownLease {
    /// The public name.
    pub lease_id: LeaseId,
    /// The secret proof, which was checked against the name.
    pub lease_token: LeaseToken,
    /// The validity.
    pub ttl: Ttl,
    /// Its locks: 1 to [`LOCKS_MAX`](super::LOCKS_MAX), none twice.
    pub locks: Vec<LeaseRef>,
}

impl Lease {
    /// The validity of the whole: that of the lock whose validity is the shortest.
    pub fn ttl(&self) -> Ttl {
        let ttls = self.locks.iter().map(|held| held.grant.ttl);
        ttls.min().unwrap_or(Ttl::from_stored(0))
    }
}
