//! What a guard of the Rust client says of its own validity when it is asked again and again.

use std::time::Duration;

use leasehold::{Held, LostReason};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::boottime;

const EVERY: Duration = Duration::from_millis(10);
/// Two readings of the same end differ by less.
const SAME: Duration = Duration::from_millis(50);

/// A confirmation, as it was seen.
#[derive(Debug, Clone, Copy)]
pub struct Confirmed {
    /// When it had come, at the latest.
    pub at: Duration,
    /// Until when it let the guard be trusted.
    pub until: Duration,
}

/// Until the loss.
#[derive(Debug)]
pub struct TrustLog {
    /// The first is the grant's.
    pub confirmed: Vec<Confirmed>,
    /// When the loss was reported.
    pub lost: Duration,
    /// Why.
    pub why: LostReason,
}

impl TrustLog {
    /// Follows a guard until it reports its loss.
    pub async fn follow(held: Held) -> Self {
        let mut confirmed: Vec<Confirmed> = Vec::new();
        let mut looks = interval(EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let why = loop {
            tokio::select! {
                biased;
                why = held.lost() => break why,
                _ = looks.tick() => {
                    let until = boottime() + held.remaining();
                    let at = boottime();
                    let is_new = confirmed.last().is_none_or(|last| until > last.until + SAME);
                    if is_new && held.is_valid() {
                        confirmed.push(Confirmed { at, until });
                    }
                }
            }
        };
        let lost = boottime();
        assert!(!held.is_valid(), "lost, and trusted");
        Self {
            confirmed,
            lost,
            why,
        }
    }

    /// The last confirmation that came.
    #[must_use]
    pub fn last(&self) -> Confirmed {
        *self.confirmed.last().expect("it was trusted once")
    }
}
