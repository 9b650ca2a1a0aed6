//! A node: one Redis server with its clock, its era and its snapshots.

use super::broker::VerifiedEra;
use crate::model::store::{ModelStore, QUARANTINE_MS};

/// Largest distance of a proposed token from the clock of a node. A node that has lost its newest
/// token does not vote for more than twice this time.
pub const MAX_CLOCK_SKEW_MS: u64 = (QUARANTINE_MS - 1_000) / 2;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub store: ModelStore,
    /// Time by which the clock of the node is ahead.
    pub clock_offset_us: i64,
    /// Time of the last restart.
    pub restarted_at_us: Option<u64>,
}

impl Node {
    /// Returns the time of the node's clock.
    #[must_use]
    pub fn clock_us(&self, now_us: u64) -> u64 {
        now_us.saturating_add_signed(self.clock_offset_us)
    }

    /// Returns the era of the node.
    #[must_use]
    pub fn era(&self) -> VerifiedEra {
        VerifiedEra {
            era: self.store.era,
            no_grants_before_ms: self.store.no_grants_before_ms,
        }
    }

    /// Returns true if the node may still lack data that it lost in a restart.
    #[must_use]
    pub fn is_recovering(&self, now_us: u64) -> bool {
        let quarantine_us = QUARANTINE_MS * 1_000;
        self.restarted_at_us
            .is_some_and(|restarted_us| now_us < restarted_us + quarantine_us)
    }
}
