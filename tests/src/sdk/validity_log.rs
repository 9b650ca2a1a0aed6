//! Log of the validity of a guard of the Rust client, which is read every 10 ms.

use std::time::Duration;

use leasehold::{Held, LostReason};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::boottime;

const READ_INTERVAL: Duration = Duration::from_millis(10);
/// Upper bound of the difference between two readings of the same end.
const SAME_EXPIRY_TOLERANCE: Duration = Duration::from_millis(50);

/// A confirmed grant or renewal.
#[derive(Debug, Clone, Copy)]
pub struct Confirmation {
    /// Upper bound of the time at which the confirmation arrived.
    pub at: Duration,
    /// End of the validity after the confirmation.
    pub valid_until: Duration,
}

/// Validity of a guard from the grant to its loss.
#[derive(Debug)]
pub struct ValidityLog {
    /// Confirmations, beginning with the grant.
    pub confirmations: Vec<Confirmation>,
    /// Time at which the loss was reported.
    pub lost_at: Duration,
    /// Reason of the loss.
    pub lost_reason: LostReason,
}

impl ValidityLog {
    /// Reads the validity of a guard until the guard reports its loss.
    pub async fn record_until_lost(held: Held) -> Self {
        let mut confirmed: Vec<Confirmation> = Vec::new();
        let mut looks = interval(READ_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let reason = loop {
            tokio::select! {
                biased;
                reason = held.lost() => break reason,
                _ = looks.tick() => {
                    let valid_until = boottime() + held.remaining();
                    let at = boottime();
                    let is_new = confirmed.last().is_none_or(|last| {
                        valid_until > last.valid_until + SAME_EXPIRY_TOLERANCE
                    });
                    if is_new && held.is_valid() {
                        confirmed.push(Confirmation { at, valid_until });
                    }
                }
            }
        };
        let lost = boottime();
        assert!(!held.is_valid(), "lost, and trusted");
        Self {
            confirmations: confirmed,
            lost_at: lost,
            lost_reason: reason,
        }
    }

    /// Returns the last confirmation.
    #[must_use]
    pub fn last_confirmation(&self) -> Confirmation {
        *self.confirmations.last().expect("it was trusted once")
    }
}
