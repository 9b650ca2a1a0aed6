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
}

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
                tally.slowest = tally.slowest.max(attempt.ended - attempt.begun);
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
        write!(f, "slowest={} ms", self.slowest.as_millis())
    }
}
