//! Search for the shortest plan that still violates the same rule.

use super::{
    plan::Plan,
    run::{Outcome, run},
};
use crate::history::{Event, Rule};

/// Maximum number of runs of a search.
const RUNS_MAX: usize = 400;
/// Time by which a run is longer than its first violation: calls may still be answered.
const AFTER_VIOLATION_MS: u64 = 1_000;

/// A plan that violates a rule, and its outcome.
pub struct Failure {
    pub plan: Plan,
    pub outcome: Outcome,
    rule: Rule,
    runs_left: usize,
}

impl Failure {
    /// Returns `None` if the outcome has no violation.
    #[must_use]
    pub fn new(plan: Plan, outcome: Outcome) -> Option<Self> {
        let rule = outcome.verdict.violations.first()?.rule;
        Some(Self {
            plan,
            outcome,
            rule,
            runs_left: RUNS_MAX,
        })
    }

    /// Removes faults, clients and actions as long as the rule is still violated.
    #[must_use]
    pub fn shrink(mut self) -> Self {
        self.shorten();
        self.remove_early();
        loop {
            let size = self.plan.size();
            self.remove_from(|plan| &mut plan.faults);
            self.remove_from(|plan| &mut plan.clients);
            for client in 0..self.plan.clients.len() {
                self.remove_from(|plan| &mut plan.clients[client].actions);
            }
            self.shorten();
            if self.plan.size() == size || self.runs_left == 0 {
                return self;
            }
        }
    }

    /// Ends the run soon after the first violation.
    fn shorten(&mut self) {
        let violations = self.outcome.verdict.violations.iter();
        let mut violations = violations.filter(|violation| violation.rule == self.rule);
        let Some(first) = violations.next() else {
            return;
        };
        let duration_ms = first.at_us / 1_000 + AFTER_VIOLATION_MS;
        let mut plan = self.plan.clone();
        plan.duration_ms = plan.duration_ms.min(duration_ms);
        plan.faults.retain(|fault| fault.at_ms < duration_ms);
        for client in &mut plan.clients {
            client.actions.retain(|action| action.at_ms < duration_ms);
        }
        self.try_plan(plan);
    }

    /// Removes everything but what happens shortly before the end.
    fn remove_early(&mut self) {
        for kept_ms in [5_000, 10_000, 20_000, 40_000, 80_000] {
            let from_ms = self.plan.duration_ms.saturating_sub(kept_ms);
            let mut plan = self.plan.clone();
            plan.faults.retain(|fault| fault.at_ms >= from_ms);
            for client in &mut plan.clients {
                client.actions.retain(|action| action.at_ms >= from_ms);
            }
            if self.try_plan(plan) {
                return self.shorten();
            }
        }
    }

    /// Removes elements of a list, first in large pieces and then one by one.
    fn remove_from<T>(&mut self, list: impl Fn(&mut Plan) -> &mut Vec<T>) {
        let mut piece = list(&mut self.plan).len().div_ceil(2);
        while piece > 0 {
            let mut start = 0;
            while start < list(&mut self.plan).len() {
                let mut plan = self.plan.clone();
                let elements = list(&mut plan);
                let end = (start + piece).min(elements.len());
                elements.drain(start..end);
                if !self.try_plan(plan) {
                    start += piece;
                }
            }
            piece /= 2;
        }
    }

    /// Keeps a plan if it violates the rule. Returns true if it was kept.
    fn try_plan(&mut self, plan: Plan) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let outcome = run(&plan);
        let violations = &outcome.verdict.violations;
        let is_kept = violations
            .iter()
            .any(|violation| violation.rule == self.rule);
        if is_kept {
            (self.plan, self.outcome) = (plan, outcome);
        }
        is_kept
    }
}

impl Plan {
    fn size(&self) -> usize {
        let actions = self.clients.iter().map(|client| client.actions.len() + 1);
        self.faults.len() + actions.sum::<usize>()
    }
}

/// Returns the events of a history as lines that a person can read.
#[must_use]
pub fn narrate(history: &[Event]) -> String {
    let lines = history.iter().map(|event| {
        let seconds = std::time::Duration::from_micros(event.at_us).as_secs_f64();
        format!("{seconds:10.4} {:<10} {:?}\n", event.client, event.kind)
    });
    lines.collect()
}
