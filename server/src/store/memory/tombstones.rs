//! What was taken back, maybe before it came: it is refused when it arrives late.

use crate::lock::{AttemptId, RequestHash, TOMBSTONE_MS};

/// How many a record remembers.
const TOMBSTONES_MAX: usize = 256;

/// One that was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dead {
    /// Cancelled.
    Attempt(AttemptId),
    /// Its entry was released.
    Request(RequestHash),
}

/// The newest, each with the time until which it is refused.
#[derive(Debug, Default)]
pub(super) struct Tombstones(Vec<(Dead, u64)>);

impl Tombstones {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn knows(&self, dead: Dead, now: u64) -> bool {
        self.0.iter().any(|t| t.0 == dead && t.1 > now)
    }

    pub(super) fn bury(&mut self, dead: Dead, now: u64) {
        self.0.retain(|t| t.1 > now && t.0 != dead);
        self.0.push((dead, now + TOMBSTONE_MS));
        let surplus = self.0.len().saturating_sub(TOMBSTONES_MAX);
        self.0.drain(..surplus);
    }
}
