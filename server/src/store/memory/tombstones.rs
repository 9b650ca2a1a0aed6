//! Tombstones, which reject cancelled attempts and released entries that arrive late.

use crate::lock::{AttemptId, RequestHash, TOMBSTONE_MS};

/// Maximum number of tombstones of a record.
const TOMBSTONES_MAX: usize = 256;

/// Key of a tombstone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TombstoneKey {
    /// Attempt that was cancelled, possibly before it arrived.
    Attempt(AttemptId),
    /// Request whose entry was released.
    Request(RequestHash),
}

/// Newest tombstones, each with the end of its retention.
#[derive(Debug, Default)]
pub(super) struct Tombstones(Vec<(TombstoneKey, u64)>);

impl Tombstones {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, dead: TombstoneKey, now: u64) -> bool {
        self.0.iter().any(|t| t.0 == dead && t.1 > now)
    }

    pub(super) fn insert(&mut self, dead: TombstoneKey, now: u64) {
        self.0.retain(|t| t.1 > now && t.0 != dead);
        self.0.push((dead, now + TOMBSTONE_MS));
        let surplus = self.0.len().saturating_sub(TOMBSTONES_MAX);
        self.0.drain(..surplus);
    }
}
