//! The rule that fencing tokens rise (G1).

use std::collections::{BTreeMap, btree_map::Entry};

use super::{Rule, Violation, index::HistoryIndex};
use crate::history::{CallRequest, EventKind};

/// Grants of one lock.
#[derive(Default)]
struct LockGrants<'a> {
    leases: BTreeMap<u64, &'a str>,
    /// Time of each delivery, with the largest token delivered until then.
    delivered: Vec<(u64, u64)>,
}

impl LockGrants<'_> {
    /// Returns the largest token that was delivered before the time.
    fn largest_before(&self, at_us: u64) -> Option<u64> {
        let count = self.delivered.partition_point(|(time, _)| *time < at_us);
        Some(self.delivered.get(count.checked_sub(1)?)?.1)
    }
}

/// Calls that add a lock to a lease and have not been granted, with the time at which each was sent,
/// by lease and lock. A lease has one hold of a lock: if the reply to one call is lost, the next call
/// enters the hold that the first one has created.
#[derive(Default)]
struct AddingCalls<'a>(BTreeMap<(&'a str, &'a str), BTreeMap<u64, u64>>);

impl<'a> AddingCalls<'a> {
    fn add(&mut self, index: &HistoryIndex<'a>, request: &'a CallRequest) {
        let Some(lease) = &request.under else { return };
        for requested in &request.locks {
            let calls = self.0.entry((lease, &requested.lock)).or_default();
            calls.insert(request.call, index.first_invocation(request.call));
        }
    }

    /// Removes a call, and returns the time at which the first of the calls was sent that may have
    /// created its hold. Returns `None` if the call does not add a lock to a lease.
    fn take_earliest(&mut self, hold: (&'a str, &'a str), call: u64) -> Option<u64> {
        let calls = self.0.get_mut(&hold)?;
        let earliest = calls.values().copied().min();
        calls.remove(&call).and(earliest)
    }
}

/// Checks that each token belongs to one lease, and that the token of a call that was sent after
/// another grant had been delivered is larger than that of the grant.
pub(super) fn check(index: &HistoryIndex<'_>) -> Vec<Violation> {
    let mut locks = BTreeMap::<&str, LockGrants<'_>>::new();
    let mut adding = AddingCalls::default();
    let mut violations = Vec::new();
    for event in index.events {
        if let EventKind::Invoked(request) = &event.kind {
            adding.add(index, request);
        }
        let EventKind::Granted {
            attempt,
            lease,
            locks: granted,
            ..
        } = &event.kind
        else {
            continue;
        };
        let Some(attempt) = index.attempt(*attempt) else {
            continue;
        };
        let requested = &attempt.request.locks;
        for granted in granted {
            if requested
                .iter()
                .all(|requested| requested.lock != granted.lock)
            {
                continue;
            }
            let (lock, token) = (granted.lock.as_str(), granted.token);
            let grants = locks.entry(lock).or_default();
            let invoked_at_us = adding.take_earliest((lease, lock), attempt.request.call);
            let invoked_at_us =
                invoked_at_us.unwrap_or_else(|| index.first_invocation(attempt.request.call));
            let earlier = grants.largest_before(invoked_at_us);
            let problem = match grants.leases.entry(token) {
                Entry::Occupied(known) if *known.get() == lease => continue,
                Entry::Occupied(known) => {
                    Some(format!("is also the token of lease {}", known.get()))
                }
                Entry::Vacant(new) => {
                    new.insert(lease);
                    let earlier = earlier.filter(|earlier| *earlier >= token);
                    earlier
                        .map(|earlier| format!("is not above {earlier}, delivered before the call"))
                }
            };
            let largest = grants.delivered.last().map_or(0, |last| last.1).max(token);
            grants.delivered.push((event.at_us, largest));
            violations.extend(problem.map(|problem| Violation {
                rule: Rule::TokenOrder,
                at_us: event.at_us,
                description: format!("lock {lock}: token {token} of lease {lease} {problem}"),
            }));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use leasehold_server::lock::EXCLUSIVE_WEIGHT;

    use super::{super::test_history::TestHistory, *};

    fn second_token(token: u64, invoked_ms: u64) -> Vec<Rule> {
        let history = TestHistory::default().invoke(0, 1).grant(5, 1, 10, 0);
        let history = history.release(6, 1).invoke(invoked_ms, 2);
        history.grant(9, 2, token, invoked_ms).violated()
    }

    #[test]
    fn a_call_that_is_sent_after_a_grant_gets_a_larger_token() {
        assert_eq!(second_token(9, 7), [Rule::TokenOrder]);
        assert_eq!(second_token(11, 7), []);
    }

    #[test]
    fn concurrent_calls_get_tokens_in_any_order() {
        assert_eq!(second_token(9, 4), []);
    }

    /// Adds the lock to lease 7 by two calls, of which the second is granted a token below that of a
    /// call that was granted the lock between them.
    fn added_token(first_lease: &str) -> Vec<Rule> {
        let under = |lease: &str| {
            let lease = lease.to_owned();
            |request: &mut CallRequest| request.under = Some(lease)
        };
        let history = TestHistory::default().invoke_with(0, 1, under(first_lease));
        let history = history.invoke(1, 2).grant(5, 2, 10, 1).release(6, 2);
        let history = history.invoke_with(7, 3, under("7"));
        let weights = [EXCLUSIVE_WEIGHT; 2];
        history.grant_lease(9, 3, (7, 9, 7), weights).violated()
    }

    #[test]
    fn a_call_enters_the_hold_of_an_earlier_call_without_a_reply() {
        assert_eq!(added_token("7"), []);
        assert_eq!(added_token("8"), [Rule::TokenOrder]);
    }

    #[test]
    fn a_token_belongs_to_one_lease() {
        assert_eq!(second_token(10, 4), [Rule::TokenOrder]);
    }
}
