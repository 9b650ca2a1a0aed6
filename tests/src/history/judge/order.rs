//! The rule that waiters are granted in the order of the queue.

use std::collections::BTreeMap;

use leasehold_server::lock::EXCLUSIVE_WEIGHT;

use super::{Rule, Violation, index::HistoryIndex};
use crate::history::{CallRequest, EventKind, Fault};

/// Time for which a waiter may still be unanswered after another call was granted the lock that the
/// waiter did not get: its wait may have timed out before that grant.
const ANSWER_DELAY_US: u64 = 5_000_000;

/// Result of the check.
#[derive(Default)]
pub(super) struct OrderCheck {
    pub(super) pairs: usize,
    pub(super) violations: Vec<Violation>,
}

/// A grant of an exclusive lock.
struct ExclusiveGrant {
    attempt: u64,
    call: u64,
    invoked_at_us: u64,
    granted_at_us: u64,
    token: u64,
}

/// An exclusive call in the queue.
struct QueuedCall {
    attempt: u64,
    call: u64,
    invoked_at_us: u64,
    /// Time at which the client received its queue position. A unary call counts as queued after a
    /// time in which the command was executed.
    queued_at_us: u64,
    /// Earliest time at which the wait of the attempt may have timed out, by the clock of its
    /// broker, which may be faster by a fifth.
    timeout_at_us: u64,
    /// Time at which the attempt ended, and its token if it was granted the lock.
    ended: Option<(u64, Option<u64>)>,
}

/// Checks that no call is granted an exclusive lock before an attempt that was queued before the
/// call was sent. Attempts are not compared while a fault can have made a broker of their call silent or
/// delayed the claim of a hand-off. Neither are calls under a lease, which may enter a lock that the
/// lease holds, and attempts whose lease had expired, which were granted the lock at an unknown time.
pub(super) fn check(index: &HistoryIndex<'_>) -> OrderCheck {
    let mut grants = BTreeMap::<&str, Vec<ExclusiveGrant>>::new();
    let mut queued = BTreeMap::<&str, BTreeMap<u64, QueuedCall>>::new();
    for event in index.events {
        collect(index, event.at_us, &event.kind, &mut grants, &mut queued);
    }
    let mut check = OrderCheck::default();
    for (lock, waiters) in &queued {
        for waiter in waiters.values() {
            let grants = grants.get(lock).map_or(&[][..], Vec::as_slice);
            // Grants are in the order of time, and a call is sent before it is granted.
            let first = grants.partition_point(|grant| grant.granted_at_us < waiter.queued_at_us);
            let ended_at_us = waiter.ended.map_or(0, |(ended_at_us, _)| ended_at_us);
            let grants = grants[first..].iter();
            for grant in
                grants.take_while(|grant| grant.granted_at_us <= ended_at_us + ANSWER_DELAY_US)
            {
                compare(index, lock, waiter, grant, &mut check);
            }
        }
    }
    check
}

fn collect<'a>(
    index: &HistoryIndex<'a>,
    at_us: u64,
    kind: &'a EventKind,
    grants: &mut BTreeMap<&'a str, Vec<ExclusiveGrant>>,
    queued: &mut BTreeMap<&'a str, BTreeMap<u64, QueuedCall>>,
) {
    let (EventKind::Invoked(CallRequest { attempt, .. })
    | EventKind::Queued { attempt, .. }
    | EventKind::Granted { attempt, .. }
    | EventKind::Rejected { attempt, .. }
    | EventKind::Cancelled { attempt }) = kind
    else {
        return;
    };
    let Some(sent) = index.attempt(*attempt) else {
        return;
    };
    let is_exclusive = |lock: &str| {
        let requested = sent
            .request
            .locks
            .iter()
            .find(|requested| requested.lock == lock);
        requested.is_some_and(|requested| requested.weight == EXCLUSIVE_WEIGHT)
    };
    if sent.request.under.is_some() {
        return;
    }
    let mut add_waiter = |lock, queued_at_us| {
        let waiters = queued.entry(lock).or_default();
        waiters.entry(*attempt).or_insert(QueuedCall {
            attempt: *attempt,
            call: sent.request.call,
            invoked_at_us: sent.invoked_at_us,
            queued_at_us,
            timeout_at_us: sent.invoked_at_us + sent.request.wait_ms * 1_000 * 5 / 6,
            ended: None,
        });
    };
    match kind {
        EventKind::Invoked(_) => {
            let entry = sent.unary_queue_entry();
            if let Some((lock, queued_at_us)) = entry.filter(|(lock, _)| is_exclusive(lock)) {
                add_waiter(lock, queued_at_us);
            }
        }
        EventKind::Queued { lock, .. } if is_exclusive(lock) => add_waiter(lock, at_us),
        EventKind::Granted { locks, .. } => {
            for granted in locks.iter().filter(|granted| is_exclusive(&granted.lock)) {
                let grants = grants.entry(&granted.lock).or_default();
                grants.push(ExclusiveGrant {
                    attempt: *attempt,
                    call: sent.request.call,
                    invoked_at_us: index.first_invocation(sent.request.call),
                    granted_at_us: at_us,
                    token: granted.token,
                });
                let waiters = queued.entry(&granted.lock).or_default();
                if let Some(waiter) = waiters.get_mut(attempt) {
                    waiter.ended.get_or_insert((at_us, Some(granted.token)));
                }
            }
        }
        EventKind::Rejected {
            lease_expired: true,
            ..
        } => {
            for waiters in queued.values_mut() {
                waiters.remove(attempt);
            }
        }
        _ => {
            let waiters = queued
                .values_mut()
                .filter_map(|waiters| waiters.get_mut(attempt));
            for waiter in waiters {
                waiter.ended.get_or_insert((at_us, None));
            }
        }
    }
}

fn compare(
    index: &HistoryIndex<'_>,
    lock: &str,
    waiter: &QueuedCall,
    grant: &ExclusiveGrant,
    check: &mut OrderCheck,
) {
    let is_later_call = grant.call != waiter.call && grant.invoked_at_us > waiter.queued_at_us;
    let Some((ended_at_us, token)) = waiter.ended.filter(|_| is_later_call) else {
        return;
    };
    let interval = (waiter.invoked_at_us, grant.granted_at_us);
    if is_excused(index, waiter.attempt, interval) {
        return;
    }
    check.pairs += 1;
    let is_passed = match token {
        Some(token) => grant.token < token,
        None => {
            grant.granted_at_us < waiter.timeout_at_us
                && grant.granted_at_us + ANSWER_DELAY_US < ended_at_us
        }
    };
    if is_passed {
        check.violations.push(Violation {
            rule: Rule::QueueOrder,
            at_us: grant.granted_at_us,
            description: format!(
                "lock {lock}: attempt {} was granted token {}, before attempt {}, which was queued \
                 {} µs before the call was sent and ended with token {token:?}",
                grant.attempt,
                grant.token,
                waiter.attempt,
                grant.invoked_at_us - waiter.queued_at_us,
            ),
        });
    }
}

/// Returns true if the attempt may have lost its queue position, or a hand-off to it may have lapsed.
fn is_excused(index: &HistoryIndex<'_>, attempt: u64, interval: (u64, u64)) -> bool {
    let Some(attempt) = index.attempt(attempt) else {
        return true;
    };
    let request = attempt.request;
    // The lock is handed to the newest attempt of the call, whose broker may be another one.
    let is_asked = |broker: &str| {
        let mut attempts = index.attempts_of(request.call);
        attempts.any(|attempt| attempt.request.broker == broker)
    };
    let is_closed = request
        .stream
        .and_then(|stream| index.stream_closed_at(stream));
    is_closed.is_some_and(|closed_at_us| closed_at_us <= interval.1)
        || index.overlaps(interval, |fault| match fault {
            Fault::DataLoss | Fault::StoreStalled | Fault::MessagesLost => true,
            Fault::BrokerKilled { broker }
            | Fault::BrokerPaused { broker }
            | Fault::BrokerDrained { broker } => is_asked(broker),
            Fault::CredentialExpired { client }
            | Fault::RulesDenied { client }
            | Fault::ClientSilent { client } => client == attempt.client,
        })
}

#[cfg(test)]
mod tests {
    use super::{super::test_history::TestHistory, *};

    /// Two calls, of which the second is sent after the first was queued and is granted first.
    fn passed() -> TestHistory {
        let history = TestHistory::default().invoke(0, 1).queue(10, 1);
        let history = history.invoke(11, 2).grant(20, 2, 5, 11).release(21, 2);
        history.grant(30, 1, 6, 0)
    }

    #[test]
    fn a_call_is_not_granted_before_one_that_was_queued_when_it_was_sent() {
        assert_eq!(passed().violated(), [Rule::QueueOrder]);
        let history = TestHistory::default().invoke(0, 1).queue(10, 1);
        let history = history.invoke(11, 2).grant(15, 1, 5, 0).release(16, 1);
        assert_eq!(history.grant(20, 2, 6, 11).violated(), []);
    }

    #[test]
    fn concurrent_calls_are_granted_in_any_order() {
        let history = TestHistory::default().invoke(0, 1).invoke(9, 2);
        let history = history.queue(10, 1).grant(20, 2, 5, 9).release(21, 2);
        assert_eq!(history.grant(30, 1, 6, 0).violated(), []);
    }

    #[test]
    fn a_waiter_that_others_pass_until_its_timeout_is_reported() {
        let rejected_at = |at_ms| {
            let history = TestHistory::default();
            let waits = |request: &mut crate::history::CallRequest| request.wait_ms = 60_000;
            let history = history.invoke_with(0, 1, waits).queue(10, 1);
            let history = history.invoke(11, 2).grant(20, 2, 5, 11).release(21, 2);
            history.reject(at_ms, 1).violated()
        };
        assert_eq!(rejected_at(5_020), []);
        assert_eq!(rejected_at(5_021), [Rule::QueueOrder]);
    }

    #[test]
    fn a_waiter_whose_lease_has_expired_was_granted_the_lock_before() {
        let history = TestHistory::default();
        let waits = |request: &mut CallRequest| request.wait_ms = 60_000;
        let history = history.invoke_with(0, 1, waits).queue(10, 1);
        let history = history.invoke(11, 2).grant(20, 2, 6, 11).release(21, 2);
        assert_eq!(history.reject_expired(5_021, 1).violated(), []);
    }

    #[test]
    fn a_waiter_is_passed_after_its_timeout_however_late_it_is_told() {
        let is_passed_at = |at_ms| {
            let history = TestHistory::default();
            let waits = |request: &mut CallRequest| request.wait_ms = 6_000;
            let history = history.invoke_with(0, 1, waits).queue(10, 1);
            let history = history.invoke_with(11, 2, waits).grant(at_ms, 2, 5, 11);
            let violated = history.release(at_ms + 1, 2).reject(10_900, 1).violated();
            violated.contains(&Rule::QueueOrder)
        };
        assert!(is_passed_at(4_999));
        assert!(!is_passed_at(5_000));
    }

    #[test]
    fn a_unary_call_counts_as_queued_after_two_seconds() {
        let second_sent_at = |at_ms| {
            let unary = |request: &mut CallRequest| {
                (request.stream, request.wait_ms) = (None, 60_000);
            };
            let history = TestHistory::default().invoke_with(0, 1, unary);
            let history = history.invoke(at_ms, 2).grant(3_000, 2, 5, at_ms);
            history.release(3_001, 2).grant(3_010, 1, 6, 0).violated()
        };
        assert_eq!(second_sent_at(2_000), []);
        assert_eq!(second_sent_at(2_001), [Rule::QueueOrder]);
    }

    #[test]
    fn a_closed_stream_or_a_fault_of_its_broker_excuses() {
        assert_eq!(passed().close_stream(15, 1).violated(), []);
        assert_eq!(passed().close_stream(25, 1).violated(), [Rule::QueueOrder]);
        let killed = |broker: &str| {
            let broker = broker.to_owned();
            passed()
                .fault([12, 13], Fault::BrokerKilled { broker })
                .violated()
        };
        assert_eq!(killed("b"), []);
        assert_eq!(killed("other"), [Rule::QueueOrder]);
    }

    #[test]
    fn a_fault_of_the_broker_of_another_attempt_of_the_call_excuses() {
        let paused = |call| {
            let hedged = passed().invoke_with(11, 3, |request| {
                request.call = call;
                request.broker = "other".to_owned();
            });
            let broker = "other".to_owned();
            let history = hedged.fault([12, 13], Fault::BrokerPaused { broker });
            history.violated()
        };
        assert_eq!(paused(1), []);
        assert_eq!(paused(3), [Rule::QueueOrder]);
    }
}
