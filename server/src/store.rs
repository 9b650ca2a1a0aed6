//! The seam to whatever keeps the locks: the trait [`Store`], its replies, and its stores.

pub mod memory;
pub mod redis;
pub mod redlock;

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use crate::lock::{
    Acquire, Attachment, AttemptId, BrokerId, Contention, DeploymentKey, FencingToken, Grant,
    LeaseId, LeaseRef, LockKey, LockState, Release, RequestHash, Ttl, Via,
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

    /// Fixes the limit of a semaphore, whatever its callers say, until a day after its last use.
    /// Waiters that can never fit leave the line; brokers are told with [`Event::Rejoin`].
    async fn set_limit(&self, lock: &LockKey, limit: u32) -> Result<LimitSet, StoreError>;

    /// Looks, without touching. `None`: nothing is known of the lock.
    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError>;

    /// Whether a fencing token is that of a live lease, without touching.
    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError>;

    /// The broker whose connection this is.
    fn broker(&self) -> BrokerId;

    /// The key from which this deployment's lease tokens are derived.
    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError>;

    /// Has hand-offs to this broker's waiters, and reconnections, told to `listener` from now on.
    /// Hints: they may be lost or repeated. Only the first listener is told.
    fn listen(&self, listener: Listener);
}

/// Is told of events where they are noticed: it must neither block nor call the store.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// Reply of [`Store::acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The request holds the lock, now or already.
    Granted(Grant),
    /// The request is in line.
    Queued {
        /// When the lock may become free by itself: touch it then. 0: nobody can tell.
        next_event_ms: u64,
        /// Its place: those of waiters before it are lower. 0: it was dropped from the line just now.
        place: u64,
        /// How many wait up to and with it, if it is the last; 0: somebody is behind it, look.
        position: u32,
    },
    /// Held by someone else, and the request does not wait.
    Held(Contention),
    /// The lock is in use with another limit, or the call wants more than all of it.
    LimitMismatch {
        /// The limit in use; 0 if the lock is not in use.
        limit: u32,
    },
    /// The lease, or the call that waits, is on another stream, and was put there later.
    StaleAttach,
    /// The lease holds the lock, but less of it than the call wants.
    UpgradeDenied,
    /// The lease has entered the lock as often as it may.
    TooManyEntries,
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
    /// The queue is full.
    QueueFull,
    /// The request id was used with other arguments.
    RequestIdReused,
    /// The lease that this request made or entered is over, or its entry is.
    Ended,
    /// This attempt was cancelled before it arrived.
    Cancelled,
}

/// Reply of [`Store::renew`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The lease, extended.
    Extended(Grant),
    /// The lease is on another stream; it is not extended.
    Elsewhere,
    /// The lease has been held as long as it may; it is not extended any more.
    MaxHold,
    /// The lease had expired.
    Expired,
    /// The lease had been released.
    Released,
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
}

/// Reply of [`Store::attach`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// On the stream, with the validity that it had.
    Attached(Grant),
    /// It is on another stream, and was put there later.
    Stale,
    /// The lease has been held as long as it may.
    MaxHold,
    /// The lease had expired.
    Expired,
    /// The lease had been released.
    Released,
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
}

/// Reply of [`Store::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// Given back now.
    Now {
        /// Entries left.
        hold_count: u32,
    },
    /// Given back before, or an entry that the lease does not have.
    Already {
        /// Entries left.
        hold_count: u32,
    },
    /// The lease is on another stream; nothing is changed.
    Elsewhere,
    /// The lease had expired: the work may have overlapped.
    Expired,
    /// The lock knows no such lease, or holds a newer grant of it.
    NotFound,
}

/// Reply of [`Store::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The last attempt: the request left the queue.
    Dequeued,
    /// The last attempt: the request's entry is off the lock.
    Freed,
    /// Another attempt of the request is left, and keeps its place or its lock.
    Kept,
    /// The attempt is not known, and will be refused should it still arrive.
    Unknown,
}

/// Reply of [`Store::set_limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitSet {
    /// Done.
    Set {
        /// The limit before; 0 if there was none.
        previous: u32,
    },
    /// The lock is in use as a shared or exclusive lock.
    Mismatch,
}

/// Reply of [`Store::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// A live lease holds the lock with this token.
    Live {
        /// Time left in the store.
        remaining_ms: u64,
    },
    /// None does.
    Stale {
        /// The newest token given.
        newest: u64,
    },
    /// Nothing is known of the lock.
    Unknown,
}

/// Reply of [`Store::touch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// This broker was unknown or silent here: its waiters must join again.
    pub rejoin: bool,
    /// When the lock may become free by itself: touch it then. 0: nobody can tell.
    pub next_event_ms: u64,
    /// The grants that belong to calls at this broker, which may not have heard of them.
    pub held: Vec<HandOff>,
}

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
    /// A waiter of this broker was granted a lock.
    HandOff(LockKey, HandOff),
    /// A lease has left a stream of this broker.
    Moved(LockKey, Moved),
    /// Calls that wait for the lock may have lost their place: each asks again.
    Rejoin(LockKey),
    /// Messages may have been lost: touch every lock that has waiters here.
    Resync,
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
