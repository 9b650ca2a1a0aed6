//! Permission that each call and message needs. An entry without a row fails the tests, so that new
//! entries get one.

use super::{api_entries::ApiEntry, roles::Permission};

/// The permission that a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredPermission {
    /// This permission, for every lock that the request names.
    EachLock(Permission),
    /// Permission to list. The results contain only the locks for which the caller has it.
    ListedLocks,
    /// No permission: the message names no lock.
    Nothing,
}

const REQUIRED_PERMISSIONS: &[(&str, RequiredPermission)] = &[
    (
        "LockService.Acquire",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    (
        "LockService.AcquireAll",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    (
        "LockService.Release",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    (
        "LockService.Renew",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    (
        "LockService.Hold/acquire",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    (
        "LockService.Hold/acquire_all",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    ("LockService.Hold/cancel", RequiredPermission::Nothing),
    (
        "LockService.Hold/attach",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    ("LockService.Hold/heartbeat", RequiredPermission::Nothing),
    (
        "LockService.Hold/release",
        RequiredPermission::EachLock(Permission::Acquire),
    ),
    ("LockService.Hold/detach", RequiredPermission::Nothing),
    ("LockService.Hold/close", RequiredPermission::Nothing),
    (
        "LockService.Hold/refresh_credential",
        RequiredPermission::Nothing,
    ),
    (
        "LockService.CheckFencingToken",
        RequiredPermission::EachLock(Permission::Observe),
    ),
    (
        "LockService.SetLockLimit",
        RequiredPermission::EachLock(Permission::SetLimit),
    ),
    (
        "InspectionService.GetLock",
        RequiredPermission::EachLock(Permission::Observe),
    ),
    (
        "InspectionService.ListLocks",
        RequiredPermission::ListedLocks,
    ),
    (
        "InspectionService.WatchLocks",
        RequiredPermission::ListedLocks,
    ),
    (
        "AdminService.ForceReleaseLease",
        RequiredPermission::EachLock(Permission::ForceRelease),
    ),
    (
        "AdminService.CloseLock",
        RequiredPermission::EachLock(Permission::Admin),
    ),
    (
        "AdminService.OpenLock",
        RequiredPermission::EachLock(Permission::Admin),
    ),
];

/// Returns the permission that an entry needs.
#[must_use]
pub fn required_permission(entry: &ApiEntry) -> RequiredPermission {
    let name = &entry.name;
    let row = REQUIRED_PERMISSIONS.iter().find(|(known, _)| known == name);
    let (_, needs) = row.unwrap_or_else(|| panic!("{name}: no row says what it needs"));
    *needs
}

/// Returns the rows of entries that no longer exist.
pub fn unused_rows(entries: &[ApiEntry]) -> Vec<&'static str> {
    let rows = REQUIRED_PERMISSIONS.iter().map(|(name, _)| *name);
    let is_there = |name: &&str| entries.iter().any(|entry| entry.name == *name);
    rows.filter(|name| !is_there(name)).collect()
}
