//! The rule that a lease ends only for a cause.

use super::{Rule, Violation, index::HistoryIndex, leases::LeaseState};
use crate::history::{Fault, LossReason};

/// Cause for which a lease may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossCause {
    /// The validity had passed without a confirmed renewal.
    ValidityPassed,
    /// The client had released the lease.
    ReleasedByHolder,
    /// The lease had been held for its `max_hold`.
    MaxHold,
    /// An operator had revoked the lease.
    Revoked,
    /// The store had lost data since the lease was requested.
    DataLoss,
    /// The stream of the lease had been closed for its `disconnect_grace`, or its broker had not heard
    /// the client.
    DisconnectGrace,
    /// The client had attached the lease to another stream, or repeated its call there.
    AttachedElsewhere,
    /// The credential of the client was no longer accepted.
    CredentialExpired,
    /// The access rules no longer allowed the lock.
    RulesDenied,
}

/// Returns a cause for the loss that the client of the lease received at the given time.
pub(super) fn find_cause(
    index: &HistoryIndex<'_>,
    state: &LeaseState<'_>,
    (at_us, reason): (u64, LossReason),
) -> Option<LossCause> {
    let since_invoked = (state.invoked_at_us, at_us);
    let graces = state.disconnect_grace_ms.into_iter();
    let was_cut = graces.clone().any(|grace_ms| {
        let streams = state.streams.keys();
        let mut closed = streams.filter_map(|stream| index.stream_closed_at(*stream));
        closed.any(|closed_at_us| closed_at_us + grace_ms * 1_000 <= at_us)
    });
    let is_silent = |fault: &Fault| state.is_silenced_by(index, fault);
    let was_silent = graces.count() > 0 && index.overlaps(since_invoked, is_silent);
    let has_moved =
        reason == LossReason::Moved && state.streams.len() + index.repeats(state, at_us) > 1;
    // The store measures it, on a clock that may be faster by a fifth.
    let max_hold_us = state.max_hold_ms.map(|max_hold_ms| max_hold_ms * 5_000 / 6);
    let causes = [
        (LossCause::ReleasedByHolder, state.is_released),
        (LossCause::AttachedElsewhere, has_moved),
        (LossCause::Revoked, state.was_revoked),
        (
            LossCause::MaxHold,
            max_hold_us.is_some_and(|max_hold_us| state.invoked_at_us + max_hold_us <= at_us),
        ),
        (
            LossCause::DataLoss,
            index.has_begun(since_invoked, |fault| *fault == Fault::DataLoss),
        ),
        (LossCause::ValidityPassed, state.until_us <= at_us),
        (LossCause::DisconnectGrace, was_cut || was_silent),
        (
            LossCause::CredentialExpired,
            index.has_begun((0, at_us), |fault| {
                matches!(fault, Fault::CredentialExpired { client } if client == state.client)
            }),
        ),
        (
            LossCause::RulesDenied,
            index.has_begun((0, at_us), |fault| {
                matches!(fault, Fault::RulesDenied { client } if client == state.client)
            }),
        ),
    ];
    let found = causes.into_iter().find(|(_, applies)| *applies);
    found.map(|(cause, _)| cause)
}

/// Returns the violation for a loss without a cause. If an attempt of one of the calls of the lease
/// failed or was cancelled, its rollback is the likely cause.
pub(super) fn unexplained(
    index: &HistoryIndex<'_>,
    lease: &str,
    state: &LeaseState<'_>,
    (at_us, reason): (u64, LossReason),
) -> Violation {
    let mut attempts = index.attempts();
    let failed = attempts.find(|attempt| {
        state.calls.contains(&attempt.request.call)
            && attempt
                .failed_at_us
                .is_some_and(|failed_at_us| failed_at_us <= at_us)
    });
    let left_us = state.until_us.saturating_sub(at_us);
    let loss = format!(
        "lease {lease} of {} ended as {reason:?} with {left_us} µs left",
        state.client
    );
    let (rule, description) = match failed {
        Some(failed) => (
            Rule::RolledBackAfterDelivery,
            format!("{loss} after attempt {} had failed", failed.request.attempt),
        ),
        None => (Rule::LossCause, format!("{loss} without a cause")),
    };
    Violation {
        rule,
        at_us,
        description,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::test_history::{TTL_MS, TestHistory},
        *,
    };
    use crate::history::{CallRequest, EventKind};

    fn held(change: impl FnOnce(&mut CallRequest)) -> TestHistory {
        let history = TestHistory::default().invoke_with(1, 1, change);
        history.grant(2, 1, 10, 1)
    }

    fn lost(history: TestHistory, at_ms: u64) -> Vec<Rule> {
        history.lose(at_ms, 1, LossReason::NotFound).violated()
    }

    #[test]
    fn a_lease_is_lost_when_its_validity_has_passed() {
        assert_eq!(lost(held(|_| {}), TTL_MS), [Rule::LossCause]);
        assert_eq!(lost(held(|_| {}), TTL_MS + 1), []);
        let renewed = held(|_| {}).renew(TTL_MS, 1, TTL_MS - 1);
        assert_eq!(lost(renewed, TTL_MS + 1), [Rule::LossCause]);
    }

    #[test]
    fn a_released_lease_may_end() {
        assert_eq!(lost(held(|_| {}).release(3, 1), 4), []);
        assert_eq!(lost(held(|_| {}).release(4, 1), 3), [Rule::LossCause]);
    }

    #[test]
    fn a_lease_is_lost_after_its_max_hold() {
        let limited = || held(|request| request.max_hold_ms = Some(120));
        assert_eq!(lost(limited(), 100), [Rule::LossCause]);
        assert_eq!(lost(limited(), 101), []);
    }

    #[test]
    fn a_revoked_lease_is_lost() {
        let revoke = || EventKind::RevokeInvoked {
            lease: "1".to_owned(),
            unsafe_now: false,
        };
        assert_eq!(lost(held(|_| {}).event(3, "operator", revoke()), 4), []);
        let late = held(|_| {}).event(5, "operator", revoke());
        assert_eq!(lost(late, 4), [Rule::LossCause]);
    }

    #[test]
    fn a_data_loss_explains_the_loss_of_older_leases() {
        let with_data_loss = |from_ms| held(|_| {}).fault([from_ms, 5], Fault::DataLoss);
        assert_eq!(lost(with_data_loss(3), 6), []);
        assert_eq!(lost(with_data_loss(0), 6), [Rule::LossCause]);
    }

    #[test]
    fn a_closed_stream_explains_a_loss_after_the_grace() {
        let cut = |grace_ms| {
            let history = held(|request| request.disconnect_grace_ms = grace_ms);
            history.close_stream(10, 1)
        };
        assert_eq!(lost(cut(Some(50)), 59), [Rule::LossCause]);
        assert_eq!(lost(cut(Some(50)), 60), []);
        assert_eq!(lost(cut(None), 60), [Rule::LossCause]);
    }

    #[test]
    fn a_paused_broker_explains_the_loss_of_a_lease_with_a_grace() {
        let paused = |grace_ms, broker: &str| {
            let opened = EventKind::StreamOpened {
                stream: 1,
                broker: "b".to_owned(),
            };
            let history = held(|request| request.disconnect_grace_ms = grace_ms);
            let broker = broker.to_owned();
            history
                .event(0, 1, opened)
                .fault([3, 9], Fault::BrokerPaused { broker })
        };
        assert_eq!(lost(paused(Some(5), "b"), 9), []);
        assert_eq!(lost(paused(Some(5), "other"), 9), [Rule::LossCause]);
        assert_eq!(lost(paused(None, "b"), 9), [Rule::LossCause]);
    }

    #[test]
    fn a_lease_leaves_a_stream_only_when_it_was_attached_elsewhere() {
        let moved = |history: TestHistory| history.lose(9, 1, LossReason::Moved).violated();
        let attach = EventKind::AttachInvoked {
            lease: "1".to_owned(),
            stream: 7,
        };
        assert_eq!(moved(held(|_| {}).event(5, 1, attach)), []);
        assert_eq!(moved(held(|_| {})), [Rule::LossCause]);
        let repeated = held(|_| {}).invoke_with(5, 2, |request| request.call = 1);
        assert_eq!(moved(repeated), []);
    }

    #[test]
    fn a_credential_or_a_rule_explains_the_losses_of_its_client() {
        let faults = |client: &str| {
            let client = client.to_owned();
            [
                Fault::CredentialExpired {
                    client: client.clone(),
                },
                Fault::RulesDenied { client },
            ]
        };
        for (own, other) in faults("1").into_iter().zip(faults("2")) {
            assert_eq!(lost(held(|_| {}).fault([3, 4], own), 5), []);
            let history = held(|_| {}).fault([3, 4], other);
            assert_eq!(lost(history, 5), [Rule::LossCause]);
        }
    }

    #[test]
    fn the_rollback_of_another_attempt_is_recognised() {
        let hedged = || held(|_| {}).invoke_with(1, 2, |request| request.call = 1);
        assert_eq!(
            lost(hedged().cancel(3, 2), 9),
            [Rule::RolledBackAfterDelivery]
        );
        assert_eq!(lost(hedged().cancel(10, 2), 9), [Rule::LossCause]);
    }
}
