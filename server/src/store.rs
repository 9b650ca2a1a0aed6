//! Storage of locks: the trait [`Store`], its replies and events, and its implementations (memory,
//! Redis, RedLock).

mod lease_end_event;
mod listing;
pub mod memory;
pub mod redis;
pub mod redlock;
mod replies;
#[cfg(test)]
pub(crate) mod stub;
mod vote;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use thiserror::Error;
use tokio::time::Instant;

pub use self::{
    lease_end_event::{LeaseEndCause, LeaseEndEvent},
    listing::{Cursor, Listed, Scan},
    replies::{
        Acquired, Cancelled, Checked, EraId, LeaseRejection, LeaseReply, LimitSet, Released,
        Revoked, RevokedLease, Touched,
    },
    vote::{NotifyMode, Vote, VoteReply},
    watch::{Change, ChangeKind, WATCHED_MS},
};
use crate::lock::{
    AcquireCommand, ActiveClosure, ActiveRecovery, Attachment, AttemptId, BrokerId, CloseCommand,
    DeploymentKey, ExpectedAttachment, FencingToken, Filter, Grant, LeaseId, LeaseRef, LockKey,
    LockState, ReleaseScope, RequestHash, RevokeCommand, Ttl,
};

/// One broker's connection to the store.
///
/// Every method is atomic, uses the store's own clock, and is safe to repeat with the same
/// arguments. Dropping a future does not undo a command that was sent. Grants that a call makes to
/// *other* waiters of this broker arrive as [`Event::HandOff`], like those made by other brokers.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Grants the lock, enqueues the request, or returns the reason for rejecting the request. A
    /// repeated request finds the lease or the queue position that an earlier attempt got, and
    /// renews the lease.
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError>;

    /// Extends a lease. Never shortens or creates a lease. Renewing a provisional hand-off claims
    /// it.
    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError>;

    /// Renews several locks like [`Store::renew`], with fewer commands than a renewal of each.
    /// Returns a result for each lock, in the order of `leases`.
    async fn renew_many(
        &self,
        leases: &[LeaseRef],
        renewal: Renewal,
    ) -> Vec<Result<LeaseReply<Grant>, StoreError>> {
        join_all(leases.iter().map(|lease| self.renew(lease, renewal))).await
    }

    /// Returns the part of the store that has the lock. A part can fail while others reply, so
    /// only locks of one part are renewed together.
    fn part_of(&self, _lock: &LockKey) -> StorePart {
        StorePart::default()
    }

    /// Attaches the lease to a stream of this broker, without extending the lease. The stream to
    /// which the lease was attached before receives [`Event::Moved`].
    async fn attach(
        &self,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError>;

    /// Releases the lease, or one entry of the lease. Releasing the last entry hands the lock to
    /// the next waiters. Releasing the strongest entry reduces the weight with which the lease
    /// holds the lock.
    async fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError>;

    /// Cancels one attempt of a request. If no other attempt of the request is left, the request
    /// leaves the queue or its grant is released. An attempt that has not arrived yet is rejected
    /// when it arrives.
    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError>;

    /// Reports that this broker is alive and has waiters for the lock, grants the lock if it is
    /// free, and returns what this broker may have missed.
    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError>;

    /// Fixes the limit of a semaphore, regardless of the limits that callers request. The fixed
    /// limit is kept until a day after the last use of the lock. `None` removes the limit; a lock
    /// in use keeps it until it is idle.
    ///
    /// After a decrease the brokers of waiters receive [`Event::Rejoin`]. A waiter that needs more
    /// than the limit is rejected when it repeats its request or reaches the head of the queue.
    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError>;

    /// Closes the lock until a time. Leases that hold it keep it, and nothing new is granted. Never
    /// shortens a closure. Returns the closure that is in effect then; `None` if the time has
    /// passed.
    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError>;

    /// Ends the closure of the lock, whatever its cause, and returns it. `None` if the lock was not
    /// closed.
    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError>;

    /// Revokes the hold of another caller's lease on a lock. The stream to which the lease is
    /// attached receives [`Event::Revoked`].
    async fn revoke(&self, revoke: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError>;

    /// Returns the state of the lock without changing it, or `None` if the store has no record of
    /// the lock.
    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError>;

    /// Performs one short step of listing the locks that have a holder, a waiter or a closure.
    /// Returns at most `page_max` locks (1 or more), from the beginning or from the end of an
    /// earlier step. All steps together return each lock that existed throughout the listing at
    /// least once.
    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        page_max: usize,
    ) -> Result<Listed, StoreError>;

    /// Checks whether a fencing token belongs to a live lease, without changing the lock.
    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError>;

    /// Sends this broker the changes of all locks for [`WATCHED_MS`] from now on, as
    /// [`Event::Changed`], whichever broker makes the changes. Like all events, changes are hints.
    async fn watch(&self) -> Result<(), StoreError>;

    /// Returns the broker that owns the connection.
    fn broker(&self) -> BrokerId;

    /// Returns the recovery after a loss of data. Reads local state without sending a request, so
    /// that callers do not wait.
    fn recovery(&self) -> RecoveryState;

    /// Returns the recovery of the part of the store that keeps the lock, from local state. `None`
    /// if that part grants locks, or if it is unknown.
    fn recovery_of(&self, _lock: &LockKey) -> Option<ActiveRecovery> {
        match self.recovery() {
            RecoveryState::Recovering { recovery, .. } => Some(recovery),
            RecoveryState::Granting | RecoveryState::Unknown => None,
        }
    }

    /// Returns the key from which the lease tokens of this deployment are derived.
    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError>;

    /// Registers the listener of this broker's events. Events are hints: they may be lost or
    /// repeated. Listeners after the first are ignored.
    fn listen(&self, listener: Listener);
}

/// Part of a store that can fail separately: a slot of a cluster. Other stores have one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StorePart(pub u16);

/// Description of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Renewal {
    /// Validity from now on. `None` keeps the validity that the lease has.
    pub ttl: Option<Ttl>,
    pub expected_attachment: ExpectedAttachment,
    /// True if the client has received the lease. No cancel frees the lease from then on. Only the
    /// nodes of a RedLock store need that: a node may not know the attempt by which the client
    /// received the lease.
    pub is_for_client: bool,
}

impl Renewal {
    /// Returns the renewal of a lease that its client may not have received, with the validity that
    /// the lease has.
    pub fn undelivered(expected_attachment: ExpectedAttachment) -> Self {
        Self {
            expected_attachment,
            ..Self::default()
        }
    }
}

/// Callback for events of a store. Runs where the event is received, so it must neither block nor
/// call the store.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// A grant made to a waiter by the command of another call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HandOff {
    /// Broker of the waiting call.
    pub broker: BrokerId,
    pub request: RequestHash,
    pub fencing_token: FencingToken,
    /// Limit of the lock when it was granted.
    pub limit: u32,
    /// True if the receiving broker must claim the grant with [`Store::renew`] before reporting it
    /// to the caller.
    pub is_provisional: bool,
}

/// The effect of a command: its reply, and the events for other calls and streams.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Outcome<T> {
    pub reply: T,
    /// Grants to waiters of this broker and of other brokers.
    pub hand_offs: Vec<HandOff>,
    /// Lease that was detached from a stream.
    pub moved: Option<MovedLease>,
}

/// A lease that has moved from one stream to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MovedLease {
    pub lease_id: LeaseId,
    /// Previous stream of the lease, with the number of that attachment.
    pub from: Attachment,
}

/// A revocation of a lease that is attached to a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    pub lease_id: LeaseId,
    /// Stream of the lease.
    pub attachment: Attachment,
    /// Time for which the lease may still be renewed.
    pub grace_ms: u64,
    /// Reason given by the operator.
    pub reason: String,
}

impl<T> Outcome<T> {
    /// Creates an outcome that affects no other call or stream.
    pub fn reply_only(reply: T) -> Self {
        Self {
            reply,
            hand_offs: Vec::new(),
            moved: None,
        }
    }
}

/// Reason for which a command was rejected. The command changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum Rejected {
    /// The command arrived after its `not_after`.
    #[error("the command arrived too late")]
    DeadlinePassed,
    /// The store has no era, or another era than the broker verified.
    #[error("the store's era is not the one that was verified")]
    NoEra,
    /// The store has lost data and makes no new grants yet.
    #[error("no grants for another {retry_after_ms} ms")]
    Recovering {
        /// Time until grants resume.
        retry_after_ms: u64,
    },
    /// The lock_delay of the lease leaves no room for a validity under the limit of spans.
    #[error("the lock_delay is too long for another {retry_after_ms} ms")]
    SpanLimit {
        /// Time until the limit changes, or after which to retry.
        retry_after_ms: u64,
    },
}

/// An event that a store sends to a broker without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A command granted a lock to a waiter of this broker. The command was sent at the given time,
    /// if the time is known.
    HandOff(LockKey, HandOff, Option<Instant>),
    /// A lease has left a stream of this broker.
    Moved(LockKey, MovedLease),
    /// A lease attached to a stream of this broker was revoked.
    Revoked(LockKey, Revocation),
    /// A command of this broker found that a lease had ended. Other brokers do not receive the
    /// event.
    Ended(LockKey, LeaseEndEvent),
    /// Changes of a lock, for watches.
    Changed(LockKey, Vec<Change>),
    /// Calls that wait for the lock may have lost their queue position and must repeat their
    /// requests.
    Rejoin(LockKey),
    /// Another server process than before keeps the locks.
    ServerReplaced,
    /// A server violated an assumption of the guarantees. Its era is not used again.
    AssumptionViolated(Assumption),
    /// Messages may have been lost. The broker must touch every lock for which it has waiters.
    Resync,
}

/// An assumption of the guarantees about servers that brokers monitor (docs/guarantees.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assumption {
    /// A3: the clock of the server is not stepped.
    Clock,
    /// A5: the server evicts no keys.
    NoEviction,
}

/// Recovery of a store after a loss of data, as far as the broker knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RecoveryState {
    /// New locks are granted.
    Granting,
    /// Nothing new is granted yet.
    Recovering {
        /// Name of the server, for messages to operators.
        server: String,
        recovery: ActiveRecovery,
    },
    /// Each part of the store recovers separately, or no server is verified.
    #[default]
    Unknown,
}

impl RecoveryState {
    /// Creates the state of a store that is one server.
    pub(crate) fn of_server(
        server: impl FnOnce() -> String,
        recovery: Option<ActiveRecovery>,
    ) -> Self {
        recovery.map_or(Self::Granting, |recovery| Self::Recovering {
            server: server(),
            recovery,
        })
    }
}

/// Error of a store command.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The store was not reached or did not answer in time. The command may or may not have been
    /// executed.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The store was not reached or rejects commands temporarily. The command was not executed, and
    /// will not be.
    #[error("store unavailable, nothing was done: {0}")]
    NotExecuted(String),
    /// The store has no memory for the data that the command would add. The command was not
    /// executed.
    #[error("store out of memory: {0}")]
    Full(String),
    /// Commands wait too long for the store, which therefore accepts no new acquires. The command was
    /// not executed.
    #[error("store overloaded")]
    Overloaded,
    /// The store has lost data and makes no new grants yet.
    #[error("store recovering for {retry_after_ms} ms")]
    Recovering {
        /// Time until grants resume, or after which to retry.
        retry_after_ms: u64,
        /// The recovery, if it is known.
        recovery: Option<ActiveRecovery>,
    },
    /// The store does not support the operation. Contains the reason as a sentence.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The store contains data that this broker did not write or cannot read. The command changed
    /// nothing.
    #[error("store corrupt: {0}")]
    Corrupt(String),
    /// The reply cannot be decoded. The command may have been executed.
    #[error("malformed reply of the store: {0}")]
    InvalidReply(String),
}

impl StoreError {
    /// Returns true if the command may have been executed, or may still be executed.
    pub fn may_have_executed(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::InvalidReply(_))
    }

    /// Adds the recovery to the error for a store that recovers. Returns other errors unchanged.
    fn with_recovery(mut self, known: impl FnOnce() -> Option<ActiveRecovery>) -> Self {
        if let Self::Recovering { recovery, .. } = &mut self {
            *recovery = known();
        }
        self
    }
}
