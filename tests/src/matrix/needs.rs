//! What each call and message needs. One without a row ends the tests: whoever adds one says what it
//! needs.

use super::{roles::Verb, walk::Entry};

/// What a caller must be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// This, of every lock that it names.
    Verb(Verb),
    /// To list; then it finds what it may.
    Finds,
    /// It names no lock.
    Nothing,
}

const ROWS: &[(&str, Needs)] = &[
    ("LockService.Acquire", Needs::Verb(Verb::Acquire)),
    ("LockService.AcquireAll", Needs::Verb(Verb::Acquire)),
    ("LockService.Release", Needs::Verb(Verb::Acquire)),
    ("LockService.Renew", Needs::Verb(Verb::Acquire)),
    ("LockService.Hold/acquire", Needs::Verb(Verb::Acquire)),
    ("LockService.Hold/acquire_all", Needs::Verb(Verb::Acquire)),
    ("LockService.Hold/cancel", Needs::Nothing),
    ("LockService.Hold/attach", Needs::Verb(Verb::Acquire)),
    ("LockService.Hold/heartbeat", Needs::Nothing),
    ("LockService.Hold/release", Needs::Verb(Verb::Acquire)),
    ("LockService.Hold/detach", Needs::Nothing),
    ("LockService.Hold/close", Needs::Nothing),
    ("LockService.Hold/refresh_credential", Needs::Nothing),
    ("LockService.CheckFencingToken", Needs::Verb(Verb::Observe)),
    ("InspectionService.GetLock", Needs::Verb(Verb::Observe)),
    ("InspectionService.ListLocks", Needs::Finds),
    ("InspectionService.WatchLocks", Needs::Finds),
    (
        "AdminService.ForceReleaseLease",
        Needs::Verb(Verb::ForceRelease),
    ),
    ("AdminService.SetLockLimit", Needs::Verb(Verb::Admin)),
];

/// What an entry needs.
#[must_use]
pub fn needs(entry: &Entry) -> Needs {
    let name = &entry.name;
    let row = ROWS.iter().find(|(known, _)| known == name);
    let (_, needs) = row.unwrap_or_else(|| panic!("{name}: no row says what it needs"));
    *needs
}

/// The rows of calls that are no more.
pub fn left_over(entries: &[Entry]) -> Vec<&'static str> {
    let rows = ROWS.iter().map(|(name, _)| *name);
    let is_there = |name: &&str| entries.iter().any(|entry| entry.name == *name);
    rows.filter(|name| !is_there(name)).collect()
}
