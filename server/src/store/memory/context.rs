//! Context of a command: the time, the broker, the era and the limits, passed to a record as an
//! argument.

use crate::{
    lock::{
        ATTEMPTS_MAX, BrokerId, CUT_TTL_MIN_MS, ENTRIES_MAX, EXPIRED_MAX, FencingToken,
        HOLDERS_MAX, RELEASED_MAX, SPAN_MIN_MS, SPAN_RETRY_MS, TOMBSTONES_MAX, WAITERS_MAX,
        cut_ttl_ms, span_ms,
    },
    store::Rejected,
};

/// Inputs of a command besides its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// Time of the store's clock, in microseconds since 1970.
    pub now_us: u64,
    /// Broker that sent the command.
    pub broker: BrokerId,
    /// Deadline of the command, in milliseconds since 1970. Later commands are rejected.
    pub not_after_ms: u64,
    /// Permission of the era to grant locks.
    pub grants: Grants,
    pub span_limit: SpanLimit,
    /// Token of an earlier era that is ahead of the store's clock. Each grant has a larger one.
    pub token_floor: Option<FencingToken>,
    pub bounds: Bounds,
}

/// Bounds of a record. Tests lower them, so that short sequences reach them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Maximum number of waiters of the lock.
    pub waiters_max: u32,
    /// Maximum number of holders of the lock.
    pub holders_max: usize,
    /// Maximum number of entries of a lease.
    pub entries_max: usize,
    /// Maximum number of listed attempts of a request.
    pub attempts_max: usize,
    /// Maximum number of holder slots that one touch reads.
    pub touch_slots_max: usize,
    /// Maximum number of holders that one command expires.
    pub expirations_max: usize,
    /// Maximum number of tombstones.
    pub tombstones_max: usize,
    /// Number of released leases that are retained regardless of their age.
    pub released_max: u64,
    /// Maximum number of expired leases that are retained.
    pub expired_max: u64,
}

/// Permission of the era to make new grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grants {
    /// No grants before this time, in milliseconds since 1970.
    NotBefore(u64),
    /// No grants at all, because the era is not the one that the broker verified.
    Never,
}

/// Limit of the spans of leases ([`span_ms`]): no grant and no renewal may have a longer span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanLimit {
    /// No limit.
    None,
    /// [`SPAN_MIN_MS`], because the store has no era.
    Min,
    /// A limit that changes at a time, or has changed then.
    Changing {
        before_ms: u64,
        after_ms: u64,
        /// Time of the change, in milliseconds since 1970.
        at_ms: u64,
    },
}

impl SpanLimit {
    /// Returns the usable limit, which is at least [`SPAN_MIN_MS`]. While a change is pending both
    /// limits apply. `None` if there is no limit.
    pub fn usable_ms(self, now_ms: u64) -> Option<u64> {
        let limit_ms = match self {
            Self::None => return None,
            Self::Min => SPAN_MIN_MS,
            Self::Changing {
                before_ms,
                after_ms,
                at_ms,
            } if now_ms < at_ms => before_ms.min(after_ms),
            Self::Changing { after_ms, .. } => after_ms,
        };
        Some(limit_ms.max(SPAN_MIN_MS))
    }

    fn retry_after_ms(self, now_ms: u64) -> u64 {
        match self {
            Self::Changing { at_ms, .. } if now_ms < at_ms => at_ms - now_ms,
            Self::None | Self::Min | Self::Changing { .. } => SPAN_RETRY_MS,
        }
    }
}

impl Default for Bounds {
    /// Returns the bounds of the product, with as many slots and expirations per command as a lock
    /// has holders.
    fn default() -> Self {
        Self {
            waiters_max: WAITERS_MAX,
            holders_max: HOLDERS_MAX as usize,
            entries_max: ENTRIES_MAX,
            attempts_max: ATTEMPTS_MAX,
            touch_slots_max: HOLDERS_MAX as usize,
            expirations_max: HOLDERS_MAX as usize,
            tombstones_max: TOMBSTONES_MAX,
            released_max: RELEASED_MAX,
            expired_max: EXPIRED_MAX,
        }
    }
}

impl Context {
    pub(super) fn now(&self) -> u64 {
        self.now_us / 1_000
    }

    /// Returns the token of a grant. `last` is the previous token of the lock, or 0 if there is none.
    pub(super) fn token_after(&self, last: u64) -> FencingToken {
        let floor = self.token_floor.map_or(0, FencingToken::get);
        FencingToken::after(last.max(floor), self.now_us)
    }

    pub(super) fn check_deadline(&self) -> Result<(), Rejected> {
        if self.now() > self.not_after_ms {
            Err(Rejected::DeadlinePassed)
        } else {
            Ok(())
        }
    }

    /// Returns true if the store has lost data since this time, and with them perhaps writes about a
    /// hold that began then.
    pub(super) fn has_lost_data_since(&self, since_ms: u64) -> bool {
        match self.grants {
            Grants::Never => true,
            Grants::NotBefore(ms) => since_ms < ms,
        }
    }

    /// Rejects a command if the broker has not verified the era, so that its effect may be lost.
    pub(super) fn check_known_era(&self) -> Result<(), Rejected> {
        match self.grants {
            Grants::Never => Err(Rejected::NoEra),
            Grants::NotBefore(_) => Ok(()),
        }
    }

    /// Returns the ttl, cut by the limit of spans, but not below [`CUT_TTL_MIN_MS`].
    pub(super) fn cut_ttl_ms(&self, ttl_ms: u64, lock_delay_ms: u64) -> u64 {
        let limit_ms = self.span_limit.usable_ms(self.now()).unwrap_or(u64::MAX);
        cut_ttl_ms(ttl_ms, lock_delay_ms, limit_ms)
    }

    /// Rejects a grant or renewal if even a ttl cut to [`CUT_TTL_MIN_MS`] has a span over the limit.
    pub(super) fn check_span(&self, ttl_ms: u64, lock_delay_ms: u64) -> Result<(), Rejected> {
        let least_ms = span_ms(ttl_ms.min(CUT_TTL_MIN_MS), lock_delay_ms);
        match self.span_limit.usable_ms(self.now()) {
            Some(limit_ms) if least_ms > limit_ms => Err(Rejected::SpanLimit {
                retry_after_ms: self.span_limit.retry_after_ms(self.now()),
            }),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn check_era(&self) -> Result<(), Rejected> {
        match self.grants {
            Grants::Never => Err(Rejected::NoEra),
            Grants::NotBefore(ms) if self.now() < ms => Err(Rejected::Recovering {
                retry_after_ms: ms - self.now(),
            }),
            Grants::NotBefore(_) => Ok(()),
        }
    }
}
