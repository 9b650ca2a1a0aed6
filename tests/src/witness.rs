//! The referee: who used which lock when, and what a fenced resource made of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One use of a lock by one holder, on the referee's clock.
#[derive(Debug, Clone, Copy)]
pub struct Visit {
    /// Which lock.
    pub lock: usize,
    /// The holder's fencing token; 0 without a lock.
    pub token: i64,
    /// From when the holder relied on the lock.
    pub entered: Duration,
    /// Until when: it left, or its trust ran out.
    pub ended: Duration,
}

/// What went wrong in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Visits.
    pub visits: usize,
    /// Visits that began before another one of the same lock had ended.
    pub overlaps: usize,
    /// Visits whose token was not above that of the visit before.
    pub regressions: usize,
    /// Writes that the fenced resource accepted after a newer holder's.
    pub fence_violations: usize,
    /// Writes that the fenced resource refused.
    pub caught: usize,
}

/// Sees all clients of a run.
#[derive(Debug)]
pub struct Witness {
    visits: Mutex<Vec<Visit>>,
    resources: Vec<Mutex<Resource>>,
}

impl Witness {
    /// For locks 0 to `locks` - 1, each of which guards one fenced resource.
    #[must_use]
    pub fn new(locks: usize) -> Self {
        let resources = (0..locks).map(|_| Mutex::default()).collect();
        Self {
            visits: Mutex::default(),
            resources,
        }
    }

    /// A finished visit.
    pub fn record(&self, visit: Visit) {
        lock(&self.visits).push(visit);
    }

    /// Writes to the resource behind a lock as `writer`; whether it was accepted.
    pub fn write(&self, resource: usize, token: i64, writer: u64) -> bool {
        lock(&self.resources[resource]).write(token, writer)
    }

    /// Judges everything seen.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut visits = lock(&self.visits).clone();
        visits.sort_by_key(|visit| (visit.lock, visit.entered));
        let mut verdict = Verdict {
            visits: visits.len(),
            ..Verdict::default()
        };
        let mut before: Option<Visit> = None;
        for visit in visits {
            if let Some(last) = before.filter(|last| last.lock == visit.lock) {
                verdict.overlaps += usize::from(visit.entered < last.ended);
                verdict.regressions += usize::from(visit.token <= last.token);
                let ended = visit.ended.max(last.ended);
                before = Some(Visit {
                    ended,
                    token: visit.token.max(last.token),
                    ..visit
                });
            } else {
                before = Some(visit);
            }
        }
        for resource in &self.resources {
            let resource = lock(resource);
            verdict.fence_violations += resource.violations;
            verdict.caught += resource.caught;
        }
        verdict
    }
}

/// Accepts the writes of the newest holder: a token below the highest is refused. Violated if a
/// writer is accepted again after another one took over: tokens were not unique.
#[derive(Debug, Default)]
struct Resource {
    highest: i64,
    writer: u64,
    violations: usize,
    caught: usize,
}

impl Resource {
    fn write(&mut self, token: i64, writer: u64) -> bool {
        if token < self.highest {
            self.caught += 1;
            return false;
        }
        if token == self.highest && writer != self.writer {
            self.violations += 1;
        }
        self.highest = token;
        self.writer = writer;
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(token: i64, entered_ms: u64, ended_ms: u64) -> Visit {
        let entered = Duration::from_millis(entered_ms);
        Visit {
            lock: 0,
            token,
            entered,
            ended: Duration::from_millis(ended_ms),
        }
    }

    #[test]
    fn finds_an_overlap_behind_a_nested_visit() {
        let witness = Witness::new(1);
        for seen in [visit(1, 0, 100), visit(2, 10, 20), visit(3, 50, 60)] {
            witness.record(seen);
        }
        let verdict = witness.verdict();
        assert_eq!((verdict.overlaps, verdict.regressions), (2, 0));
    }

    #[test]
    fn finds_regressions_and_repeated_tokens() {
        let witness = Witness::new(1);
        for seen in [visit(2, 0, 10), visit(1, 10, 20), visit(2, 20, 30)] {
            witness.record(seen);
        }
        let verdict = witness.verdict();
        assert_eq!((verdict.overlaps, verdict.regressions), (0, 2));
    }

    #[test]
    fn fenced_resource_refuses_old_tokens_and_sees_shared_ones() {
        let witness = Witness::new(1);
        assert!(witness.write(0, 5, 1));
        assert!(!witness.write(0, 4, 2));
        assert!(witness.write(0, 5, 3));
        let verdict = witness.verdict();
        assert_eq!((verdict.caught, verdict.fence_violations), (1, 1));
    }
}
