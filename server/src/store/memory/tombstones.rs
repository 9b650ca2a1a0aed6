//! Tombstones, which reject cancelled attempts and released entries that arrive late.

use super::context::Context;
use crate::lock::{AttemptId, RequestHash, TOMBSTONE_MS};

/// Key of a tombstone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TombstoneKey {
    /// Attempt that was cancelled, possibly before it arrived.
    Attempt(AttemptId),
    /// Request whose entry was released.
    Request(RequestHash),
}

/// Newest tombstones, each with the end of its retention.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Tombstones(Vec<(TombstoneKey, u64)>);

impl Tombstones {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, dead: TombstoneKey, now: u64) -> bool {
        self.0.iter().any(|t| t.0 == dead && t.1 > now)
    }

    pub(super) fn insert(&mut self, dead: TombstoneKey, context: &Context) {
        let now = context.now();
        self.0.retain(|t| t.1 > now && t.0 != dead);
        self.0.push((dead, now + TOMBSTONE_MS));
        let surplus = self.0.len().saturating_sub(context.bounds.tombstones_max);
        self.0.drain(..surplus);
    }
}
