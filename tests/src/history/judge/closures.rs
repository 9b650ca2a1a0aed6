//! The rule that a closed lock is granted to nobody.

use std::collections::BTreeMap;

use leasehold_server::lock::EXCLUSIVE_WEIGHT;

use super::{Rule, Violation, index::HistoryIndex};
use crate::history::{EventKind, Fault};

/// Result of the check.
#[derive(Default)]
pub(super) struct ClosureCheck {
    pub(super) closures: usize,
    pub(super) violations: Vec<Violation>,
}

/// Deliveries, openings and closures in a history.
struct Observations<'a> {
    /// Delivered locks by name.
    delivered: BTreeMap<&'a str, Vec<DeliveredLock<'a>>>,
    openings: Vec<Opening<'a>>,
    closures: Vec<ObservedClosure<'a>>,
}

/// A closure of a lock, and which leases it keeps out.
struct ObservedClosure<'a> {
    lock: &'a str,
    /// Time from which an opening of the lock, or a loss of data, can end the closure.
    from_us: u64,
    /// Time until which the closure lasts by any clock of the store.
    until_us: u64,
    kept_out: KeptOut<'a>,
}

/// Leases that a closure keeps out.
enum KeptOut<'a> {
    /// Those that were granted the lock after this lease, with a higher token.
    After { lease: &'a str, token: u64 },
    /// Those of calls that were sent after this time.
    CallsSince(u64),
}

/// An operator's command to open a lock.
struct Opening<'a> {
    lock: &'a str,
    from_us: u64,
    /// Time of the confirmation, after which the command has no effect.
    to_us: u64,
}

/// A delivered lock.
struct DeliveredLock<'a> {
    at_us: u64,
    lease: &'a str,
    token: u64,
    /// Time at which the first attempt of the call was sent.
    invoked_at_us: u64,
    /// True if the call can have entered a lock that its lease held.
    is_entry: bool,
}

/// Checks that no lease is delivered on a closed lock. A closure by `at_least` is observed for
/// exclusive leases: others may admit other holders before they end. A closure by an operator is
/// observed from its confirmation on.
pub(super) fn check(index: &HistoryIndex<'_>) -> ClosureCheck {
    let Observations {
        delivered,
        openings,
        closures,
    } = observe(index);
    let mut check = ClosureCheck {
        closures: closures.len(),
        violations: Vec::new(),
    };
    for closure in &closures {
        let delivered = delivered.get(closure.lock).into_iter().flatten();
        let is_excused = |at_us: u64| {
            openings
                .iter()
                .any(|opening| opening.may_end(closure, at_us))
                || index.has_begun((closure.from_us, at_us), |fault| *fault == Fault::DataLoss)
        };
        let early = delivered
            .filter(|delivered| closure.keeps_out(delivered) && !is_excused(delivered.at_us));
        check.violations.extend(early.map(|delivered| Violation {
            rule: Rule::ClosedLock,
            at_us: delivered.at_us,
            description: format!(
                "lock {} was granted to {} although it was closed from {} µs until {} µs at least",
                closure.lock, delivered.lease, closure.from_us, closure.until_us
            ),
        }));
    }
    check
}

/// Collects the delivered locks, the closures and the openings of a history.
fn observe<'a>(index: &HistoryIndex<'a>) -> Observations<'a> {
    let mut delivered = BTreeMap::<&str, Vec<DeliveredLock<'_>>>::new();
    let mut openings = BTreeMap::<u64, Opening<'_>>::new();
    let mut closing = BTreeMap::new();
    let mut closures = Vec::new();
    for event in index.events {
        match &event.kind {
            EventKind::Granted {
                attempt,
                lease,
                locks,
                ..
            } => {
                let Some(attempt) = index.attempt(*attempt) else {
                    continue;
                };
                let request = attempt.request;
                let invoked_at_us = index.first_invocation(request.call);
                for granted in locks {
                    let of_lock = delivered.entry(&granted.lock).or_default();
                    of_lock.push(DeliveredLock {
                        at_us: event.at_us,
                        lease,
                        token: granted.token,
                        invoked_at_us,
                        is_entry: request.under.is_some(),
                    });
                    if request.at_least_ms > 0 && granted.weight == EXCLUSIVE_WEIGHT {
                        closures.push(ObservedClosure {
                            lock: &granted.lock,
                            from_us: invoked_at_us,
                            until_us: invoked_at_us + shortest_us(request.at_least_ms),
                            kept_out: KeptOut::After {
                                lease,
                                token: granted.token,
                            },
                        });
                    }
                }
            }
            EventKind::CloseInvoked {
                close,
                lock,
                for_ms,
            } => {
                closing.insert(*close, (lock.as_str(), event.at_us, *for_ms));
            }
            EventKind::CloseAnswered { close } => {
                if let Some((lock, from_us, for_ms)) = closing.remove(close) {
                    closures.push(ObservedClosure {
                        lock,
                        from_us,
                        until_us: from_us + shortest_us(for_ms),
                        kept_out: KeptOut::CallsSince(event.at_us),
                    });
                }
            }
            EventKind::OpenInvoked { open, lock } => {
                let opening = Opening {
                    lock,
                    from_us: event.at_us,
                    to_us: u64::MAX,
                };
                openings.insert(*open, opening);
            }
            EventKind::OpenAnswered { open } => {
                if let Some(opening) = openings.get_mut(open) {
                    opening.to_us = event.at_us;
                }
            }
            _ => {}
        }
    }
    Observations {
        delivered,
        openings: openings.into_values().collect(),
        closures,
    }
}

impl Opening<'_> {
    /// Returns true if the command may have ended the closure before `at_us`.
    fn may_end(&self, closure: &ObservedClosure<'_>, at_us: u64) -> bool {
        self.lock == closure.lock && self.from_us <= at_us && self.to_us >= closure.from_us
    }
}

impl ObservedClosure<'_> {
    fn keeps_out(&self, delivered: &DeliveredLock<'_>) -> bool {
        delivered.at_us < self.until_us
            && match self.kept_out {
                KeptOut::After { lease, token } => {
                    delivered.lease != lease && delivered.token > token
                }
                KeptOut::CallsSince(at_us) => {
                    delivered.invoked_at_us >= at_us && !delivered.is_entry
                }
            }
    }
}

/// Returns the shortest time that passes while the clock of the store, which may be faster by a
/// fifth, advances by `ms`, in microseconds.
fn shortest_us(ms: u64) -> u64 {
    ms * 1_000 * 5 / 6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::judge::test_history::{LOCK, TestHistory};

    /// A lock with `at_least` that is released at once, and granted to another call at 1 s.
    fn granted_again(at_least_ms: u64) -> TestHistory {
        let history = TestHistory::default();
        let history = history.invoke_with(0, 1, |request| request.at_least_ms = at_least_ms);
        let history = history
            .grant(1, 1, 10, 0)
            .release(2, 1)
            .answer_release(3, 1);
        history.invoke(4, 2).grant(1_000, 2, 20, 4)
    }

    #[test]
    fn a_lock_with_at_least_is_granted_to_nobody_before() {
        assert_eq!(granted_again(1_199).violated(), []);
        assert_eq!(granted_again(1_202).violated(), [Rule::ClosedLock]);
    }

    fn open(history: TestHistory, at_ms: u64) -> TestHistory {
        let lock = LOCK.to_owned();
        history.event(at_ms, "operator", EventKind::OpenInvoked { open: 1, lock })
    }

    #[test]
    fn an_opening_and_a_loss_of_data_end_a_closure() {
        assert_eq!(open(granted_again(5_000), 500).violated(), []);
        let lost = granted_again(5_000).fault([500, 501], Fault::DataLoss);
        assert_eq!(lost.violated(), []);
    }

    #[test]
    fn an_opening_has_an_effect_until_its_confirmation() {
        let closed_after_open = |answered_at_ms: Option<u64>| {
            let closed = EventKind::CloseInvoked {
                close: 2,
                lock: LOCK.to_owned(),
                for_ms: 5_000,
            };
            let mut history = open(TestHistory::default(), 0);
            if let Some(at_ms) = answered_at_ms {
                history = history.event(at_ms, "operator", EventKind::OpenAnswered { open: 1 });
            }
            let history = history.event(10, "operator", closed);
            let answered = EventKind::CloseAnswered { close: 2 };
            let history = history.event(20, "operator", answered);
            history.invoke(30, 1).grant(40, 1, 10, 30).violated()
        };
        assert_eq!(closed_after_open(None), [], "no confirmation");
        assert_eq!(closed_after_open(Some(9)), [Rule::ClosedLock]);
    }

    #[test]
    fn calls_after_the_confirmation_of_a_closure_are_granted_nothing() {
        let granted = |invoked_ms| {
            let closed = EventKind::CloseInvoked {
                close: 1,
                lock: LOCK.to_owned(),
                for_ms: 1_200,
            };
            let history = TestHistory::default().event(0, "operator", closed);
            let answered = EventKind::CloseAnswered { close: 1 };
            let history = history.event(10, "operator", answered);
            history
                .invoke(invoked_ms, 1)
                .grant(999, 1, 10, invoked_ms)
                .violated()
        };
        assert_eq!(granted(9), []);
        assert_eq!(granted(10), [Rule::ClosedLock]);
    }
}
