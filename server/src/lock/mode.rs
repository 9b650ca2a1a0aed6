//! How holders share a lock. One rule for every mode: a holder has a weight, the lock a limit, and the
//! weights of its holders never exceed it.

/// The limit of exclusive and shared locks, and the weight of an exclusive holder.
pub const WHOLE: u32 = 1 << 30;
/// The largest limit of a semaphore.
pub const PERMITS_MAX: u32 = 1_000;
/// Holders of one lock; the others wait.
pub const HOLDERS_MAX: u32 = 1_000;

/// How a call wants to hold a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Beside others, none of them exclusive.
    Shared,
    /// With some of the permits of a pool.
    Semaphore {
        /// How many; at least 1.
        permits: u32,
        /// The size of the pool, 1 to [`PERMITS_MAX`]; 0 is the one in use.
        limit: u32,
    },
}

impl Mode {
    /// What a holder takes of the limit.
    pub const fn weight(self) -> u32 {
        match self {
            Self::Exclusive => WHOLE,
            Self::Shared => 1,
            Self::Semaphore { permits, .. } => permits,
        }
    }

    /// The limit that the lock must have; 0 is the one in use.
    pub const fn limit(self) -> u32 {
        match self {
            Self::Exclusive | Self::Shared => WHOLE,
            Self::Semaphore { limit, .. } => limit,
        }
    }

    /// The mode of a holder of this weight under this limit.
    pub const fn from_stored(weight: u32, limit: u32) -> Self {
        match (weight, limit) {
            (WHOLE, _) => Self::Exclusive,
            (_, WHOLE) => Self::Shared,
            (permits, limit) => Self::Semaphore { permits, limit },
        }
    }
}
