//! Recovery of a store: the period after a loss of data in which it grants nothing new.

use std::time::Duration;

/// Name of a cause that was not recorded.
pub const UNKNOWN_CAUSE: &str = "unknown";

/// Reason for which a store recovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecoveryCause {
    /// The server was restarted with its data, of which the last writes may be missing.
    Restarted,
    /// Another server process became the master: a replica was promoted, or a master with replicas
    /// was restarted.
    Promoted,
    /// The store had no data: it lost them, or was never used.
    Emptied,
    /// The deployment key was lost, so that repeats of older calls cannot be recognized.
    KeyLost,
    /// The server violated an assumption of the guarantees, so that locks may have been lost
    /// without a trace.
    AssumptionViolated,
    /// In a cluster: another server process has the slot, because the slot moved or its server was
    /// restarted.
    SlotMoved,
    /// In a cluster: the slot was moving to another server but stayed, so that the writes of the
    /// other server may be lost.
    SlotStayed,
}

/// A period in which a store grants nothing new, because it may have lost locks. Times are those of
/// the store's clock, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// `None` if an earlier version of the broker has begun the recovery, which recorded no cause,
    /// or a later one with a new cause.
    pub cause: Option<RecoveryCause>,
    /// Beginning of the period, if it was recorded.
    pub since_ms: Option<u64>,
    /// End of the period.
    pub until_ms: u64,
}

/// A recovery that is going on, as reported to callers and operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ActiveRecovery {
    pub recovery: Recovery,
    now_ms: u64,
}

impl Recovery {
    /// Returns the recovery if it is going on at `now_ms`.
    pub fn active_at(self, now_ms: u64) -> Option<ActiveRecovery> {
        (now_ms < self.until_ms).then_some(ActiveRecovery {
            recovery: self,
            now_ms,
        })
    }

    /// Returns the name of the cause.
    pub fn cause_name(&self) -> &'static str {
        self.cause.map_or(UNKNOWN_CAUSE, RecoveryCause::name)
    }
}

impl ActiveRecovery {
    /// Returns the time until the end, by the store's clock.
    pub fn remaining_ms(&self) -> u64 {
        self.recovery.until_ms.saturating_sub(self.now_ms)
    }

    /// Returns what happened to the store, as the rest of a sentence about it.
    pub fn event(&self) -> &'static str {
        match self.recovery.cause {
            Some(RecoveryCause::Restarted) => "was restarted",
            Some(RecoveryCause::Promoted) => "was promoted or restarted",
            Some(RecoveryCause::Emptied) => "was found empty",
            Some(RecoveryCause::KeyLost) => "was found without its deployment key",
            Some(RecoveryCause::AssumptionViolated) => {
                "was found to evict keys or to step its clock"
            }
            Some(RecoveryCause::SlotMoved) => "moved the slot of the lock or was restarted",
            Some(RecoveryCause::SlotStayed) => "ended a migration of the lock's slot",
            None => "began to recover for an unknown reason",
        }
    }

    /// Returns the sentence for people about the store that is named `store`: what happened, when,
    /// and for how long nothing new is granted.
    pub fn sentence(&self, store: &str) -> String {
        let when = self.recovery.since_ms.map(|since_ms| {
            let elapsed_ms = self.now_ms.saturating_sub(since_ms);
            format!(" {} ago", whole_seconds(elapsed_ms / 1_000))
        });
        format!(
            "{store} {}{}: no new locks are granted for at most {}, so that no lock is granted twice",
            self.event(),
            when.unwrap_or_default(),
            whole_seconds(self.remaining_ms().div_ceil(1_000)),
        )
    }
}

fn whole_seconds(seconds: u64) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(seconds))
}

impl RecoveryCause {
    pub const ALL: [Self; 7] = [
        Self::Restarted,
        Self::Promoted,
        Self::Emptied,
        Self::KeyLost,
        Self::AssumptionViolated,
        Self::SlotMoved,
        Self::SlotStayed,
    ];

    /// Returns the word for the cause in eras, in the log and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::Promoted => "promoted",
            Self::Emptied => "emptied",
            Self::KeyLost => "key_lost",
            Self::AssumptionViolated => "assumption_violated",
            Self::SlotMoved => "slot_moved",
            Self::SlotStayed => "slot_stayed",
        }
    }

    /// Returns the cause with this name. `None` if only a later version has the cause.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_says_what_happened_when_and_for_how_long() {
        let recovery = Recovery {
            cause: Some(RecoveryCause::Restarted),
            since_ms: Some(10_000),
            until_ms: 105_250,
        };
        let sentence = |recovery: Recovery, now_ms| {
            let active = recovery.active_at(now_ms);
            active.map(|active| active.sentence("Redis at 10.0.0.1:6379"))
        };
        let expected = "Redis at 10.0.0.1:6379 was restarted 3s ago: no new locks are granted for \
                        at most 1m 32s, so that no lock is granted twice";
        assert_eq!(sentence(recovery, 13_999).as_deref(), Some(expected));
        let unknown = Recovery {
            cause: None,
            since_ms: None,
            ..recovery
        };
        let expected = "Redis at 10.0.0.1:6379 began to recover for an unknown reason: no new \
                        locks are granted for at most 1s, so that no lock is granted twice";
        assert_eq!(sentence(unknown, 105_249).as_deref(), Some(expected));
        assert_eq!(sentence(recovery, 105_250), None);
        let ahead = sentence(recovery, 9_000).expect("going on");
        assert!(ahead.contains(" 0s ago"), "the clock was set back: {ahead}");
    }

    #[test]
    fn names_of_causes_are_read_back() {
        for cause in RecoveryCause::ALL {
            assert_eq!(RecoveryCause::from_name(cause.name()), Some(cause));
        }
        assert_eq!(RecoveryCause::from_name(UNKNOWN_CAUSE), None);
    }
}
