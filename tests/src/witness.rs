//! The referee: who used which lock when, and what a fenced resource made of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One use of a lock by one holder, on the referee's clock.
#[derive(Debug, Clone, Copy)]
pub struct Visit {
    /// Which lock.
    pub lock: usize,
    /// How much of the lock's limit it takes, of how much.
    pub share: Share,
    /// The holder's fencing token; 0 without a lock.
    pub token: i64,
    /// From when the holder relied on the lock.
    pub entered: Duration,
    /// Until when: it left, or its trust ran out.
    pub ended: Duration,
}

/// A holder's weight and the limit that the weights of all holders may add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Of this holder.
    pub weight: u32,
    /// Of all.
    pub limit: u32,
}

impl Share {
    /// An exclusive holder's.
    pub const ALL: Self = Self {
        weight: 1,
        limit: 1,
    };
}

/// What went wrong in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Visits.
    pub visits: usize,
    /// Visits that began while others held more of the lock than their share left.
    pub overlaps: usize,
    /// Visits whose token was not above that of an earlier one which they exclude.
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

    /// How many locks.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.resources.len()
    }

    /// A finished visit.
    pub fn record(&self, visit: Visit) {
        lock(&self.visits).push(visit);
    }

    /// Writes to the resource behind an exclusive lock as `writer`; whether it was accepted.
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
        for of_a_lock in visits.chunk_by(|one, next| one.lock == next.lock) {
            for (index, visit) in of_a_lock.iter().enumerate() {
                let before = &of_a_lock[..index];
                let Share { weight, limit } = visit.share;
                let present = before.iter().filter(|other| other.ended > visit.entered);
                let taken: u64 = present.map(|other| u64::from(other.share.weight)).sum();
                verdict.overlaps += usize::from(taken + u64::from(weight) > limit.into());
                let excluded = before
                    .iter()
                    .filter(|other| other.share.weight + weight > limit);
                let newest = excluded.map(|other| other.token).max();
                verdict.regressions +=
                    usize::from(newest.is_some_and(|token| visit.token <= token));
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
            share: Share::ALL,
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
    fn finds_a_writer_beside_a_reader_and_too_many_permits() {
        let shared = |weight, limit, token, entered_ms, ended_ms| Visit {
            share: Share { weight, limit },
            ..visit(token, entered_ms, ended_ms)
        };
        let witness = Witness::new(2);
        witness.record(shared(1, 8, 2, 0, 100));
        witness.record(shared(1, 8, 1, 10, 50));
        witness.record(shared(8, 8, 3, 60, 70));
        for (token, entered_ms) in [(1, 0), (2, 10), (3, 20)] {
            let permits = shared(2, 5, token, entered_ms, entered_ms + 15);
            witness.record(Visit { lock: 1, ..permits });
        }
        let verdict = witness.verdict();
        assert_eq!((verdict.overlaps, verdict.regressions), (1, 0));
        witness.record(Visit {
            lock: 1,
            ..shared(2, 5, 4, 22, 30)
        });
        assert_eq!(witness.verdict().overlaps, 2);
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
