//! Domain types: locks, leases, calls and their limits. Performs no I/O; all values were validated
//! where they entered the process.

mod call;
mod closure;
mod error;
mod fencing_token;
mod filter;
mod identity;
mod lease;
mod mode;
mod name;
mod recovery;
mod stream;
mod trace;

pub use call::{
    AcquireCall, AcquireCommand, LeaseBinding, ReleaseScope, RevokeCommand, RevokeMode, Target,
};
pub use closure::{ActiveClosure, CloseCommand, Closure, ClosureCause};
pub use error::{Bound, LockError, LockFailure, QuotaExceeded};
pub use fencing_token::FencingToken;
pub use filter::Filter;
pub use identity::{
    ArgumentsHash, AttemptId, BrokerId, DeploymentKey, LeaseId, LeaseToken, RequestHash, RequestId,
};
pub use lease::{Grant, HeldLock, Lease, LeaseRef, PresentedLease};
pub use mode::{EXCLUSIVE_WEIGHT, HOLDERS_MAX, Mode, PERMITS_MAX};
pub use name::{LockKey, LockName, NAME_MAX_BYTES, Namespace, encode};
pub use recovery::{ActiveRecovery, Recovery, RecoveryCause, UNKNOWN_CAUSE};
pub use stream::{Attachment, ExpectedAttachment, StaleAttachment, StreamId};
pub use trace::TraceParent;

/// Maximum number of waiters of one lock. A further waiter is rejected with `QUEUE_FULL`.
pub const WAITERS_MAX: u32 = 10_000;
/// Maximum number of holders, and of waiters, that an inspection returns.
pub const INSPECT_ENTRIES_MAX: usize = 100;
/// Maximum number of holders returned to a rejected call, from the first
/// [`CONTENTION_SLOTS_SCANNED_MAX`] slots.
pub const CONTENTION_HOLDERS_MAX: usize = 5;
/// Number of holder slots that are searched for the holders returned to a rejected call.
pub const CONTENTION_SLOTS_SCANNED_MAX: usize = 16;
/// Time within which a provisional hand-off must be claimed before it lapses.
pub const PROVISIONAL_GRANT_MS: u64 = 3_000;
/// Time without a touch after which a broker counts as silent at a lock, if other brokers touched
/// the lock meanwhile.
pub const BROKER_SILENT_AFTER_MS: u64 = 6_000;
/// Gap between two touches of any brokers above which the store is assumed to have stalled. The gap
/// does not count towards the silence of any broker.
pub const TOUCH_STALL_MS: u64 = 3_000;
/// Retention of tombstones, for attempts that were cancelled before they arrived and for released
/// entries.
pub const TOMBSTONE_MS: u64 = 2_000;
/// Maximum number of tombstones of a record.
pub const TOMBSTONES_MAX: usize = 256;
/// Retention of expired leases.
pub const EXPIRED_MS: u64 = 60_000;
/// Maximum number of expired leases retained per lock.
pub const EXPIRED_MAX: u64 = 1_000;
/// Number of released leases retained per lock, regardless of their age.
pub const RELEASED_MAX: u64 = 16;
/// Maximum number of locks of one lease.
pub const LOCKS_MAX: usize = 64;
/// Maximum number of entries of one lease in one lock.
pub const ENTRIES_MAX: usize = 64;
/// Maximum number of attempts of one request in the record of a lock.
pub const ATTEMPTS_MAX: usize = 8;
/// Retention of the record of an idle lock without a set limit. The record keeps the last fencing token, so that tokens
/// rise even if the clock is set back by less than this.
pub const IDLE_RECORD_TTL_MS: u64 = 300_000;
/// Maximum interval between heartbeats of a lease stream while a call waits on the stream.
pub const HEARTBEAT_WHILE_WAITING_MS: u64 = 2_000;
/// Time for which ended leases are stored after they no longer count, so that setting the clock
/// back by less changes no reply.
pub const DELETION_DELAY_MS: u64 = 1_000;
/// Upper bound of the time for which the release of one lock of a lease is retained: the expiry of
/// the longest validity (one hour), rounded up.
pub const PARTIAL_RELEASE_MAX_MS: u64 = 4_330_000;
/// Maximum number of brokers that a node of a RedLock store notifies when a lock becomes free.
pub const RELEASE_SUBSCRIBERS_MAX: usize = 64;
/// The expiry of a lease is longer than its ttl by this part of the ttl, and by
/// [`EXPIRY_MARGIN_MS`].
pub const EXPIRY_DIVISOR: u64 = 5;
pub const EXPIRY_MARGIN_MS: u64 = 250;
/// Span that every lease may have, whatever the limit of spans is: that of a lease with a ttl of 10 s
/// and without a lock_delay.
pub const SPAN_MIN_MS: u64 = expiry_ms(10_000);
/// Validity below which the limit of spans does not cut a ttl. If this does not fit, the command is
/// rejected.
pub const CUT_TTL_MIN_MS: u64 = 1_000;
/// Time after which to repeat a command that the limit of spans has rejected, if no change of the
/// limit is pending.
pub const SPAN_RETRY_MS: u64 = 1_000;
/// Number of heartbeats per ttl.
const HEARTBEATS_PER_TTL: u64 = 3;
/// Deadline of a store command, counted from its sending. The store rejects commands that arrive
/// later.
pub const COMMAND_DEADLINE_MS: u64 = 800;

/// Returns the store's expiry for a validity of `ttl_ms`: `E(ttl) = ttl * 1.20 + 250 ms`.
///
/// The factor 1.20 covers two hosts that each slew their clock in opposite directions by 8.3 %, the
/// maximum that chrony allows (`maxslewrate`, chrony.conf(5)).
pub const fn expiry_ms(ttl_ms: u64) -> u64 {
    ttl_ms
        .saturating_add(ttl_ms / EXPIRY_DIVISOR)
        .saturating_add(EXPIRY_MARGIN_MS)
}

/// Returns the span of a lease: the time for which the lease can block its lock after a grant or
/// renewal with this ttl.
pub const fn span_ms(ttl_ms: u64, lock_delay_ms: u64) -> u64 {
    expiry_ms(ttl_ms).saturating_add(lock_delay_ms)
}

/// Returns the longest ttl with a span of at most `limit_ms`, or `None` if no ttl has one.
pub fn longest_ttl_ms(limit_ms: u64, lock_delay_ms: u64) -> Option<u64> {
    let rest_ms = limit_ms
        .checked_sub(lock_delay_ms)?
        .checked_sub(EXPIRY_MARGIN_MS)?;
    // The last of every six milliseconds is the expiry of no ttl.
    let period = EXPIRY_DIVISOR + 1;
    Some(rest_ms / period * EXPIRY_DIVISOR + (rest_ms % period).min(EXPIRY_DIVISOR - 1))
}

/// Returns the validity to which a limit of spans cuts a ttl, at least [`CUT_TTL_MIN_MS`] of it.
pub fn cut_ttl_ms(ttl_ms: u64, lock_delay_ms: u64, limit_ms: u64) -> u64 {
    let longest_ms = longest_ttl_ms(limit_ms, lock_delay_ms).unwrap_or(0);
    ttl_ms.min(longest_ms.max(CUT_TTL_MIN_MS))
}

/// The validity of a lease in milliseconds, within the bounds of [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u64);

impl Ttl {
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the interval between the heartbeats for a lease, in milliseconds.
    pub const fn heartbeat_interval_ms(self) -> u64 {
        self.0 / HEARTBEATS_PER_TTL
    }

    /// Returns a ttl read from a store. The bounds were checked when the lease was granted.
    pub const fn from_stored(ttl_ms: u64) -> Self {
        Self(ttl_ms)
    }
}

/// Options of a lease besides the ttl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LeaseOptions {
    /// Maximum time for which the lock may be held, including renewals. `None` if unlimited.
    pub max_hold_ms: Option<u64>,
    /// Time for which the lock grants nothing after the lease has expired.
    pub lock_delay_ms: u64,
    /// Time for which the lock stays closed after the grant, however the lease ends; 0 if it may be
    /// granted again at once.
    pub at_least_ms: u64,
    /// Time after which the lease ends when its stream breaks. If `None`, the lease stays valid
    /// until its expiry.
    pub disconnect_grace_ms: Option<u64>,
}

impl LeaseOptions {
    /// Returns the validity of a new lease: `ttl`, limited by `max_hold_ms`.
    pub fn effective_ttl(self, ttl: Ttl) -> Ttl {
        Ttl(ttl.0.min(self.max_hold_ms.unwrap_or(u64::MAX)))
    }
}

/// Bounds of the values that callers may request, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub ttl_min_ms: u64,
    pub ttl_max_ms: u64,
    /// Validity of a lease whose call requests none.
    pub ttl_default_ms: u64,
    /// Maximum wait in a queue.
    pub wait_max_ms: u64,
    pub lock_delay_max_ms: u64,
    pub at_least_max_ms: u64,
    /// Maximum `max_hold`, and the `max_hold` of a call that requests none.
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
            at_least_max_ms: 86_400_000,
            max_hold_max_ms: None,
        }
    }
}

impl Limits {
    /// Returns the requested validity clamped to the bounds, or the default for `None`.
    pub fn ttl(&self, requested_ms: Option<u64>) -> Ttl {
        Ttl(requested_ms
            .unwrap_or(self.ttl_default_ms)
            .clamp(self.ttl_min_ms, self.ttl_max_ms))
    }

    /// Returns the requested `max_hold` limited to the maximum. `None` means unlimited.
    pub fn max_hold_ms(&self, requested_ms: Option<u64>) -> Option<u64> {
        let max_ms = self.max_hold_max_ms;
        requested_ms
            .map(|requested_ms| requested_ms.min(max_ms.unwrap_or(u64::MAX)))
            .or(max_ms)
    }

    /// Returns the requested wait limited to the maximum.
    pub fn wait_ms(&self, requested_ms: u64) -> u64 {
        requested_ms.min(self.wait_max_ms)
    }
}

/// Labels by which a caller describes itself to operators. At most 1 KiB encoded; never used to
/// decide ownership.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Owner {
    /// Stable name of the process.
    pub id: String,
    /// Reason for acquiring the lock.
    pub reason: String,
    /// Free labels, in the order of their keys.
    pub labels: Vec<(String, String)>,
    /// Span of the call, if the call is sampled. The spans of waiters link to it; the API does not
    /// return it.
    pub trace: Option<TraceParent>,
}

/// A holder, as returned to other callers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    pub lease_id: LeaseId,
    pub owner: Owner,
    pub mode: Mode,
    pub fencing_token: FencingToken,
    /// Time of the grant, in milliseconds since 1970.
    pub since_ms: u64,
    /// Time until the expiry in the store.
    pub remaining_ms: u64,
}

/// A waiter, as returned to other callers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WaiterInfo {
    /// Queue sequence number: lower for waiters that joined earlier.
    pub sequence: u64,
    pub owner: Owner,
    /// Requested mode.
    pub mode: Mode,
    /// Time at which the waiter joined the queue, in milliseconds since 1970.
    pub since_ms: u64,
    /// Time until the wait times out.
    pub remaining_ms: u64,
}

/// The holders and waiters of a lock that prevent a grant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Contention {
    /// Some of the holders, at most [`CONTENTION_HOLDERS_MAX`]. Empty while the lock is between two
    /// holders.
    pub holders: Vec<Holder>,
    /// Number of waiters.
    pub queue_length: u32,
    /// Closure of the lock, if the lock is closed.
    pub closure: Option<Box<ActiveClosure>>,
}

/// The state of a lock, as returned by an inspection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LockState {
    /// Holders in no particular order, at most [`INSPECT_ENTRIES_MAX`].
    pub holders: Vec<Holder>,
    /// Number of all holders.
    pub holder_count: u32,
    /// First waiters in the order of the queue, at most [`INSPECT_ENTRIES_MAX`].
    pub waiters: Vec<WaiterInfo>,
    /// Number of all waiters.
    pub queue_length: u32,
    /// Closure of the lock, if the lock is closed.
    pub closure: Option<Box<ActiveClosure>>,
    /// Set for a semaphore that has holders or waiters, or a set limit.
    pub permit_usage: Option<PermitUsage>,
    /// Newest fencing token of the lock; 0 before the first grant.
    pub last_fencing_token: u64,
}

/// Status of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockStatus {
    /// The lock has a holder. It may be closed as well.
    Held,
    /// The lock has no holder and is closed.
    Closed,
    /// The lock has no holder and is about to be granted to a waiter.
    Granting,
    /// The lock has no holder and no waiter, and is not closed.
    Free,
}

/// The limit of a semaphore, and the permits in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PermitUsage {
    /// Limit in use.
    pub limit: u32,
    /// Permits that the holders have; more than the limit if it was lowered meanwhile.
    pub used: u32,
    /// True if the limit was set, so that callers follow it.
    pub is_limit_set: bool,
}

impl Contention {
    /// Returns true if only a closure prevents a grant.
    pub fn is_closed(&self) -> bool {
        self.holders.is_empty() && self.closure.is_some()
    }

    /// Returns the time until the lock is no longer closed; 0 if it is not closed.
    pub fn closed_ms(&self) -> u64 {
        remaining_ms(self.closure.as_deref())
    }
}

impl LockState {
    /// Returns the time until the lock is no longer closed; 0 if it is not closed.
    pub fn closed_ms(&self) -> u64 {
        remaining_ms(self.closure.as_deref())
    }

    /// Returns the status, by which a lock with a holder counts as held even if it is closed.
    pub fn status(&self) -> LockStatus {
        match (self.holder_count, self.closure.is_some(), self.queue_length) {
            (1.., _, _) => LockStatus::Held,
            (0, true, _) => LockStatus::Closed,
            (0, false, 1..) => LockStatus::Granting,
            (0, false, 0) => LockStatus::Free,
        }
    }

    /// Returns the mode of the first holder, or of the first waiter if there is no holder. A lock
    /// without either whose limit is set is a semaphore.
    pub fn mode(&self) -> Mode {
        let mut modes = self.holders.iter().map(|holder| holder.mode);
        let waiter = self.waiters.first().map(|waiter| waiter.mode);
        let semaphore = self.permit_usage.map(|usage| Mode::Semaphore {
            permits: 1,
            limit: usage.limit,
        });
        let mode = modes.next().or(waiter).or(semaphore);
        mode.unwrap_or(Mode::Exclusive)
    }

    /// Returns true if the lock has no holder and no waiter, is not closed, and has no set limit.
    pub fn is_idle(&self) -> bool {
        self.status() == LockStatus::Free
            && self.permit_usage.is_none_or(|usage| !usage.is_limit_set)
    }
}

fn remaining_ms(closure: Option<&ActiveClosure>) -> u64 {
    closure.map_or(0, |closure| closure.remaining_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_ttl_is_the_inverse_of_the_span() {
        for (limit_ms, lock_delay_ms) in (0..10_000).flat_map(|ms| [(ms, 0), (ms, 1), (ms, 777)]) {
            let fits = |ttl_ms| span_ms(ttl_ms, lock_delay_ms) <= limit_ms;
            let case = format!("{limit_ms} {lock_delay_ms}");
            match longest_ttl_ms(limit_ms, lock_delay_ms) {
                Some(ttl_ms) => assert!(fits(ttl_ms) && !fits(ttl_ms + 1), "{case}"),
                None => assert!(!fits(0), "{case}"),
            }
        }
        assert_eq!(longest_ttl_ms(SPAN_MIN_MS, 0), Some(10_000));
        assert!(longest_ttl_ms(u64::MAX, 0).is_some());
    }

    #[test]
    fn a_ttl_is_cut_to_the_limit_but_not_below_a_second() {
        assert_eq!(cut_ttl_ms(60_000, 2_250, SPAN_MIN_MS), 8_125);
        assert_eq!(cut_ttl_ms(8_000, 2_250, SPAN_MIN_MS), 8_000);
        assert_eq!(cut_ttl_ms(60_000, 12_000, SPAN_MIN_MS), 1_000);
        assert_eq!(cut_ttl_ms(700, 60_000, SPAN_MIN_MS), 700);
    }
}
