//! Judgement of a history: checks the guarantees that clients can observe.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "each rule reads the few kinds of events that concern it"
)]

mod answers;
mod closures;
mod exclusion;
mod index;
mod leases;
mod losses;
mod order;
#[cfg(test)]
mod test_history;
mod tokens;
mod vacancy;

use std::{collections::BTreeMap, fmt};

pub use self::losses::LossCause;
use self::{index::HistoryIndex, leases::LeaseTable};
use super::{Event, EventKind};

/// Rule that a history must not violate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The weights of the clients that rely on a lock never exceed its limit.
    Exclusion,
    /// The fencing tokens of a lock rise with the real-time order of its grants, and no two leases
    /// have the same token.
    TokenOrder,
    /// A lease ends only for a cause in [`LossCause`].
    LossCause,
    /// The rollback of one attempt does not end a lease that was delivered.
    RolledBackAfterDelivery,
    /// An exclusive call is granted a lock before calls that were sent after it was queued.
    QueueOrder,
    /// A call is answered when its wait has timed out.
    Answer,
    /// A closed lock is granted to nobody before the end of its closure.
    ClosedLock,
    /// A lock that no lease can hold is granted to a waiter.
    HolderReplaced,
    /// A lock is free when all leases on it have expired. Checked by the simulation with calls
    /// after the end of the history.
    FreedAfterExpiry,
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// Time at which a client observed the violation.
    pub at_us: u64,
    pub description: String,
}

/// Judgement of a history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Violations in the order of time.
    pub violations: Vec<Violation>,
    /// Number of delivered leases, including repeated deliveries.
    pub grants: usize,
    /// Number of confirmed renewals.
    pub renewals: usize,
    /// Number of lost leases by cause.
    pub losses: BTreeMap<LossCause, usize>,
    /// Number of pairs of calls whose order was compared.
    pub ordered_pairs: usize,
    /// Number of closures whose whole time was checked.
    pub closures: usize,
    /// Number of waiting attempts for a lock that became free.
    pub vacancies: usize,
}

impl Verdict {
    /// Returns the number of violations of each violated rule.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Rule, usize> {
        let mut counts = BTreeMap::new();
        for violation in &self.violations {
            *counts.entry(violation.rule).or_default() += 1;
        }
        counts
    }

    /// Adds the figures of another history, without its violations.
    pub fn add_figures(&mut self, other: &Self) {
        self.grants += other.grants;
        self.renewals += other.renewals;
        self.ordered_pairs += other.ordered_pairs;
        self.closures += other.closures;
        self.vacancies += other.vacancies;
        for (cause, count) in &other.losses {
            *self.losses.entry(*cause).or_default() += count;
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "grants={} renewals={} losses={:?} ordered_pairs={} closures={} vacancies={} \
             violations={:?}",
            self.grants,
            self.renewals,
            self.losses,
            self.ordered_pairs,
            self.closures,
            self.vacancies,
            self.counts()
        )?;
        for violation in &self.violations {
            let seconds = std::time::Duration::from_micros(violation.at_us).as_secs_f64();
            let (rule, description) = (violation.rule, &violation.description);
            writeln!(f, "{seconds:.3} s {rule:?}: {description}")?;
        }
        Ok(())
    }
}

/// Judges a history, whose events are in the order of time.
#[must_use]
pub fn judge(events: &[Event]) -> Verdict {
    let index = HistoryIndex::new(events);
    let mut verdict = Verdict::default();
    let mut leases = LeaseTable::default();
    let mut exclusion = exclusion::ExclusionCheck::default();
    let mut holds = vacancy::HoldIntervals::default();
    for event in events {
        let at_us = event.at_us;
        match &event.kind {
            EventKind::Granted { .. } => verdict.grants += 1,
            EventKind::Renewed { .. } => verdict.renewals += 1,
            EventKind::Lost { lease, reason } => {
                if let Some(state) = leases.get(lease) {
                    match losses::find_cause(&index, state, (at_us, *reason)) {
                        Some(cause) => *verdict.losses.entry(cause).or_default() += 1,
                        None => {
                            let loss = losses::unexplained(&index, lease, state, (at_us, *reason));
                            verdict.violations.push(loss);
                        }
                    }
                }
            }
            _ => {}
        }
        leases.apply(&index, event);
        holds.observe(&index, &leases, event);
        verdict
            .violations
            .extend(exclusion.check(&index, &leases, event));
    }
    verdict.violations.extend(tokens::check(&index));
    let order = order::check(&index);
    verdict.ordered_pairs = order.pairs;
    verdict.violations.extend(order.violations);
    verdict.violations.extend(answers::check(&index));
    let closures = closures::check(&index);
    verdict.closures = closures.closures;
    verdict.violations.extend(closures.violations);
    let vacancy = vacancy::check(&index, holds);
    verdict.vacancies = vacancy.waits;
    verdict.violations.extend(vacancy.violations);
    verdict.violations.sort_by_key(|violation| violation.at_us);
    verdict
}
