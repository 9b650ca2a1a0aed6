//! Closures: periods in which a lock grants nothing new.

use std::{fmt, time::Duration};

use super::{LockKey, Owner};

/// Cause of a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClosureCause {
    /// The `lock_delay` of a lease that expired or was revoked.
    LockDelay,
    /// The `at_least` of a lease that has ended.
    AtLeast,
    /// A command of an operator.
    Operator,
}

/// A period in which a lock grants nothing new. Leases that hold the lock keep it, and waiters keep
/// their queue positions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Closure {
    pub cause: ClosureCause,
    /// End of the period by the store's clock, in milliseconds since 1970.
    pub until_ms: u64,
    /// Owner of the lease that has ended, or the operator, with the reason of either.
    pub owner: Owner,
}

/// A closure that is in effect, as reported to callers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActiveClosure {
    pub closure: Closure,
    /// Time until the end of the period.
    pub remaining_ms: u64,
}

/// An operator's command to close a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CloseCommand {
    pub lock: LockKey,
    /// Time until which the lock is closed, in milliseconds since 1970.
    pub until_ms: u64,
    /// The operator, with the reason for closing the lock.
    pub operator: Owner,
}

/// Writes what closed the lock, such as `an operator`.
impl fmt::Display for ClosureCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::LockDelay => "the lock_delay of a lease",
            Self::AtLeast => "the at_least of a lease",
            Self::Operator => "an operator",
        })
    }
}

/// Writes the cause and the remaining time, without the owner, who may be redacted.
impl fmt::Display for ActiveClosure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = self.closure.cause;
        let seconds = self.remaining_ms.div_ceil(1_000);
        let remaining = humantime::format_duration(Duration::from_secs(seconds));
        write!(formatter, "closed by {cause} for another {remaining}")
    }
}

impl ActiveClosure {
    /// Removes the owner, for callers that may not observe the lock.
    pub fn redact(&mut self) {
        self.closure.owner = Owner::default();
    }
}

impl Closure {
    /// Returns the closure if it is in effect at `now_ms`, in milliseconds since 1970.
    pub fn active_at(&self, now_ms: u64) -> Option<ActiveClosure> {
        let remaining_ms = self.until_ms.saturating_sub(now_ms);
        (remaining_ms > 0).then(|| ActiveClosure {
            closure: self.clone(),
            remaining_ms,
        })
    }
}
