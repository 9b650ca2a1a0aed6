//! Commands of callers, and the part of each command that is sent to a store.

use super::{
    ArgumentsHash, Attachment, AttemptId, FencingToken, LeaseId, LeaseOptions, LockKey, Mode,
    Owner, PresentedLease, RequestHash, RequestId, Ttl,
};

/// A lock and the mode in which to acquire it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub lock: LockKey,
    pub mode: Mode,
}

/// A validated Acquire or AcquireAll call.
#[derive(Debug, Clone)]
pub struct AcquireCall {
    /// Locks to acquire, all or none, in the order of the call. At least one; no lock appears
    /// twice.
    pub targets: Vec<Target>,
    /// Existing lease to which the lock is added. The call then has exactly one target.
    pub under: Option<PresentedLease>,
    pub owner: Owner,
    pub ttl: Ttl,
    pub options: LeaseOptions,
    /// Total time to wait in queues for all targets; 0 means no waiting.
    pub wait_ms: u64,
    /// Id that makes the call safe to repeat. Random if the caller gave none.
    pub request_id: RequestId,
    /// Digest of the arguments that a repeated call must have in common.
    pub arguments: ArgumentsHash,
}

impl AcquireCall {
    /// Returns the first lock of the call, which is reported for failures that concern all targets.
    #[must_use]
    pub fn first(&self) -> &LockKey {
        &self.targets[0].lock
    }
}

/// The lease to which a grant belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LeaseBinding {
    /// A new lease, created by the call.
    #[default]
    New,
    /// An existing lease. If the lease already holds the lock, the call adds an entry.
    Existing,
    /// An existing lease that holds the lock with this token. The call adds an entry.
    Reentry(FencingToken),
}

/// Scope of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseScope {
    /// All entries, together with the whole lease.
    All,
    /// All entries of one lock of a lease that may have other locks.
    Lock,
    /// One entry of one lock of a lease that may have other locks.
    Entry(RequestHash),
    /// All entries, without a release by the holder: the lease ends as if it had expired now.
    ExpireNow,
}

/// An operator's command to revoke another caller's lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RevokeCommand {
    /// Lock of the lease. The revocation applies to this lock only.
    pub lock: LockKey,
    pub lease_id: LeaseId,
    /// Reason for the revocation, reported to the holder; never empty.
    pub reason: String,
    /// Time for which the lease may still be renewed.
    pub grace_ms: u64,
    /// Lock delay after the end of the lease, even if the holder releases the lock. If `None`, the
    /// lock delay of the lease applies.
    pub lock_delay_ms: Option<u64>,
    pub mode: RevokeMode,
}

/// Mode of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RevokeMode {
    /// Dry run: nothing is changed, and the holder is returned.
    DryRun,
    /// The lease can no longer be renewed after the grace. The lock becomes free when the lease is
    /// released or expires.
    Graceful,
    /// The lock becomes free now, although the holder may still rely on the lease.
    Immediate,
}

/// One attempt of a call to acquire one lock, as sent to a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AcquireCommand {
    pub lock: LockKey,
    pub mode: Mode,
    /// Id of the lease to which a grant belongs.
    pub lease_id: LeaseId,
    pub binding: LeaseBinding,
    /// Stream on which the call arrived, with the number of its attachment.
    pub stream: Option<Attachment>,
    /// Digest of the request id of the call.
    pub request: RequestHash,
    /// Digest of the other arguments of the call.
    pub arguments: ArgumentsHash,
    pub attempt: AttemptId,
    pub ttl: Ttl,
    pub options: LeaseOptions,
    /// Remaining time to wait; 0 means that the request is not queued.
    pub wait_ms: u64,
    /// Owner of the call, for inspections.
    pub owner: Owner,
    /// True if the request was queued before and may have lost its queue position. It is queued
    /// again even while the store recovers.
    pub rejoin: bool,
}
