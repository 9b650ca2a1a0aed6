//! Who runs a command, when, and whether the era allows grants: all that a record is told from outside.

use crate::{lock::BrokerId, store::Refused};

/// Who runs a command, when, and whether grants are allowed.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The store's clock, in microseconds since 1970.
    pub now_us: u64,
    /// The broker that sent the command.
    pub broker: BrokerId,
    /// The command is refused after this time, in milliseconds since 1970.
    pub not_after_ms: u64,
    /// The era.
    pub grants: Grants,
    /// Waiters that the queue takes.
    pub waiters_max: u32,
    /// Holders that the lock takes.
    pub holders_max: usize,
    /// Entries that a lease takes.
    pub entries_max: usize,
    /// Attempts of a request that are listed.
    pub attempts_max: usize,
    /// Slots that one touch looks through.
    pub told_slots_max: usize,
    /// Holders that one command finds to be over.
    pub ends_max: usize,
}

/// What the era says about new grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grants {
    /// None before this time, in milliseconds since 1970.
    NotBefore(u64),
    /// None at all: the era is not the one that the broker knows.
    Never,
}

impl Context {
    pub(super) fn now(&self) -> u64 {
        self.now_us / 1_000
    }

    pub(super) fn check_late(&self) -> Result<(), Refused> {
        if self.now() > self.not_after_ms {
            Err(Refused::Late)
        } else {
            Ok(())
        }
    }

    pub(super) fn check_era(&self) -> Result<(), Refused> {
        match self.grants {
            Grants::Never => Err(Refused::NoEra),
            Grants::NotBefore(ms) if self.now() < ms => Err(Refused::Recovering {
                retry_after_ms: ms - self.now(),
            }),
            Grants::NotBefore(_) => Ok(()),
        }
    }
}
