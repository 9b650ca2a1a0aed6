//! An early end of the time without grants, which the product does not have (decision 0030): brokers
//! are registered in the store, each grant and renewal is counted there, and grants go on as soon as
//! every broker that is registered in the copy finds there the last number that it has seen.

use std::collections::BTreeMap;

use super::{FORMER_MASTER_MAX, Rule, data::Data, limit::Rules};

/// Age at which a broker's last contact with the former master no longer counts.
pub const FRESH: u64 = 4;
/// Time for which a broker that nobody has acknowledged waits until it grants: then no silent broker
/// ends the time without grants early, and a master that was replaced has stopped.
pub const LONE_WAIT: u64 = FRESH + FORMER_MASTER_MAX + 1;

/// The brokers that are registered in the data of a master, by their number.
pub(super) type Members = BTreeMap<u32, Member>;

/// A broker in the data of a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) registered_at: u64,
    /// The number of its registration.
    pub(super) number: u64,
    pub(super) last_contact: u64,
    /// The last number that the broker has seen.
    pub(super) seen: u64,
    /// True once the broker may grant and renew.
    pub(super) is_acknowledged: bool,
}

/// The number of grants and renewals in an era.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Progress {
    pub(super) era: u32,
    pub(super) count: u64,
    /// True if grants and renewals are allowed.
    pub(super) is_open: bool,
    /// Difference between the master's clock and that of the broker.
    pub(super) offset: i64,
}

/// Contents of the copy with which an era began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Copied {
    pub(super) era: u32,
    pub(super) count: u64,
    pub(super) members: Members,
}

/// Knowledge of a broker at the time when it connected to a master with a new era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    /// The new era.
    pub(super) era: u32,
    /// The last progress that the broker has seen in a past era.
    pub(super) seen: Progress,
    pub(super) is_fresh: bool,
}

/// Removes the brokers that have been silent for long, and acknowledges the others. Does nothing if
/// the broker `by` may not do that.
pub(super) fn acknowledge(data: &mut Data, by: u32, now: u64, rules: Rules) -> Option<()> {
    let member = *data.members.get(&by)?;
    let waits = rules.time(Rule::LoneBrokerWaits, LONE_WAIT);
    let is_silent = |member: &Member, since: u64| member.last_contact.max(since) + waits <= now;
    if !member.is_acknowledged {
        let mut others = data.members.iter().filter(|(id, _)| **id != by);
        let is_known = others.all(|(_, other)| {
            let has_seen = !other.is_acknowledged && other.seen >= member.number;
            has_seen || is_silent(other, member.registered_at)
        });
        if !is_known {
            return None;
        }
    }
    let since = member.registered_at;
    data.members
        .retain(|id, other| *id == by || !other.is_acknowledged || !is_silent(other, since));
    let mut is_new = false;
    for member in data.members.values_mut() {
        is_new |= !member.is_acknowledged;
        member.is_acknowledged = true;
    }
    is_new.then_some(())
}

/// Returns true if nothing was lost that a broker has confirmed in the past eras.
pub(super) fn is_complete(
    copied: &Copied,
    reports: &BTreeMap<u32, Report>,
    offset: i64,
    rules: Rules,
) -> bool {
    let is_found = |id: &u32| match reports.get(id) {
        Some(report) => {
            let seen = report.seen;
            (report.is_fresh || !rules.has(Rule::ReportsAreFresh))
                && (seen.era == copied.era || !rules.has(Rule::ProgressIsOfTheEra))
                && (seen.count <= copied.count || !rules.has(Rule::ProgressIsInTheCopy))
                && (seen.is_open || !rules.has(Rule::PastEraWasOpen))
                && (seen.offset == offset || !rules.has(Rule::ClocksAgree))
        }
        None => !rules.has(Rule::EveryMemberReports),
    };
    copied.members.keys().all(is_found) && copied.members.keys().any(|id| reports.contains_key(id))
}
