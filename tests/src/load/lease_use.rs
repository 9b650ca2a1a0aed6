//! A lease of the load: its locks, the time for which each may be relied on, and the uses and
//! losses that are recorded for it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use leasehold_proto::v1::{ErrorReason, Grant, Lease};

use crate::{
    client::unary::HeldLease,
    clock::boottime,
    load::{
        callers::{LoadTarget, LockKind, lock_name},
        losses::{LossReport, Period},
        mutual_exclusion_oracle::{LockUse, Oracle},
    },
};

/// A lease with its locks. A lock that the client does not rely on any longer is not recorded.
#[derive(Debug)]
pub struct LeaseUse {
    /// Lease as it was received, with the grants of all calls.
    pub lease: Lease,
    locks: Vec<LockInUse>,
}

#[derive(Debug)]
struct LockInUse {
    target: LoadTarget,
    token: i64,
    writer: u64,
    started_at: Duration,
    trusted_until: Duration,
    valid_until: Duration,
    acknowledged: Period,
    is_ended: bool,
}

impl LeaseUse {
    /// Starts to use the locks of a lease that was granted.
    #[must_use]
    pub fn start(held: HeldLease, targets: &[LoadTarget]) -> Self {
        let mut lease_use = Self {
            lease: Lease {
                grants: Vec::new(),
                ..held.lease.clone()
            },
            locks: Vec::new(),
        };
        lease_use.add(&held, targets);
        lease_use
    }

    /// Adds the grants of a reply for `targets`, and extends the locks that the reply lists.
    pub fn add(&mut self, held: &HeldLease, targets: &[LoadTarget]) {
        self.extend(held);
        for target in targets {
            let Some(grant) = grant_of(&held.lease, target.lock) else {
                continue;
            };
            if self
                .locks
                .iter()
                .any(|held| held.target.lock == target.lock)
            {
                continue;
            }
            self.lease.grants.push(grant.clone());
            self.locks.push(LockInUse::new(*target, grant, held));
        }
    }

    /// Replaces the lease by the reply to a renewal.
    pub fn renew(&mut self, held: HeldLease) {
        self.extend(&held);
        self.lease = held.lease;
    }

    /// Extends the locks that a reply lists. A lock whose trusted time has passed is not extended,
    /// because its use has ended.
    fn extend(&mut self, held: &HeldLease) {
        let now = boottime();
        for lock in &mut self.locks {
            let is_listed = grant_of(&held.lease, lock.target.lock).is_some();
            if is_listed && held.valid_until() > lock.valid_until {
                lock.valid_until = held.valid_until();
                lock.acknowledged = Period {
                    started_at: held.sent_at,
                    ended_at: now,
                };
                if now < lock.trusted_until {
                    lock.trusted_until = held.trusted_until();
                }
            }
        }
    }

    /// Returns the indexes of the locks.
    #[must_use]
    pub fn locks(&self) -> Vec<usize> {
        self.locks.iter().map(|held| held.target.lock).collect()
    }

    /// Returns true if a reply lists all locks.
    #[must_use]
    pub fn has_all_locks(&self, reply: &Lease) -> bool {
        let is_listed = |held: &LockInUse| grant_of(reply, held.target.lock).is_some();
        self.locks.iter().all(is_listed)
    }

    /// Returns true if a careful holder relies on all locks now.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        let now = boottime();
        self.locks.iter().all(|held| now < held.trusted_until)
    }

    /// Returns true if more than half of the validity has passed.
    #[must_use]
    pub fn is_renewal_due(&self) -> bool {
        let now = boottime();
        let is_due = |held: &LockInUse| now - held.acknowledged.started_at > held.ttl() / 2;
        self.locks.iter().any(is_due)
    }

    /// Writes to the resource of each exclusive lock.
    pub fn write(&self, oracle: &Oracle) {
        let exclusive = |held: &&LockInUse| held.target.kind == LockKind::Exclusive;
        for held in self.locks.iter().filter(exclusive) {
            oracle.write(held.target.lock, held.token, held.writer);
        }
    }

    /// Ends the use of one lock, and records it.
    pub fn end(&mut self, lock: usize, oracle: &Oracle) {
        let of_lock = |held: &&mut LockInUse| held.target.lock == lock;
        self.locks
            .iter_mut()
            .filter(of_lock)
            .for_each(|held| held.end(oracle));
    }

    /// Ends the use of all locks, and records it.
    pub fn end_all(&mut self, oracle: &Oracle) {
        self.locks.iter_mut().for_each(|held| held.end(oracle));
    }

    /// Removes a lock whose release was confirmed. The lease stays as it was received.
    pub fn remove(&mut self, lock: usize) {
        self.locks.retain(|held| held.target.lock != lock);
    }

    /// Returns the report of a loss that a reply announced now.
    #[must_use]
    pub fn loss(&self, reason: ErrorReason, is_release_sent: bool) -> Option<LossReport> {
        let first = self.locks.iter().min_by_key(|held| held.valid_until)?;
        Some(LossReport {
            reason,
            received_at: boottime(),
            acknowledged: first.acknowledged,
            valid_until: first.valid_until,
            is_release_sent,
        })
    }
}

impl LockInUse {
    fn new(target: LoadTarget, grant: &Grant, held: &HeldLease) -> Self {
        static NEXT_WRITER: AtomicU64 = AtomicU64::new(1);
        let now = boottime();
        Self {
            target,
            token: grant.fencing_token,
            writer: NEXT_WRITER.fetch_add(1, Ordering::Relaxed),
            started_at: now,
            trusted_until: held.trusted_until(),
            valid_until: held.valid_until(),
            acknowledged: Period {
                started_at: held.sent_at,
                ended_at: now,
            },
            is_ended: false,
        }
    }

    fn ttl(&self) -> Duration {
        self.valid_until - self.acknowledged.started_at
    }

    fn end(&mut self, oracle: &Oracle) {
        let ended_at = boottime().min(self.trusted_until);
        if !std::mem::replace(&mut self.is_ended, true) && self.started_at < ended_at {
            oracle.record(LockUse {
                lock: self.target.lock,
                share: self.target.share,
                token: self.token,
                started_at: self.started_at,
                ended_at,
            });
        }
    }
}

fn grant_of(lease: &Lease, lock: usize) -> Option<&Grant> {
    let name = lock_name(lock);
    let names_lock = |grant: &&Grant| {
        let target = grant.target.as_ref();
        target.is_some_and(|target| target.name == name)
    };
    lease.grants.iter().find(names_lock)
}
