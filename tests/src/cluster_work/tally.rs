//! Attempts counted by what was asked and what was answered.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{Answer, Attempt, Verb, Work};

/// Some attempts of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// How many there were of each kind.
    pub kinds: BTreeMap<(Verb, Answer), usize>,
    /// The longest time that one took which was not to wait for somebody.
    pub slowest: Duration,
    /// How many of those took longer than a caller ever waits for a store.
    pub slow: usize,
}

/// See [`Tally::slow`].
const PROMPT: Duration = Duration::from_secs(1);
/// On a busy machine one call in so many may be slow by itself. A store that holds calls up holds up
/// every caller.
const SLOW_ONE_IN: usize = 1_000;

impl Work {
    /// Counts those that `which` names.
    pub fn tally(&self, which: impl Fn(&Attempt) -> bool) -> Tally {
        let mut tally = Tally::default();
        for attempt in self.attempts().iter().filter(|attempt| which(attempt)) {
            *tally
                .kinds
                .entry((attempt.verb, attempt.answer))
                .or_default() += 1;
            if !attempt.patient {
                let took = attempt.ended - attempt.begun;
                tally.slowest = tally.slowest.max(took);
                tally.slow += usize::from(took > PROMPT);
            }
        }
        tally
    }
}

impl Tally {
    /// How many were done.
    #[must_use]
    pub fn done(&self) -> usize {
        self.count(|_, answer| answer == Answer::Done)
    }

    /// Whether all were answered without a wait for the store.
    #[must_use]
    pub fn is_prompt(&self) -> bool {
        self.slow <= self.done() / SLOW_ONE_IN
    }

    /// How many locks were granted.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.count(|verb, answer| (verb, answer) == (Verb::Acquire, Answer::Done))
    }

    /// How many were not done.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.count(|_, answer| answer != Answer::Done)
    }

    /// How many were of these kinds.
    pub fn count(&self, which: impl Fn(Verb, Answer) -> bool) -> usize {
        let kinds = self.kinds.iter();
        let of_them = kinds.filter(|((verb, answer), _)| which(*verb, *answer));
        of_them.map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((verb, answer), count) in &self.kinds {
            match answer {
                Answer::Done => write!(f, "{verb:?}={count} ")?,
                Answer::Refused(reason) => write!(f, "{verb:?}:{}={count} ", reason.as_str_name())?,
                Answer::Broken => write!(f, "{verb:?}:no_reason={count} ")?,
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
