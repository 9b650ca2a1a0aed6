//! The rule that the weights of the clients that rely on a lock never exceed its limit (G2).

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Rule, Violation,
    index::HistoryIndex,
    leases::{LeaseState, LeaseTable},
};
use crate::history::{Event, EventKind};

/// Check of the rule, event by event. Each set of leases that exceeds a limit is reported once.
#[derive(Default)]
pub(super) struct ExclusionCheck {
    /// Largest limit that an operator has set for each lock.
    set_limits: BTreeMap<String, u32>,
    /// Largest limit that a call has requested for each lock.
    requested_limits: BTreeMap<String, u32>,
    reported: BTreeSet<(String, Vec<String>)>,
}

impl ExclusionCheck {
    /// Checks the locks of the lease that the event extends, after the event was applied. The sum of
    /// the weights can rise only then. The largest limit counts that one of the clients received, or
    /// that an operator has ever set: when a limit takes effect is unknown to clients. If one of the
    /// grants may be older than the limit in its reply, the largest limit counts that a call has
    /// ever requested.
    pub(super) fn check(
        &mut self,
        index: &HistoryIndex<'_>,
        leases: &LeaseTable<'_>,
        event: &Event,
    ) -> Vec<Violation> {
        if let EventKind::LimitInvoked {
            lock,
            limit: Some(limit),
        } = &event.kind
        {
            record_limit(&mut self.set_limits, lock, *limit);
        }
        if let EventKind::Invoked(request) = &event.kind {
            for requested in &request.locks {
                record_limit(&mut self.requested_limits, &requested.lock, requested.limit);
            }
        }
        let (EventKind::Granted { lease, .. } | EventKind::Renewed { lease, .. }) = &event.kind
        else {
            return Vec::new();
        };
        let Some(state) = leases.get(lease) else {
            return Vec::new();
        };
        let locks = state.locks.keys().copied();
        locks
            .filter_map(|lock| self.check_lock(index, leases, (lock, event.at_us)))
            .collect()
    }

    fn check_lock(
        &mut self,
        index: &HistoryIndex<'_>,
        leases: &LeaseTable<'_>,
        (lock, at_us): (&str, u64),
    ) -> Option<Violation> {
        let set_limit = self.set_limits.get(lock).copied();
        let (mut sum, mut limit, mut relying) = (0, set_limit.unwrap_or(0), Vec::new());
        for (lease, state, share) in leases.holders(lock) {
            if is_relied_on(state, at_us) && !state.may_have_lapsed(index, at_us) {
                sum += u64::from(share.weight());
                limit = limit.max(share.limit);
                if share.may_predate_limit {
                    limit = limit.max(self.requested_limits.get(lock).copied().unwrap_or(0));
                }
                relying.push((lease, share.token, state.client, state.until_us));
            }
        }
        if sum <= u64::from(limit) {
            return None;
        }
        let names = relying.iter().map(|holder| holder.0.to_owned()).collect();
        let is_new = self.reported.insert((lock.to_owned(), names));
        is_new.then(|| Violation {
            rule: Rule::Exclusion,
            at_us,
            description: format!(
                "lock {lock}: weight {sum} of limit {limit} is relied on by (lease, token, client, \
                 until) {relying:?}"
            ),
        })
    }
}

fn record_limit(largest: &mut BTreeMap<String, u32>, lock: &str, limit: u32) {
    let largest = largest.entry(lock.to_owned()).or_default();
    *largest = limit.max(*largest);
}

fn is_relied_on(state: &LeaseState<'_>, at_us: u64) -> bool {
    state.until_us > at_us && !state.was_freed_by_operator
}

#[cfg(test)]
mod tests {
    use leasehold_server::lock::EXCLUSIVE_WEIGHT;

    use super::{super::test_history::TestHistory, *};
    use crate::history::{Fault, LossReason, ReleaseScope};

    fn two_exclusive(second_granted_ms: u64) -> TestHistory {
        let history = TestHistory::default().invoke(0, 1).grant(1, 1, 10, 0);
        let invoked_ms = second_granted_ms - 1;
        history
            .invoke(invoked_ms, 2)
            .grant(second_granted_ms, 2, 20, invoked_ms)
    }

    #[test]
    fn two_exclusive_holders_exclude_each_other_until_the_end_of_the_validity() {
        assert_eq!(two_exclusive(9_999).violated(), [Rule::Exclusion]);
        assert_eq!(two_exclusive(10_000).violated(), []);
    }

    #[test]
    fn a_renewal_extends_the_validity() {
        let renewed = two_exclusive(10_000).renew(9_000, 1, 8_000);
        assert_eq!(renewed.violated(), [Rule::Exclusion]);
    }

    #[test]
    fn a_late_renewal_is_checked_like_a_grant() {
        let renewed = two_exclusive(10_000).renew(10_001, 1, 8_000);
        assert_eq!(renewed.violated(), [Rule::Exclusion]);
    }

    #[test]
    fn a_released_or_lost_lease_is_not_relied_on() {
        assert_eq!(two_exclusive(5_000).release(4_000, 1).violated(), []);
        assert_eq!(
            two_exclusive(5_000).release(5_001, 1).violated(),
            [Rule::Exclusion]
        );
        let lost = two_exclusive(5_000).lose(4_000, 1, LossReason::Expired);
        assert_eq!(lost.violated(), [Rule::LossCause]);
    }

    #[test]
    fn a_reply_that_arrives_after_the_release_restores_nothing() {
        let history = two_exclusive(5_000).release(4_000, 1);
        assert_eq!(history.grant(5_001, 1, 10, 0).violated(), []);
    }

    /// A client that has released its lease, and is granted it again by another attempt while a
    /// second client holds the lock.
    fn regranted(attempt_sent_ms: u64, release_answered_ms: u64) -> TestHistory {
        let history = two_exclusive(5_000).release(4_000, 1);
        let history = history.answer_release(release_answered_ms, 1);
        let repeats = |request: &mut crate::history::CallRequest| request.call = 1;
        let history = history.invoke_with(attempt_sent_ms, 3, repeats);
        history.grant_lease(6_000, 3, (1, 10, attempt_sent_ms), [EXCLUSIVE_WEIGHT; 2])
    }

    #[test]
    fn a_released_lease_is_relied_on_if_a_later_attempt_is_granted_it() {
        assert_eq!(regranted(5_002, 5_001).violated(), [Rule::Exclusion]);
        assert_eq!(regranted(5_001, 5_001).violated(), []);
        assert_eq!(regranted(5_002, 5_500).violated(), []);
    }

    /// A client that enters a lock three times, releases its first entry before the reply to the
    /// second attempt, and releases the lock before the reply to the third one. A second client then
    /// holds the lock.
    fn entered_again() -> TestHistory {
        let release = |release, scope| EventKind::ReleaseInvoked {
            release,
            lease: "1".to_owned(),
            scope,
        };
        let answered = |release| EventKind::ReleaseAnswered {
            release,
            lease: "1".to_owned(),
            is_ok: true,
        };
        let lock = "x".to_owned();
        let entry = ReleaseScope::Entry { lock, call: 1 };
        let lock = "x".to_owned();
        let history = TestHistory::default().invoke(0, 1).grant(1, 1, 10, 0);
        let history = history.invoke(2, 2).event(3, 1, release(1, entry));
        let history = history.event(5, 1, answered(1));
        let history = history.grant_lease(6, 2, (1, 10, 2), [EXCLUSIVE_WEIGHT; 2]);
        let history = history.invoke(7, 3);
        let history = history.event(8, 1, release(2, ReleaseScope::Lock { lock }));
        let history = history.grant_lease(9, 3, (1, 10, 7), [EXCLUSIVE_WEIGHT; 2]);
        let history = history.event(10, 1, answered(2));
        history.invoke(11, 4).grant(12, 4, 20, 11)
    }

    #[test]
    fn a_release_of_a_lock_covers_the_replies_after_an_earlier_release() {
        assert_eq!(entered_again().violated(), []);
        let history = entered_again().invoke(13, 5);
        let history = history.grant_lease(14, 5, (1, 10, 13), [EXCLUSIVE_WEIGHT; 2]);
        assert_eq!(history.violated(), [Rule::Exclusion]);
    }

    /// A client with two entries in a semaphore of three permits, which releases its larger entry
    /// while a repeat of that entry's call is on its way. A second client then holds two permits.
    fn entry_repeated_at(repeated_ms: u64) -> TestHistory {
        let call = |call, permits| {
            move |request: &mut crate::history::CallRequest| {
                request.call = call;
                (request.locks[0].weight, request.locks[0].limit) = (permits, 3);
            }
        };
        let release = EventKind::ReleaseInvoked {
            release: 1,
            lease: "1".to_owned(),
            scope: ReleaseScope::Entry {
                lock: super::super::test_history::LOCK.to_owned(),
                call: 1,
            },
        };
        let answered = EventKind::ReleaseAnswered {
            release: 1,
            lease: "1".to_owned(),
            is_ok: true,
        };
        let history = TestHistory::default().invoke_with(0, 1, call(1, 2));
        let history = history.grant_share(1, (1, 10, 0), [2, 3]);
        let history = history.invoke_with(2, 2, call(2, 1));
        let history = history.grant_lease(3, 2, (1, 10, 2), [2, 3]);
        let history = history.invoke_with(repeated_ms, 3, call(1, 2));
        let history = history.event(5, 1, release).event(7, 1, answered);
        let history = history.grant_lease(9, 3, (1, 10, repeated_ms), [2, 3]);
        let history = history.invoke_with(10, 4, call(4, 2));
        history.grant_share(11, (4, 20, 10), [2, 3])
    }

    #[test]
    fn a_released_entry_is_relied_on_if_a_later_attempt_is_granted_it() {
        assert_eq!(entry_repeated_at(4).violated(), []);
        assert_eq!(entry_repeated_at(7).violated(), []);
        assert_eq!(entry_repeated_at(8).violated(), [Rule::Exclusion]);
    }

    #[test]
    fn a_lost_lease_is_relied_on_if_a_later_attempt_is_granted_it() {
        let lost = |attempt_sent_ms: u64| {
            let history = two_exclusive(5_000).fault([2, 3], Fault::DataLoss);
            let history = history.lose(4_000, 1, LossReason::NotFound);
            let repeats = |request: &mut crate::history::CallRequest| request.call = 1;
            let history = history.invoke_with(attempt_sent_ms, 3, repeats);
            let grant = (1, 10, attempt_sent_ms);
            history.grant_lease(6_000, 3, grant, [EXCLUSIVE_WEIGHT; 2])
        };
        assert_eq!(lost(4_001).violated(), [Rule::Exclusion]);
        assert_eq!(lost(4_000).violated(), []);
    }

    #[test]
    fn a_lock_may_be_free_after_the_disconnect_grace() {
        let granted_again_at = |at_ms| {
            let change = |request: &mut crate::history::CallRequest| {
                request.disconnect_grace_ms = Some(50);
            };
            let history = TestHistory::default().invoke_with(0, 1, change);
            let history = history.grant(1, 1, 10, 0).close_stream(100, 1);
            history
                .invoke(at_ms, 2)
                .grant(at_ms, 2, 20, at_ms)
                .violated()
        };
        assert_eq!(granted_again_at(149), [Rule::Exclusion]);
        assert_eq!(granted_again_at(150), []);
    }

    #[test]
    fn a_lock_of_a_silent_client_may_be_free_with_a_disconnect_grace() {
        let granted_again = |disconnect_grace_ms, client: &str| {
            let change = |request: &mut crate::history::CallRequest| {
                request.disconnect_grace_ms = disconnect_grace_ms;
            };
            let client = client.to_owned();
            let history = TestHistory::default().invoke_with(0, 1, change);
            let history = history.grant(1, 1, 10, 0).invoke(9_000, 2);
            let history = history.fault([100, 9_500], Fault::ClientSilent { client });
            history.grant(9_001, 2, 20, 9_000).violated()
        };
        assert_eq!(granted_again(Some(50), "1"), []);
        assert_eq!(granted_again(Some(50), "2"), [Rule::Exclusion]);
        assert_eq!(granted_again(None, "1"), [Rule::Exclusion]);
    }

    #[test]
    fn the_permits_of_a_semaphore_add_up_to_its_limit() {
        let history = || {
            let history = TestHistory::default();
            let share = |history: TestHistory, attempt, permits| {
                let change = |request: &mut crate::history::CallRequest| {
                    (request.locks[0].weight, request.locks[0].limit) = (permits, 5);
                };
                let history = history.invoke_with(attempt, attempt, change);
                history.grant_share(attempt, (attempt, attempt, attempt), [permits, 5])
            };
            (share(share(history, 1, 2), 2, 2), share)
        };
        let (fitting, share) = history();
        assert_eq!(share(fitting, 3, 1).violated(), []);
        let (full, share) = history();
        assert_eq!(share(full, 3, 2).violated(), [Rule::Exclusion]);
    }

    #[test]
    fn a_limit_that_was_lowered_after_a_grant_does_not_bind_the_grant() {
        let violated = |first_attempts: &[u64], wait_ms| {
            let wish = |request: &mut crate::history::CallRequest| {
                (request.call, request.wait_ms) = (1, wait_ms);
                (request.locks[0].weight, request.locks[0].limit) = (2, 3);
            };
            let invoke =
                |history: TestHistory, attempt: &u64| history.invoke_with(*attempt, *attempt, wish);
            let history = first_attempts.iter().fold(TestHistory::default(), invoke);
            let lowered = EventKind::LimitInvoked {
                lock: super::super::test_history::LOCK.to_owned(),
                limit: Some(1),
            };
            let history = invoke(history.event(8, 9, lowered), &9);
            history.grant_share(10, (9, 1, 9), [2, 1]).violated()
        };
        assert_eq!(violated(&[1], 0), [], "a repeated call");
        assert_eq!(violated(&[], 1_000), [], "a call that waited");
        assert_eq!(violated(&[], 0), [Rule::Exclusion], "a first attempt");
    }
}
