//! The rule that a lock without a holder is granted to a waiter (G3).

use std::collections::BTreeMap;

use leasehold_server::lock::expiry_ms;

use super::{
    Rule, Violation,
    index::{Attempt, AttemptEnd, HistoryIndex},
    leases::{LeaseState, LeaseTable},
};
use crate::history::{Event, EventKind, Fault, ReleaseScope};

/// Maximum time between the end of the last hold of a lock and the delivery to a live waiter: the
/// next touch by its broker, and the messages.
const GRANT_DELAY_US: u64 = 2_000_000;
/// Time after which a hand-off to a waiter whose caller has gone lapses: 3 s of the store, whose
/// clock may be slower by a fifth.
const LAPSE_US: u64 = 3_600_000;
/// Maximum time after a fault, which can leave a waiter in the queue whose caller has gone. A loss of
/// data can bring back several.
const GRANT_DELAY_AFTER_FAULT_US: u64 = LAPSE_US + GRANT_DELAY_US;
/// Time for which such waiters can stay: the longest wait of a call, by a slow clock.
const LEFT_WAITERS_US: u64 = 45_000_000;
/// Time after which an attempt that was cancelled on a live stream holds nothing: the commands of
/// its rollback, or of the release of a lease that was on its way.
const STREAM_CANCEL_US: u64 = 2_000_000;
/// Time for which a call on a stream that broke keeps its queue position, with the command.
const QUEUE_GRACE_US: u64 = 8_000_000;
/// Time after which a broker that died delays no grant: it counts as silent, and its waiters are
/// removed.
const DEAD_BROKER_US: u64 = 15_000_000;

/// Result of the check.
#[derive(Default)]
pub(super) struct VacancyCheck {
    /// Number of waiting attempts for whose lock all holds had ended at some time of the wait.
    pub(super) waits: usize,
    pub(super) violations: Vec<Violation>,
}

/// Interval in which a lock may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Interval {
    from_us: u64,
    to_us: u64,
}

/// Intervals in which leases may hold locks, collected event by event.
#[derive(Default)]
pub(super) struct HoldIntervals<'a> {
    /// Beginning of each present hold, by lease and lock.
    present: BTreeMap<(&'a str, &'a str), u64>,
    ended: BTreeMap<&'a str, Vec<Interval>>,
    /// Holds that a release without a reply has ended: their locks, with the index in `ended`.
    unanswered: BTreeMap<u64, Vec<(&'a str, usize)>>,
}

impl<'a> HoldIntervals<'a> {
    /// Records the holds that the event began or ended, after the event was applied to the leases.
    pub(super) fn observe(
        &mut self,
        index: &HistoryIndex<'_>,
        leases: &LeaseTable<'a>,
        event: &'a Event,
    ) {
        let at_us = event.at_us;
        match &event.kind {
            EventKind::Granted { lease, .. } => {
                if let Some(state) = leases.get(lease) {
                    for lock in state.locks.keys() {
                        self.present.entry((lease, lock)).or_insert(at_us);
                    }
                }
            }
            EventKind::ReleaseInvoked {
                release,
                lease,
                scope,
            } => {
                if let Some(state) = leases.get(lease) {
                    let ended =
                        self.end(lease, state, at_us, |lock| !state.locks.contains_key(lock));
                    // After a loss of data the release of an entry keeps the lock closed until the
                    // hold would have expired.
                    let has_lost_data = index.has_begun((state.invoked_at_us, at_us), |fault| {
                        *fault == Fault::DataLoss
                    });
                    if !(has_lost_data && matches!(scope, ReleaseScope::Entry { .. })) {
                        self.unanswered.insert(*release, ended);
                    }
                }
            }
            EventKind::ReleaseAnswered {
                release,
                is_ok: true,
                ..
            } => {
                for (lock, index) in self.unanswered.remove(release).unwrap_or_default() {
                    if let Some(intervals) = self.ended.get_mut(lock) {
                        intervals[index].to_us = intervals[index].to_us.min(at_us);
                    }
                }
            }
            EventKind::Lost { lease, .. } => {
                if let Some(state) = leases.get(lease) {
                    self.end(lease, state, at_us, |_| true);
                }
            }
            EventKind::ClientStopped => {
                for (lease, state) in leases.of_client(&event.client) {
                    self.end(lease, state, at_us, |_| true);
                }
            }
            _ => {}
        }
    }

    /// Ends the holds of a lease on some locks. The store ends them by expiry at the latest.
    fn end(
        &mut self,
        lease: &str,
        state: &LeaseState<'a>,
        at_us: u64,
        is_ended: impl Fn(&str) -> bool,
    ) -> Vec<(&'a str, usize)> {
        let to_us = at_us + expiry_us(state.ttl_ms, state.lock_delay_ms);
        let mut ended = Vec::new();
        self.present.retain(|(holder, lock), from_us| {
            let ends = *holder == lease && is_ended(lock);
            if ends {
                let intervals = self.ended.entry(lock).or_default();
                ended.push((*lock, intervals.len()));
                intervals.push(Interval {
                    from_us: *from_us,
                    to_us,
                });
            }
            !ends
        });
        ended
    }

    /// Returns the intervals of each lock, including the holds that have not ended.
    fn finish(mut self) -> BTreeMap<&'a str, Vec<Interval>> {
        for ((_, lock), from_us) in self.present {
            let to_us = u64::MAX;
            let intervals = self.ended.entry(lock).or_default();
            intervals.push(Interval { from_us, to_us });
        }
        self.ended
    }
}

/// Checks that no attempt waits for a lock at a live broker while no lease can hold the lock and no
/// fault is in effect.
pub(super) fn check<'a>(index: &HistoryIndex<'a>, holds: HoldIntervals<'a>) -> VacancyCheck {
    let ended_at_us = index.events.last().map_or(0, |event| event.at_us);
    let mut held = holds.finish();
    for attempt in index.attempts() {
        if let Some(interval) = hold_of_attempt(index, attempt) {
            for requested in &attempt.request.locks {
                held.entry(&requested.lock).or_default().push(interval);
            }
        }
    }
    for (lock, interval) in operator_closures(index) {
        held.entry(lock).or_default().push(interval);
    }
    let faults: Vec<_> = fault_intervals(index).collect();
    for intervals in held.values_mut() {
        intervals.extend(&faults);
        intervals.sort_unstable();
    }
    let mut check = VacancyCheck::default();
    for (lock, attempt, queued_at_us) in queue_entries(index) {
        let end_us = index
            .end_of(attempt)
            .map_or(ended_at_us, |(at_us, _)| at_us);
        let intervals = held.get(lock).map_or(&faults[..], Vec::as_slice);
        let wait = Interval {
            from_us: queued_at_us,
            to_us: end_us,
        };
        let vacancies = vacancies(intervals, wait);
        check.waits += usize::from(!vacancies.is_empty());
        for vacancy in vacancies {
            let returned = returned_waiters(index, lock, vacancy.from_us);
            let delay_us =
                grant_delay_us(&faults, vacancy.from_us) + LAPSE_US * returned.saturating_sub(1);
            if vacancy.to_us - vacancy.from_us <= delay_us {
                continue;
            }
            check.violations.push(Violation {
                rule: Rule::HolderReplaced,
                at_us: vacancy.from_us + delay_us,
                description: format!(
                    "lock {lock} was free from {} µs to {} µs, while attempt {} of {} waited for it",
                    vacancy.from_us, vacancy.to_us, attempt.request.attempt, attempt.client
                ),
            });
        }
    }
    check
}

/// Returns the attempts that wait for their only lock, with the time from which they are queued.
fn queue_entries<'i, 'a>(
    index: &'i HistoryIndex<'a>,
) -> impl Iterator<Item = (&'i str, &'i Attempt<'a>, u64)> {
    let unary = index.attempts().filter_map(|attempt| {
        let (lock, queued_at_us) = attempt.unary_queue_entry()?;
        Some((lock, attempt, queued_at_us))
    });
    let on_streams = index.events.iter().filter_map(|event| match &event.kind {
        EventKind::Queued { attempt, lock, .. } => {
            let attempt = index.attempt(*attempt)?;
            let is_only = attempt.request.locks.len() == 1;
            is_only.then_some((lock.as_str(), attempt, event.at_us))
        }
        _ => None,
    });
    unary.chain(on_streams)
}

/// Returns the interval in which an attempt may hold its locks although its client has no lease.
fn hold_of_attempt(index: &HistoryIndex<'_>, attempt: &Attempt<'_>) -> Option<Interval> {
    let request = attempt.request;
    let (at_us, end) = index
        .end_of(attempt)
        .unwrap_or((u64::MAX, AttemptEnd::Abandoned));
    // A call for several locks holds the first ones while it waits for the next one.
    let from_us = match request.locks.len() {
        1 => at_us,
        _ => attempt.invoked_at_us,
    };
    let expiry_us = expiry_us(request.ttl_ms, request.lock_delay_ms);
    // The lock stays closed for that time after the grant, which is before the reply.
    let at_least_us = request.at_least_ms * 1_200;
    let hold_us = match end {
        AttemptEnd::Rejected => 0,
        AttemptEnd::Granted => at_least_us,
        AttemptEnd::Abandoned => expiry_us.max(QUEUE_GRACE_US + at_least_us),
        AttemptEnd::Cancelled => {
            let is_live = |stream| {
                let closed_at_us = index.stream_closed_at(stream);
                closed_at_us.is_none_or(|closed_at_us| closed_at_us > at_us + STREAM_CANCEL_US)
            };
            match request.stream.is_some_and(is_live) {
                true => STREAM_CANCEL_US + at_least_us,
                false => STREAM_CANCEL_US + expiry_us.max(at_least_us),
            }
        }
    };
    let to_us = at_us.saturating_add(hold_us);
    (to_us > from_us).then_some(Interval { from_us, to_us })
}

/// Returns the intervals in which an operator may have closed a lock, by a clock of the store that
/// is slower by a fifth.
fn operator_closures<'a>(index: &HistoryIndex<'a>) -> impl Iterator<Item = (&'a str, Interval)> {
    index.events.iter().filter_map(|event| match &event.kind {
        EventKind::CloseInvoked { lock, for_ms, .. } => {
            let from_us = event.at_us;
            let to_us = from_us + for_ms * 1_200;
            Some((lock.as_str(), Interval { from_us, to_us }))
        }
        _ => None,
    })
}

fn fault_intervals(index: &HistoryIndex<'_>) -> impl Iterator<Item = Interval> {
    index.faults().iter().map(|interval| {
        let to_us = match interval.fault {
            Fault::BrokerKilled { .. } => interval.from_us + DEAD_BROKER_US,
            _ => interval.to_us,
        };
        Interval {
            from_us: interval.from_us,
            to_us,
        }
    })
}

/// Returns the number of waiters that a loss of data may have brought back, although their callers
/// had gone, and whose wait has not passed at `at_us`.
fn returned_waiters(index: &HistoryIndex<'_>, lock: &str, at_us: u64) -> u64 {
    let losses = index.faults().iter();
    let losses = losses.filter(|fault| *fault.fault == Fault::DataLoss && fault.from_us <= at_us);
    let Some(lost_at_us) = losses.map(|fault| fault.from_us).max() else {
        return 0;
    };
    let may_wait = |attempt: &&Attempt<'_>| {
        // The store removes a waiter only when its wait has passed by any clock.
        let wait_us = expiry_us(attempt.request.wait_ms, 0);
        attempt
            .request
            .locks
            .iter()
            .any(|requested| requested.lock == lock)
            && attempt.invoked_at_us + wait_us > at_us
            && index
                .end_of(attempt)
                .is_some_and(|(ended_at_us, _)| ended_at_us <= lost_at_us)
    };
    let returned = index.attempts().filter(may_wait).count();
    u64::try_from(returned).expect("few")
}

/// Returns the maximum time until the grant of a lock that is free from `at_us` on.
fn grant_delay_us(faults: &[Interval], at_us: u64) -> u64 {
    let is_recent = |fault: &Interval| {
        fault.from_us <= at_us && at_us < fault.to_us.saturating_add(LEFT_WAITERS_US)
    };
    match faults.iter().any(is_recent) {
        true => GRANT_DELAY_AFTER_FAULT_US,
        false => GRANT_DELAY_US,
    }
}

/// Returns the time after which a lease that is not renewed has ended in the store, whose clock may
/// be slower than that of the history by a fifth.
fn expiry_us(ttl_ms: u64, lock_delay_ms: u64) -> u64 {
    (expiry_ms(ttl_ms) + lock_delay_ms) * 1_200
}

/// Returns the parts of an interval that none of the sorted intervals covers.
fn vacancies(intervals: &[Interval], within: Interval) -> Vec<Interval> {
    let (mut vacancies, mut free_from_us) = (Vec::new(), within.from_us);
    for interval in intervals {
        if interval.from_us >= within.to_us {
            break;
        }
        if interval.from_us > free_from_us {
            let to_us = interval.from_us;
            vacancies.push(Interval {
                from_us: free_from_us,
                to_us,
            });
        }
        free_from_us = free_from_us.max(interval.to_us);
    }
    if free_from_us < within.to_us {
        vacancies.push(Interval {
            from_us: free_from_us,
            to_us: within.to_us,
        });
    }
    vacancies
}

#[cfg(test)]
mod tests {
    use super::{
        super::test_history::{LOCK, TTL_MS, TestHistory},
        *,
    };
    use leasehold_server::lock::EXCLUSIVE_WEIGHT;

    use crate::history::{CallRequest, GrantedLock, LockRequest, LossReason, Validity};

    const GRANT_DELAY_MS: u64 = GRANT_DELAY_US / 1_000;
    /// Time after which a lease of a client that has stopped has ended in the store.
    const EXPIRY_MS: u64 = (TTL_MS * 6 / 5 + 250) * 6 / 5;

    /// A waiting call for a lock whose holder stops at 1 s, or releases its lease then.
    fn waits_for(holder_ends: impl FnOnce(TestHistory) -> TestHistory) -> TestHistory {
        let history = TestHistory::default().invoke(0, 1).grant(1, 1, 5, 0);
        holder_ends(history.invoke_with(2, 2, waits).queue(3, 2))
    }

    fn waits(request: &mut CallRequest) {
        request.wait_ms = 60_000;
    }

    fn dies(history: TestHistory) -> TestHistory {
        history.event(1_000, 1, EventKind::ClientStopped)
    }

    #[test]
    fn a_waiter_is_granted_the_lock_of_a_dead_holder() {
        let granted_at = |at_ms| waits_for(dies).grant(at_ms, 2, 6, at_ms).violated();
        let due_ms = 1_000 + EXPIRY_MS + GRANT_DELAY_MS;
        assert_eq!(granted_at(due_ms), []);
        assert_eq!(granted_at(due_ms + 1), [Rule::HolderReplaced]);
    }

    /// One of several locks has reached its `max_hold`.
    #[test]
    fn a_lock_of_several_is_free_at_its_own_expiry() {
        let granted_at = |at_ms, locks: &[&str]| {
            let requested = locks.iter().map(|lock| LockRequest {
                lock: (*lock).to_owned(),
                weight: EXCLUSIVE_WEIGHT,
                limit: EXCLUSIVE_WEIGHT,
            });
            let granted = locks.iter().map(|lock| GrantedLock {
                lock: (*lock).to_owned(),
                token: 5,
                weight: EXCLUSIVE_WEIGHT,
                limit: EXCLUSIVE_WEIGHT,
            });
            let granted = EventKind::Granted {
                attempt: 1,
                lease: "1".to_owned(),
                locks: granted.collect(),
                validity: Validity {
                    sent_at_us: 0,
                    ttl_ms: 400,
                    until_us: 400_000,
                },
            };
            let history = TestHistory::default()
                .invoke_with(0, 1, |request| request.locks = requested.collect())
                .event(1, 1, granted)
                .invoke_with(2, 2, waits)
                .queue(3, 2)
                .lose(1_000, 1, LossReason::MaxHold);
            history.grant(at_ms, 2, 6, at_ms).violated()
        };
        let due_ms = 1_000 + EXPIRY_MS + GRANT_DELAY_MS;
        assert_eq!(granted_at(due_ms, &["w", LOCK]), []);
        assert_eq!(granted_at(due_ms + 1, &["w", LOCK]), [Rule::HolderReplaced]);
        assert_eq!(granted_at(due_ms, &[LOCK]), [Rule::HolderReplaced]);
    }

    #[test]
    fn a_waiter_is_granted_a_released_lock() {
        let released = |answered_at_ms, granted_at_ms| {
            let history = waits_for(|history| history.release(1_000, 1));
            let history = history.answer_release(answered_at_ms, 1);
            history.grant(granted_at_ms, 2, 6, granted_at_ms).violated()
        };
        assert_eq!(released(1_100, 1_100 + GRANT_DELAY_MS), []);
        assert_eq!(
            released(1_100, 1_101 + GRANT_DELAY_MS),
            [Rule::HolderReplaced]
        );
        assert_eq!(released(2_000, 1_101 + GRANT_DELAY_MS), []);
    }

    #[test]
    fn hand_offs_to_waiters_that_came_back_with_older_data_lapse_one_after_the_other() {
        let granted_at = |at_ms, returned: u64| {
            let mut history = TestHistory::default().invoke(0, 1).grant(1, 1, 5, 0);
            for attempt in 10..10 + returned {
                history = history.invoke_with(2, attempt, waits);
            }
            for attempt in 10..10 + returned {
                history = history.reject(3, attempt);
            }
            let history = history
                .fault([10, 20], Fault::DataLoss)
                .invoke_with(30, 2, waits);
            let history = dies(history.queue(31, 2));
            history.grant(at_ms, 2, 6, at_ms).violated()
        };
        let due_ms = |lapses| 1_000 + EXPIRY_MS + (lapses * LAPSE_US + GRANT_DELAY_US) / 1_000;
        assert_eq!(granted_at(due_ms(1), 1), []);
        assert_eq!(granted_at(due_ms(1) + 1, 1), [Rule::HolderReplaced]);
        assert_eq!(granted_at(due_ms(3), 3), []);
        assert_eq!(granted_at(due_ms(3) + 1, 3), [Rule::HolderReplaced]);
    }

    #[test]
    fn a_lock_stays_closed_after_the_release_of_an_entry_of_a_lease_older_than_a_data_loss() {
        let granted_at = |at_ms, scope: ReleaseScope| {
            let history = waits_for(|history| history.fault([500, 600], Fault::DataLoss));
            let release = EventKind::ReleaseInvoked {
                release: 1,
                lease: "1".to_owned(),
                scope,
            };
            let history = history.event(1_000, 1, release).answer_release(1_100, 1);
            history.grant(at_ms, 2, 6, at_ms).violated()
        };
        let entry = || ReleaseScope::Entry {
            lock: LOCK.to_owned(),
            call: 1,
        };
        let due_ms = 1_000 + EXPIRY_MS + GRANT_DELAY_AFTER_FAULT_US / 1_000;
        assert_eq!(granted_at(due_ms, entry()), []);
        assert_eq!(granted_at(due_ms + 1, entry()), [Rule::HolderReplaced]);
        assert_eq!(
            granted_at(due_ms, ReleaseScope::Lease),
            [Rule::HolderReplaced]
        );
    }

    #[test]
    fn a_lock_with_another_holder_is_not_free() {
        let held = waits_for(dies).invoke_with(2, 3, waits);
        let held = held.grant(15_001, 3, 6, 15_000);
        assert_eq!(held.reject(40_000, 2).violated(), []);
        let ended = waits_for(dies).invoke(15_000, 3).reject(15_001, 3);
        assert_eq!(ended.reject(40_000, 2).violated(), [Rule::HolderReplaced]);
    }

    #[test]
    fn a_lock_may_be_held_for_a_cancelled_attempt_of_a_stream() {
        let rejected_at = |at_ms| {
            let history = waits_for(|history| history.release(1_000, 1).answer_release(1_100, 1));
            let history = history.invoke(1_000, 3).cancel(3_000, 3);
            history.reject(at_ms, 2).violated()
        };
        let due_ms = 3_000 + STREAM_CANCEL_US / 1_000 + GRANT_DELAY_MS;
        assert_eq!(rejected_at(due_ms), []);
        assert_eq!(rejected_at(due_ms + 1), [Rule::HolderReplaced]);
    }

    #[test]
    fn a_fault_excuses_until_its_end() {
        let rejected_at = |at_ms| {
            let history = waits_for(dies).fault([2_000, 30_000], Fault::StoreStalled);
            history.reject(at_ms, 2).violated()
        };
        let due_ms = 30_000 + GRANT_DELAY_AFTER_FAULT_US / 1_000;
        assert_eq!(rejected_at(due_ms), []);
        assert_eq!(rejected_at(due_ms + 1), [Rule::HolderReplaced]);
    }
}
