//! Context of a command: the time, the broker, the era and the limits, passed to a record as an
//! argument.

use crate::{
    lock::{
        ATTEMPTS_MAX, BrokerId, ENTRIES_MAX, EXPIRED_MAX, HOLDERS_MAX, RELEASED_MAX,
        TOMBSTONES_MAX, WAITERS_MAX,
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
