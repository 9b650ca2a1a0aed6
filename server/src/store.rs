//! The seam to whatever keeps the locks: the trait [`Store`], its replies, and its stores.

mod ending;
mod listing;
pub mod memory;
pub mod redis;
pub mod redlock;
mod replies;
#[cfg(test)]
pub(crate) mod stub;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;
use tokio::time::Instant;

pub use self::{
    ending::{Ending, EndingKind},
    listing::{Cursor, Listed, Scan},
    replies::{
        Acquired, Attached, Cancelled, Checked, EraId, LimitSet, Released, Renewed, Revoked,
        Touched,
    },
    watch::{Change, ChangeKind, WATCHED_MS},
};
use crate::lock::{
    Acquire, Attachment, AttemptId, BrokerId, DeploymentKey, FencingToken, Filter, LeaseId,
    LeaseRef, LockKey, LockState, Release, RequestHash, Revoke, Ttl, Via,
};

/// One broker's connection to the store.
///
/// Every method is atomic, judged by the store's own clock, and safe to repeat with the same
/// arguments. Dropping a future does not undo what was sent. Grants that a call makes to *other*
/// waiters of this broker arrive as [`Event::HandOff`], like those that other brokers make.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Grants the lock, or joins its queue, or says why not. A repeat finds the lease or the place
    /// in line that an earlier attempt got, and renews the lease.
    async fn acquire(&self, acquire: &Acquire) -> Result<Acquired, StoreError>;

    /// Extends a lease, never shortens it, and never makes one. Renewing a provisional hand-off is
    /// its claim. `None` keeps the present ttl.
    async fn renew(
        &self,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Renewed, StoreError>;

    /// Puts the lease on a stream of this broker, without extending it. The stream that it was on is
    /// told with [`Event::Moved`].
    async fn attach(&self, lease: &LeaseRef, to: Attachment) -> Result<Attached, StoreError>;

    /// Gives the lease up, or one entry of it. With the last one the lock goes to the next waiters;
    /// with the strongest one the lease holds less of it from then on.
    async fn release(
        &self,
        lease: &LeaseRef,
        release: Release,
        via: Via,
    ) -> Result<Released, StoreError>;

    /// Takes back one attempt of a request: out of the queue, or off the lock, if no other attempt
    /// of the request is left. An attempt that has not arrived yet will be refused when it does.
    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError>;

    /// Says that this broker lives and still has waiters for the lock, grants the lock if it is
    /// free, and tells what this broker may have missed.
    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError>;

    /// Fixes the limit of a semaphore, whatever its callers say, until a day after its last use. `None`
    /// removes the limit: a lock in use keeps it until it is idle.
    /// After a decrease the brokers of waiters receive [`Event::Rejoin`]; a waiter that needs more than the
    /// limit is rejected when it asks again or reaches the head of the queue.
    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError>;

    /// Takes a lock away from a lease of somebody else. The stream that the lease is on is told with
    /// [`Event::Revoked`].
    async fn revoke(&self, revoke: &Revoke) -> Result<Revoked, StoreError>;

    /// Looks, without touching. `None`: nothing is known of the lock.
    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError>;

    /// One short step of a list of the locks that anybody holds or waits for, or that a lock_delay
    /// closes: at most `most` of them (1 or more), from the beginning or where an earlier step ended.
    /// From step to step each lock that was there all the time is listed, at least once.
    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError>;

    /// Whether a fencing token is that of a live lease, without touching.
    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError>;

    /// Has what changes told to this broker for [`WATCHED_MS`] from now on, with [`Event::Changed`],
    /// whichever broker changes it. Hints, like all events.
    async fn watch(&self) -> Result<(), StoreError>;

    /// The broker whose connection this is.
    fn broker(&self) -> BrokerId;

    /// For how long nothing new is granted, since data was lost; 0: grants are made. `None` where each part
    /// of the store has a time of its own. What is known without asking, so that nobody waits for it.
    fn recovering_ms(&self) -> Option<u64>;

    /// The key from which this deployment's lease tokens are derived.
    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError>;

    /// Has hand-offs to this broker's waiters, and reconnections, told to `listener` from now on.
    /// Hints: they may be lost or repeated. Only the first listener is told.
    fn listen(&self, listener: Listener);
}

/// Is told of events where they are noticed: it must neither block nor call the store.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// A grant made to a waiter by a call that was not its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOff {
    /// Whose call it is.
    pub broker: BrokerId,
    /// The waiter.
    pub request: RequestHash,
    /// The token of the grant.
    pub fencing_token: FencingToken,
    /// The receiving broker must claim it, by [`Store::renew`], before anybody is told.
    pub provisional: bool,
}

/// What a command did: its reply, and what others must hear of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<T> {
    /// The reply to the caller.
    pub reply: T,
    /// Grants to waiters, of this and of other brokers.
    pub hand_offs: Vec<HandOff>,
    /// A lease that was taken off a stream.
    pub moved: Option<Moved>,
}

/// A lease that was on a stream and is on another one now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The lease.
    pub lease_id: LeaseId,
    /// The stream that it left, and the number by which it was there.
    pub from: Attachment,
}

/// A lease on a stream that was revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The lease.
    pub lease_id: LeaseId,
    /// Where it is.
    pub on: Attachment,
    /// For how long it may still be renewed.
    pub grace_ms: u64,
    /// Why.
    pub reason: String,
}

impl<T> Outcome<T> {
    /// A reply that nobody else needs to hear of.
    pub fn silent(reply: T) -> Self {
        Self {
            reply,
            hand_offs: Vec::new(),
            moved: None,
        }
    }
}

/// Why a command was not executed. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// It arrived after its `not_after`.
    #[error("the command arrived too late")]
    Late,
    /// The store's era is gone, or is not the one that the broker verified.
    #[error("the store's era is not the one that was verified")]
    NoEra,
    /// The store has lost data; no new grants for so long.
    #[error("no grants for {retry_after_ms} ms more")]
    Recovering {
        /// Until grants resume.
        retry_after_ms: u64,
    },
}

/// What a store tells unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A waiter of this broker was granted a lock, by a command that was sent then; `None`: nobody knows.
    HandOff(LockKey, HandOff, Option<Instant>),
    /// A lease has left a stream of this broker.
    Moved(LockKey, Moved),
    /// A lease on a stream of this broker was revoked.
    Revoked(LockKey, Revocation),
    /// A command of this broker found a lease's time to be over. Others are not told.
    Ended(LockKey, Ending),
    /// Somebody watches, and this has changed.
    Changed(LockKey, Vec<Change>),
    /// Calls that wait for the lock may have lost their place: each asks again.
    Rejoin(LockKey),
    /// Another server process keeps the locks than before.
    Replaced,
    /// A server violated an assumption of the guarantees. Its era is not used again.
    Broken(Assumption),
    /// Messages may have been lost: touch every lock that has waiters here.
    Resync,
}

/// What the guarantees assume of a server, and brokers watch: docs/guarantees.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assumption {
    /// A3: its clock is not stepped.
    Clock,
    /// A5: it evicts nothing.
    NoEviction,
}

/// Why a store did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Not reached, or no answer in time: the command may or may not have been executed.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// Not reached, or it refuses for now: the command was not executed, and never will be.
    #[error("store unavailable, nothing was done: {0}")]
    NotNow(String),
    /// The store has no memory for what the command would add. It was not executed.
    #[error("store out of memory: {0}")]
    Full(String),
    /// The store has lost data; no new grants for so long.
    #[error("store recovering for {retry_after_ms} ms")]
    Recovering {
        /// Until grants resume.
        retry_after_ms: u64,
    },
    /// It is not among what this store can do; why, in a sentence.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The store holds something that this broker did not write or cannot read. The command has
    /// changed nothing.
    #[error("store corrupt: {0}")]
    Corrupt(String),
    /// The command was executed, perhaps, and its answer cannot be read.
    #[error("store answer unreadable: {0}")]
    Garbled(String),
}

impl StoreError {
    /// Whether the command may have been executed, or may still be.
    pub fn may_be_done(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Garbled(_))
    }
}
