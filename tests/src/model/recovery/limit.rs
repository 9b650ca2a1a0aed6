//! The limit of spans, and its changes.

use super::{FORMER_MASTER_MAX, Rule, SPAN_MIN, TRUSTED};

/// Time that a change of the limit takes at least.
pub const CHANGE: u64 = TRUSTED + FORMER_MASTER_MAX;

/// A limit that changes at a time of the master's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLimit {
    pub before: u64,
    pub after: u64,
    pub at: i64,
}

/// Record of a limit, at a broker or in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRecord {
    /// The limit that counts for a recovery.
    pub covered: u64,
    /// The limit that grants and renewals may use.
    pub usable: u64,
}

/// The rules in force: all, or all but one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// The rule that does not hold.
    pub removed: Option<Rule>,
}

impl Rules {
    /// Returns true if the rule is in force.
    #[must_use]
    pub fn has(self, rule: Rule) -> bool {
        self.removed != Some(rule)
    }

    /// Returns a time if the rule is in force, and 0 without it.
    pub(super) fn time(self, rule: Rule, time: u64) -> u64 {
        if self.has(rule) { time } else { 0 }
    }
}

impl SpanLimit {
    fn is_pending(self, now: i64) -> bool {
        now < self.at
    }

    /// Returns the limit for grants and renewals.
    #[must_use]
    pub fn usable(self, now: i64) -> u64 {
        let usable = match self.is_pending(now) {
            true => self.before.min(self.after),
            false => self.after,
        };
        usable.max(SPAN_MIN)
    }

    /// Returns the record of a reader at this time.
    #[must_use]
    pub fn record(self, now: i64, rules: Rules) -> LimitRecord {
        let counts = self.is_pending(now) && rules.has(Rule::PendingChangeCounts);
        let usable = self.usable(now);
        LimitRecord {
            covered: match counts {
                true => self.before.max(self.after).max(usable),
                false => usable,
            },
            usable,
        }
    }

    /// Changes the limit to one that allows `wanted`. Does nothing if that is pending or in force.
    pub fn raise(&mut self, wanted: u64, now: i64, rules: Rules) -> bool {
        let is_lowering = self.is_pending(now) && self.before > self.after;
        let is_raising = self.is_pending(now) && !is_lowering;
        if is_raising || wanted <= self.after {
            return false;
        }
        if is_lowering && !rules.has(Rule::RaiseDuringLoweringWaits) {
            *self = Self {
                before: wanted.max(self.before),
                after: wanted.max(self.before),
                at: now,
            };
            return true;
        }
        let keeps = is_lowering && rules.has(Rule::RaiseDuringLoweringKeepsLimit);
        let waits = rules.time(Rule::RaiseOutlastsRollBack, TRUSTED)
            + rules.time(Rule::RaiseOutlastsFormerMaster, FORMER_MASTER_MAX);
        *self = Self {
            before: self.usable(now),
            after: if keeps {
                wanted.max(self.before)
            } else {
                wanted
            },
            at: now + waits.cast_signed(),
        };
        true
    }

    /// Changes the limit to a smaller one. Does nothing while a change is pending.
    pub fn lower(&mut self, to: u64, now: i64, rules: Rules) -> bool {
        if self.is_pending(now) || to >= self.after || to < SPAN_MIN {
            return false;
        }
        let waits = rules
            .time(Rule::LoweringOutlastsSpans, self.after)
            .max(rules.time(Rule::LoweringOutlastsRecords, CHANGE));
        *self = Self {
            before: self.after,
            after: to,
            at: now + waits.cast_signed(),
        };
        true
    }
}
