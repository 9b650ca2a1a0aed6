//! Counts of attempts by kind and result.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{Attempt, CallKind, CallResult, Workload};

/// Counts of a selection of the attempts of a run.
#[derive(Debug, Default)]
pub struct AttemptCounts {
    /// Number of attempts of each kind and result.
    pub counts: BTreeMap<(CallKind, CallResult), usize>,
    /// Longest time of an attempt that did not wait for a holder.
    pub slowest: Duration,
    /// Number of these attempts that took longer than `PROMPT`.
    pub slow: usize,
}

/// Time within which an attempt counts as prompt, longer than a caller may have to wait for a
/// store.
const PROMPT: Duration = Duration::from_secs(1);
/// Share of slow calls that is tolerated on a busy machine: one in this number. A store that delays
/// calls delays every caller.
const SLOW_ONE_IN: usize = 1_000;

impl Workload {
    /// Counts the attempts that `which` selects.
    pub fn count_attempts(&self, which: impl Fn(&Attempt) -> bool) -> AttemptCounts {
        let mut counts = AttemptCounts::default();
        for attempt in self.attempts().iter().filter(|attempt| which(attempt)) {
            *counts
                .counts
                .entry((attempt.kind, attempt.result))
                .or_default() += 1;
            if !attempt.waits {
                let took = attempt.ended_at - attempt.started_at;
                counts.slowest = counts.slowest.max(took);
                counts.slow += usize::from(took > PROMPT);
            }
        }
        counts
    }
}

impl AttemptCounts {
    /// Returns the number of successful attempts.
    #[must_use]
    pub fn succeeded(&self) -> usize {
        self.count(|_, answer| answer == CallResult::Succeeded)
    }

    /// Returns true if all attempts were answered without a wait for the store, except the
    /// tolerated share.
    #[must_use]
    pub fn is_prompt(&self) -> bool {
        self.slow <= self.succeeded() / SLOW_ONE_IN
    }

    /// Returns the number of granted locks.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.count(|verb, answer| (verb, answer) == (CallKind::Acquire, CallResult::Succeeded))
    }

    /// Returns the number of failed attempts.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.count(|_, answer| answer != CallResult::Succeeded)
    }

    /// Returns the number of attempts of these kinds.
    pub fn count(&self, which: impl Fn(CallKind, CallResult) -> bool) -> usize {
        let kinds = self.counts.iter();
        let of_them = kinds.filter(|((verb, answer), _)| which(*verb, *answer));
        of_them.map(|(_, count)| count).sum()
    }
}

impl fmt::Display for AttemptCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((verb, answer), count) in &self.counts {
            match answer {
                CallResult::Succeeded => write!(f, "{verb:?}={count} ")?,
                CallResult::Rejected(reason) => {
                    write!(f, "{verb:?}:{}={count} ", reason.as_str_name())?
                }
                CallResult::NoReply => write!(f, "{verb:?}:no_reason={count} ")?,
            }
        }
        write!(
            f,
            "slowest={} ms slow={}",
            self.slowest.as_millis(),
            self.slow
        )
    }
}
