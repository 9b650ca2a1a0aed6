//! The oracle: a mutual-exclusion checker that records the uses of locks and the writes to fenced
//! resources.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A use of a lock by one holder, on the clock of the oracle.
#[derive(Debug, Clone, Copy)]
pub struct LockUse {
    /// Index of the lock.
    pub lock: usize,
    /// Weight of the holder, and limit of the lock.
    pub share: Share,
    /// Fencing token of the holder, or 0 without a lock.
    pub token: i64,
    /// Time from which the holder relied on the lock.
    pub started_at: Duration,
    /// Time at which the holder finished, or its validity ended.
    pub ended_at: Duration,
}

/// Weight of a holder, and the limit for the sum of the weights of all holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub weight: u32,
    pub limit: u32,
}

impl Share {
    /// Share of an exclusive holder.
    pub const ALL: Self = Self {
        weight: 1,
        limit: 1,
    };
}

/// Counts of violations in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    pub uses: usize,
    /// Visits that began while other holders left less of the limit than the visit's weight.
    pub overlaps: usize,
    /// Visits whose token is not above the token of an earlier visit that excludes them.
    pub regressions: usize,
    /// Writes that the fenced resource accepted after a write of a newer holder.
    pub fence_violations: usize,
    /// Writes that the fenced resource rejected.
    pub rejected_writes: usize,
}

/// Record of all clients of a run.
#[derive(Debug)]
pub struct Oracle {
    uses: Mutex<Vec<LockUse>>,
    resources: Vec<Mutex<FencedResource>>,
}

impl Oracle {
    /// Creates an oracle for locks 0 to `locks` - 1, each of which protects one fenced resource.
    #[must_use]
    pub fn new(locks: usize) -> Self {
        let resources = (0..locks).map(|_| Mutex::default()).collect();
        Self {
            uses: Mutex::default(),
            resources,
        }
    }

    #[must_use]
    pub fn lock_count(&self) -> usize {
        self.resources.len()
    }

    /// Records a finished visit.
    pub fn record(&self, visit: LockUse) {
        lock(&self.uses).push(visit);
    }

    /// Writes to the resource of an exclusive lock as `writer`. Returns true if the resource
    /// accepted the write.
    pub fn write(&self, resource: usize, token: i64, writer: u64) -> bool {
        lock(&self.resources[resource]).write(token, writer)
    }

    /// Counts the violations in all visits and writes.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut visits = lock(&self.uses).clone();
        visits.sort_by_key(|visit| (visit.lock, visit.started_at));
        let mut verdict = Verdict {
            uses: visits.len(),
            ..Verdict::default()
        };
        for of_a_lock in visits.chunk_by(|one, next| one.lock == next.lock) {
            for (index, visit) in of_a_lock.iter().enumerate() {
                let before = &of_a_lock[..index];
                let Share { weight, limit } = visit.share;
                let present = before
                    .iter()
                    .filter(|other| other.ended_at > visit.started_at);
                let weight_taken: u64 = present.map(|other| u64::from(other.share.weight)).sum();
                verdict.overlaps += usize::from(weight_taken + u64::from(weight) > limit.into());
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
            verdict.rejected_writes += resource.rejected_writes;
        }
        verdict
    }
}

/// A fenced resource, which rejects tokens below the highest one. It counts a violation if two
/// writers use the same token, because tokens must be unique.
#[derive(Debug, Default)]
struct FencedResource {
    highest_token: i64,
    writer: u64,
    violations: usize,
    rejected_writes: usize,
}

impl FencedResource {
    fn write(&mut self, token: i64, writer: u64) -> bool {
        if token < self.highest_token {
            self.rejected_writes += 1;
            return false;
        }
        if token == self.highest_token && writer != self.writer {
            self.violations += 1;
        }
        self.highest_token = token;
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

    fn visit(token: i64, entered_ms: u64, ended_ms: u64) -> LockUse {
        let entered = Duration::from_millis(entered_ms);
        LockUse {
            lock: 0,
            share: Share::ALL,
            token,
            started_at: entered,
            ended_at: Duration::from_millis(ended_ms),
        }
    }

    #[test]
    fn finds_an_overlap_behind_a_nested_visit() {
        let oracle = Oracle::new(1);
        for seen in [visit(1, 0, 100), visit(2, 10, 20), visit(3, 50, 60)] {
            oracle.record(seen);
        }
        let verdict = oracle.verdict();
        assert_eq!((verdict.overlaps, verdict.regressions), (2, 0));
    }

    #[test]
    fn finds_a_writer_beside_a_reader_and_too_many_permits() {
        let shared = |weight, limit, token, entered_ms, ended_ms| LockUse {
            share: Share { weight, limit },
            ..visit(token, entered_ms, ended_ms)
        };
        let oracle = Oracle::new(2);
        oracle.record(shared(1, 8, 2, 0, 100));
        oracle.record(shared(1, 8, 1, 10, 50));
        oracle.record(shared(8, 8, 3, 60, 70));
        for (token, entered_ms) in [(1, 0), (2, 10), (3, 20)] {
            let permits = shared(2, 5, token, entered_ms, entered_ms + 15);
            oracle.record(LockUse { lock: 1, ..permits });
        }
        let verdict = oracle.verdict();
        assert_eq!((verdict.overlaps, verdict.regressions), (1, 0));
        oracle.record(LockUse {
            lock: 1,
            ..shared(2, 5, 4, 22, 30)
        });
        assert_eq!(oracle.verdict().overlaps, 2);
    }

    #[test]
    fn finds_regressions_and_repeated_tokens() {
        let oracle = Oracle::new(1);
        for seen in [visit(2, 0, 10), visit(1, 10, 20), visit(2, 20, 30)] {
            oracle.record(seen);
        }
        let verdict = oracle.verdict();
        assert_eq!((verdict.overlaps, verdict.regressions), (0, 2));
    }

    #[test]
    fn fenced_resource_refuses_old_tokens_and_sees_shared_ones() {
        let oracle = Oracle::new(1);
        assert!(oracle.write(0, 5, 1));
        assert!(!oracle.write(0, 4, 2));
        assert!(oracle.write(0, 5, 3));
        let verdict = oracle.verdict();
        assert_eq!((verdict.rejected_writes, verdict.fence_violations), (1, 1));
    }
}
