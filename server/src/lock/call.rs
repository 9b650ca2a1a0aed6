//! What a caller asks for, and what of it goes to a store.

use super::{
    ArgumentsHash, Attachment, AttemptId, FencingToken, LeaseId, LockKey, Mode, Owner, RequestHash,
    RequestId, ShownLease, Terms, Ttl,
};

/// A lock, and how to hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The lock.
    pub lock: LockKey,
    /// How to hold it.
    pub mode: Mode,
}

/// A call of Acquire or AcquireAll, parsed.
#[derive(Debug, Clone)]
pub struct AcquireCall {
    /// One or more, all or none, in the order asked for; no lock twice.
    pub targets: Vec<Target>,
    /// The lease to add the lock to; the call then has one target.
    pub under: Option<ShownLease>,
    /// Who asks.
    pub owner: Owner,
    /// Validity.
    pub ttl: Ttl,
    /// `max_hold` and `lock_delay`.
    pub terms: Terms,
    /// How long to wait in line for all of them together; 0 does not wait.
    pub wait_ms: u64,
    /// The id that makes the call safe to repeat; random where the caller gave none.
    pub request_id: RequestId,
    /// Digest of the arguments that a repeat must share.
    pub arguments: ArgumentsHash,
}

impl AcquireCall {
    /// The lock named first; that of a failure that is about all of them.
    #[must_use]
    pub fn first(&self) -> &LockKey {
        &self.targets[0].lock
    }
}

/// The lease that a grant belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Under {
    /// One that the call makes.
    #[default]
    NewLease,
    /// One that is there. If it holds the lock already, the call is an entry.
    Lease,
    /// One that holds the lock with this token: the call is an entry.
    Grant(FencingToken),
}

/// What is given up of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// All entries, with the whole lease.
    All,
    /// All entries of a lock whose lease may have others.
    Lock,
    /// One entry of such a lock.
    Entry(RequestHash),
    /// All, and nobody gave them back: the lease ends as if it expired now.
    Lapse,
}

/// What an operator does to a lease of somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoke {
    /// A lock of the lease: only this one is taken away.
    pub lock: LockKey,
    /// The lease.
    pub lease_id: LeaseId,
    /// Why, for its holder; never empty.
    pub reason: String,
    /// For how long it may still be renewed.
    pub grace_ms: u64,
    /// How long the lock stays closed afterwards, even if it is given back; `None`: as the lease has it.
    pub lock_delay_ms: Option<u64>,
    /// How far to go.
    pub force: Force,
}

/// How far a revocation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Nothing is done; only told.
    None,
    /// The lease is renewed no more. The lock is free when it is given back, or has run out.
    Revoke,
    /// The lock is free now, although its holder may still trust the lease.
    Unsafe,
}

/// One attempt of a call, as a store sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// The lock.
    pub lock: LockKey,
    /// How to hold it.
    pub mode: Mode,
    /// The lease that a grant belongs to.
    pub lease_id: LeaseId,
    /// Whether that lease is a new one.
    pub under: Under,
    /// The stream that the call came on.
    pub stream: Option<Attachment>,
    /// Digest of the call's request id.
    pub request: RequestHash,
    /// Digest of the call's other arguments.
    pub arguments: ArgumentsHash,
    /// This attempt.
    pub attempt: AttemptId,
    /// Validity.
    pub ttl: Ttl,
    /// `max_hold` and `lock_delay`.
    pub terms: Terms,
    /// How much longer to wait; 0 does not queue.
    pub wait_ms: u64,
    /// Who asks, for inspection.
    pub owner: Owner,
    /// A waiter whose place was lost joins again, even while the store recovers.
    pub rejoin: bool,
}
