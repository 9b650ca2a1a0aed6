//! Modes in which holders share a lock. One rule applies to every mode: each holder has a weight,
//! the lock has a limit, and the weights of all holders never exceed the limit.

/// Limit of exclusive and shared locks, and weight of an exclusive holder.
pub const EXCLUSIVE_WEIGHT: u32 = 1 << 30;
/// Largest limit of a semaphore.
pub const PERMITS_MAX: u32 = 1_000;
/// Maximum number of holders of one lock. Further callers wait.
pub const HOLDERS_MAX: u32 = 1_000;

/// Mode in which a call acquires a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder at a time.
    Exclusive,
    /// Any number of holders up to [`HOLDERS_MAX`], none of them exclusive.
    Shared,
    /// Some of the permits of a semaphore.
    Semaphore {
        /// Number of requested permits; at least 1.
        permits: u32,
        /// Limit of the semaphore, 1 to [`PERMITS_MAX`]; 0 selects the limit in use.
        limit: u32,
    },
}

impl Mode {
    /// Returns the share of the limit that a holder uses.
    pub const fn weight(self) -> u32 {
        match self {
            Self::Exclusive => EXCLUSIVE_WEIGHT,
            Self::Shared => 1,
            Self::Semaphore { permits, .. } => permits,
        }
    }

    /// Returns the limit that the lock must have; 0 selects the limit in use.
    pub const fn limit(self) -> u32 {
        match self {
            Self::Exclusive | Self::Shared => EXCLUSIVE_WEIGHT,
            Self::Semaphore { limit, .. } => limit,
        }
    }

    /// Returns the mode of a holder with `weight` of a lock with `limit`.
    pub const fn from_stored(weight: u32, limit: u32) -> Self {
        match (weight, limit) {
            (EXCLUSIVE_WEIGHT, _) => Self::Exclusive,
            (_, EXCLUSIVE_WEIGHT) => Self::Shared,
            (permits, limit) => Self::Semaphore { permits, limit },
        }
    }
}
