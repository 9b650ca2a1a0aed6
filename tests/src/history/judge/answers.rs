//! The rule that a call is answered when its wait has timed out.

use super::{Rule, Violation, index::HistoryIndex};
use crate::history::Fault;

/// Time for the reply after the wait has timed out: a cancellation and an inspection of the lock,
/// each with the deadline of a store command, and the way to the client.
const ANSWER_DELAY_US: u64 = 5_000_000;

/// Checks that each attempt at a live broker, on a stream that was not closed, was answered.
pub(super) fn check(index: &HistoryIndex<'_>) -> Vec<Violation> {
    let ended_at_us = index.events.last().map_or(0, |event| event.at_us);
    let mut violations = Vec::new();
    for attempt in index.attempts() {
        let request = attempt.request;
        let due_at_us = attempt.invoked_at_us + request.wait_ms * 1_000 + ANSWER_DELAY_US;
        let ends = [attempt.granted_at_us, attempt.failed_at_us];
        let closed = request
            .stream
            .and_then(|stream| index.stream_closed_at(stream));
        let is_over = ends
            .into_iter()
            .flatten()
            .chain(closed)
            .any(|at_us| at_us <= due_at_us);
        let is_excused = is_over
            || due_at_us > ended_at_us
            || index.overlaps((attempt.invoked_at_us, due_at_us), |fault| match fault {
                Fault::BrokerKilled { broker }
                | Fault::BrokerPaused { broker }
                | Fault::BrokerDrained { broker } => *broker == request.broker,
                Fault::DataLoss | Fault::StoreStalled | Fault::MessagesLost => false,
                Fault::CredentialExpired { client }
                | Fault::RulesDenied { client }
                | Fault::ClientSilent { client } => client == attempt.client,
            });
        let stopped_at_us = index.client_stopped_at(attempt.client, attempt.invoked_at_us);
        if !is_excused && stopped_at_us.is_none_or(|at_us| at_us > due_at_us) {
            violations.push(Violation {
                rule: Rule::Answer,
                at_us: due_at_us,
                description: format!(
                    "attempt {} of {} at broker {} was not answered {} µs after its wait_timeout",
                    request.attempt, attempt.client, request.broker, ANSWER_DELAY_US
                ),
            });
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::{super::test_history::TestHistory, *};
    use crate::history::EventKind;

    /// End of the wait of a call, and the time of the answer, in milliseconds.
    const DUE_MS: u64 = 1_000 + ANSWER_DELAY_US / 1_000;

    fn unanswered() -> TestHistory {
        let history = TestHistory::default().invoke(0, 1);
        history.event(2 * DUE_MS, 2, EventKind::ClientStopped)
    }

    #[test]
    fn a_call_is_answered_after_its_wait() {
        assert_eq!(unanswered().violated(), [Rule::Answer]);
        assert_eq!(unanswered().reject(DUE_MS, 1).violated(), []);
        assert_eq!(unanswered().grant(DUE_MS, 1, 5, 0).violated(), []);
        assert_eq!(
            unanswered().reject(DUE_MS + 1, 1).violated(),
            [Rule::Answer]
        );
    }

    #[test]
    fn a_call_that_its_client_or_broker_left_needs_no_answer() {
        assert_eq!(unanswered().cancel(DUE_MS, 1).violated(), []);
        assert_eq!(unanswered().close_stream(DUE_MS, 1).violated(), []);
        let stopped = unanswered().event(1, 1, EventKind::ClientStopped);
        assert_eq!(stopped.violated(), []);
        let broker = "b".to_owned();
        let killed = unanswered().fault([1, 2], Fault::BrokerKilled { broker });
        assert_eq!(killed.violated(), []);
    }
}
