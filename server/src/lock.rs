//! The domain: what a lock, a lease and a call are. No I/O; everything here was parsed once, at the edge.

mod call;
mod error;
mod filter;
mod identity;
mod lease;
mod mode;
mod name;
mod stream;
mod trace;

pub use call::{Acquire, AcquireCall, Force, Release, Revoke, Target, Under};
pub use error::{Bound, Failed, LockError, Quota};
pub use filter::Filter;
pub use identity::{
    ArgumentsHash, AttemptId, BrokerId, DeploymentKey, LeaseId, LeaseToken, RequestHash, RequestId,
};
pub use lease::{Grant, HeldLock, Lease, LeaseRef, ShownLease};
pub use mode::{HOLDERS_MAX, Mode, PERMITS_MAX, WHOLE};
pub use name::{LockKey, LockName, NAME_MAX_BYTES, Namespace, encode};
pub use stream::{Attachment, StreamId, Via};
pub use trace::TraceParent;

/// Waiters of one lock; one more is `QUEUE_FULL`.
pub const WAITERS_MAX: u32 = 10_000;
/// How many holders or waiters an inspection shows at most.
pub const SHOWN_MAX: usize = 100;
/// How many holders a refused call is told of at most, out of the first [`HELD_SLOTS`] slots.
pub const HELD_SHOWN: usize = 5;
/// How far a refused call looks for holders.
pub const HELD_SLOTS: usize = 16;
/// How long a hand-off to another broker stands before it must be claimed.
pub const CLAIM_MS: u64 = 3_000;
/// A broker that has not touched a lock for so long, while others did, is silent.
pub const SILENT_MS: u64 = 6_000;
/// A gap between any two touches above this is a stall of the store, and nobody's silence.
pub const STALL_MS: u64 = 3_000;
/// How long an attempt that was cancelled before it arrived, or an entry that was released, is known.
pub const TOMBSTONE_MS: u64 = 2_000;
/// How long an expired lease is remembered.
pub const EXPIRED_MS: u64 = 60_000;
/// How many expired leases of one lock are remembered.
pub const EXPIRED_MAX: u64 = 1_000;
/// How many released leases of one lock are remembered, however old.
pub const RELEASED_MAX: u64 = 16;
/// Locks of one lease.
pub const LOCKS_MAX: usize = 64;
/// How often a lease may enter the same lock.
pub const ENTRIES_MAX: usize = 64;
/// Attempts of one request that the record keeps.
pub const ATTEMPTS_MAX: usize = 8;
/// How long an idle lock's record is kept: its last fencing token covers small steps of the clock.
pub const KEEP_MS: u64 = 300_000;
/// The same of a lock whose limit was set.
pub const SET_KEEP_MS: u64 = 86_400_000;
/// How often the client of a stream sends heartbeats at least while a call waits on it.
pub const HEARTBEAT_WHILE_WAITING_MS: u64 = 2_000;
/// Heartbeats in one validity.
const HEARTBEATS_PER_TTL: u64 = 3;
/// How far ahead of its sending a command may still be executed.
pub const NOT_AFTER_MS: u64 = 800;

/// The store's expiry for a validity of `ttl_ms`: `E(ttl) = ttl * 1.20 + 250 ms`.
///
/// 1.20 covers two hosts that each slew their clock by chrony's legal 8.3 % in opposite directions
/// (`maxslewrate`, chrony.conf(5)).
pub const fn expiry_ms(ttl_ms: u64) -> u64 {
    ttl_ms.saturating_add(ttl_ms / 5).saturating_add(250)
}

/// A lease's validity in milliseconds, within the bounds of [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(u64);

impl Ttl {
    /// Milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How often to send heartbeats for a lease, in milliseconds.
    pub const fn heartbeat_interval_ms(self) -> u64 {
        self.0 / HEARTBEATS_PER_TTL
    }

    /// A ttl that a store has kept; its bounds were checked when it was granted.
    pub const fn from_stored(ttl_ms: u64) -> Self {
        Self(ttl_ms)
    }
}

/// What a call asks for besides the ttl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// The longest that the lock may be held in all, however often the lease is renewed; 0: any time.
    pub max_hold_ms: u64,
    /// How long the whole lock stays closed after the lease expired; 0: not at all.
    pub lock_delay_ms: u64,
    /// How long after its stream broke the lease ends; `None`: it runs out.
    pub disconnect_grace_ms: Option<u64>,
}

impl Terms {
    /// The validity of a new lease.
    pub fn cut(self, ttl: Ttl) -> Ttl {
        match self.max_hold_ms {
            0 => ttl,
            max_hold_ms => Ttl(ttl.0.min(max_hold_ms)),
        }
    }
}

/// The bounds of what callers may ask for, all in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The shortest validity.
    pub ttl_min_ms: u64,
    /// The longest validity.
    pub ttl_max_ms: u64,
    /// The validity of a call that names none.
    pub ttl_default_ms: u64,
    /// The longest wait in line.
    pub wait_max_ms: u64,
    /// The longest lock_delay.
    pub lock_delay_max_ms: u64,
    /// The longest max_hold, and that of a call that names none.
    pub max_hold_max_ms: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ttl_min_ms: 1_000,
            ttl_max_ms: 60_000,
            ttl_default_ms: 10_000,
            wait_max_ms: 3_600_000,
            lock_delay_max_ms: 10_000,
            max_hold_max_ms: None,
        }
    }
}

impl Limits {
    /// Clamps a wished validity; `None` is the default.
    pub fn ttl(&self, wished_ms: Option<u64>) -> Ttl {
        Ttl(wished_ms
            .unwrap_or(self.ttl_default_ms)
            .clamp(self.ttl_min_ms, self.ttl_max_ms))
    }

    /// Cuts a wished max_hold. `None` is any time.
    pub fn max_hold_ms(&self, wished_ms: Option<u64>) -> Option<u64> {
        let max_ms = self.max_hold_max_ms;
        wished_ms
            .map(|wished_ms| wished_ms.min(max_ms.unwrap_or(u64::MAX)))
            .or(max_ms)
    }

    /// Clamps a wished wait.
    pub fn wait_ms(&self, wished_ms: u64) -> u64 {
        wished_ms.min(self.wait_max_ms)
    }
}

/// The token that orders the grants of one lock: 1 to 2^53 - 1, exact in every language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The largest token: 2^53 - 1.
    pub const MAX: u64 = (1 << 53) - 1;

    /// `None` outside 1 to 2^53 - 1.
    pub fn new(value: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&value).then_some(Self(value))
    }

    /// The token of a grant at this time, in microseconds since 1970, after one of token `last` (0:
    /// none): above all earlier ones even if the clock was set back, or the record was lost.
    pub fn after(last: u64, now_us: u64) -> Self {
        Self(now_us.max(last + 1))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Who asks, as people see it; never decides ownership. At most 1 KiB encoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// A stable name of the process.
    pub id: String,
    /// Why the lock is taken.
    pub reason: String,
    /// Free labels, in the order of their keys.
    pub labels: Vec<(String, String)>,
    /// The span of the call, where it is recorded: for those who wait, shown to nobody.
    pub trace: Option<TraceParent>,
}

/// A holder as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The lease.
    pub lease_id: LeaseId,
    /// Who.
    pub owner: Owner,
    /// How it holds the lock.
    pub mode: Mode,
    /// Its token.
    pub fencing_token: FencingToken,
    /// When it was granted, in milliseconds since 1970.
    pub since_ms: u64,
    /// Time left in the store.
    pub remaining_ms: u64,
}

/// A waiter as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its place: those of waiters before it are lower.
    pub place: u64,
    /// Who.
    pub owner: Owner,
    /// How it wants to hold the lock.
    pub mode: Mode,
    /// When it joined, in milliseconds since 1970.
    pub since_ms: u64,
    /// Time left to wait.
    pub remaining_ms: u64,
}

/// What is in the way of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contention {
    /// Some who hold the lock; none while it is between two holders.
    pub holders: Vec<Holder>,
    /// How many wait.
    pub queue_length: u32,
    /// For how long the lock is closed by a lock_delay; 0: it is not.
    pub closed_ms: u64,
}

/// A lock as an inspection sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockState {
    /// Who holds it, in no order, at most [`SHOWN_MAX`].
    pub holders: Vec<Holder>,
    /// How many hold it in all.
    pub holder_count: u32,
    /// The first waiters in order, at most [`SHOWN_MAX`].
    pub waiters: Vec<Waiting>,
    /// How many wait in all.
    pub queue_length: u32,
    /// For how long the lock is closed by a lock_delay; 0: it is not.
    pub closed_ms: u64,
    /// The newest token given; 0 before the first.
    pub last_fencing_token: u64,
}

impl LockState {
    /// Nobody holds it or waits for it, and no lock_delay closes it.
    pub fn is_idle(&self) -> bool {
        self.holder_count == 0 && self.queue_length == 0 && self.closed_ms == 0
    }
}
