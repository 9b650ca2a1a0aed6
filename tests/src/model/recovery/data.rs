//! The data of a master, and the copies of it.

use super::{
    FORMER_MASTER_MAX, MARGIN, Rule, SPAN_CONFIGURED, SPAN_MIN, TRUSTED,
    early_end::{Copied, Members},
    limit::{CHANGE, LimitRecord, Rules, SpanLimit},
};

/// Data of a master and of its copies. Times are those of the master's clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Data {
    pub(super) era: Option<Era>,
    /// Time of the last query of a broker.
    pub(super) stamp: i64,
    pub(super) holder: Option<Holder>,
    /// Number of registrations, grants and renewals.
    pub(super) count: u64,
    pub(super) members: Members,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Era {
    /// Number of the era, which no other era has.
    pub(super) id: u32,
    /// Number of the process for which the era was written.
    pub(super) process: usize,
    pub(super) no_grants_before: i64,
    pub(super) no_renewals_before: i64,
    pub(super) limit: SpanLimit,
    pub(super) copied: Copied,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) lease: u32,
    pub(super) expires: i64,
}

/// Inputs of a broker that writes an era.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writer {
    /// The broker's record of the limit, if it is not too old.
    pub(super) record: Option<LimitRecord>,
    /// True if the process has replaced another master.
    pub(super) has_replaced_a_master: bool,
    /// Time of the process.
    pub(super) now: i64,
}

impl Era {
    pub(super) fn is_open(&self, now: i64) -> bool {
        self.no_grants_before <= now && self.no_renewals_before <= now
    }
}

impl Data {
    /// Returns the era that a broker writes for a process that has none.
    pub(super) fn new_era(&self, id: u32, process: usize, writer: Writer, rules: Rules) -> Era {
        let Writer {
            record,
            has_replaced_a_master,
            now,
        } = writer;
        let copied = self.era.as_ref().map(|era| era.limit);
        let needs_one_clock = rules.has(Rule::StampsNeedOneClock);
        let is_stamped = !(has_replaced_a_master && needs_one_clock)
            && (now - self.stamp <= TRUSTED.cast_signed() || !rules.has(Rule::StampsExpire));
        let stamped = copied.filter(|_| is_stamped);
        let record = copied.and(record);
        let recorded = record.or_else(|| stamped.map(|limit| limit.record(self.stamp, rules)));
        let recorded = match (recorded, copied) {
            (None, Some(limit)) if !rules.has(Rule::ConfiguredWithoutRecord) => {
                Some(limit.record(now, rules))
            }
            (recorded, _) => recorded,
        };
        let covered = recorded.map_or(SPAN_CONFIGURED, |record| record.covered);
        let usable = match (recorded, copied) {
            (None, _) => SPAN_MIN,
            (Some(record), _) if !rules.has(Rule::NewEraEndsRaise) => record.covered,
            (Some(_), Some(limit)) if !rules.has(Rule::NewEraUsesRecord) => limit.usable(now),
            (Some(record), _) => record.usable,
        };
        let former = match has_replaced_a_master {
            true => FORMER_MASTER_MAX.cast_signed(),
            false => 0,
        };
        let counted = match rules.has(Rule::QuarantineOutlastsFormerMaster) {
            true => former,
            false => 0,
        };
        let no_grants_before = now + (covered + MARGIN).cast_signed() + counted;
        let read = now
            + rules
                .time(Rule::LoweringOutlastsRecords, CHANGE)
                .cast_signed();
        let at = match rules.has(Rule::NewEraKeepsLimit) {
            true => no_grants_before.max(read),
            false => read,
        };
        Era {
            id,
            process,
            no_grants_before,
            no_renewals_before: now + former,
            limit: SpanLimit {
                before: covered.max(usable),
                after: usable,
                at,
            },
            copied: self.copied(),
        }
    }

    fn copied(&self) -> Copied {
        let Some(era) = &self.era else {
            return Copied::default();
        };
        Copied {
            era: era.id,
            count: self.count,
            members: self.members.clone(),
        }
    }
}
