//! The newest ends of leases and deeds of operators that this broker knows of, for whoever looks: nothing depends on it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use crate::lock::{LeaseId, LockKey, Owner};

/// Losses that are kept. Releases are kept apart: thousands a second must not drive the losses out.
const LOSSES_MAX: usize = 1_000;
const RELEASES_MAX: usize = 4_096;
const DEEDS_MAX: usize = 1_000;
/// Kept apart: callers decide how many there are, and must not drive the deeds of operators out.
const DENIALS_MAX: usize = 1_000;
/// Kept apart from both, because every client decides how many there are. Half of what the page shows.
const UNAUTHENTICATED_MAX: usize = 100;

/// The end of a lease's hold on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When this broker learned of it.
    pub at: SystemTime,
    /// Of which lock.
    pub lock: LockKey,
    /// Of which lease.
    pub lease_id: LeaseId,
    /// Whose it was, where that is known.
    pub owner: Option<Owner>,
    /// The token of the grant.
    pub fencing_token: u64,
    /// For how long it was held.
    pub held_ms: u64,
    /// How it ended.
    pub reason: EndReason,
    /// In a sentence; of a revocation what the operator gave as a reason, of a release nothing.
    pub why: String,
}

/// How a lease ended, as in `LeaseEndReason` of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The holder released it.
    Released,
    /// It was not renewed in time.
    Expired,
    /// An operator took it away.
    Revoked,
    /// The store does not know it any more.
    StoreLost,
    /// `max_hold` has passed.
    MaxHold,
    /// The stream's credential ran out, or the rules forbid the lease.
    CredentialExpired,
}

/// What an operator did, or somebody was denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    /// When.
    pub at: SystemTime,
    /// What.
    pub kind: DeedKind,
    /// Who: the name of the caller.
    pub caller: String,
    /// From where.
    pub peer: String,
    /// To which lock; `None` where none was named.
    pub lock: Option<LockKey>,
    /// To which lease.
    pub lease_id: Option<LeaseId>,
    /// The reason that was given, or what was denied.
    pub why: String,
}

/// Kinds of deeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeedKind {
    /// A lease was taken away.
    ForceRelease,
    /// A semaphore's limit was set.
    SetLimit,
    /// A semaphore's limit was removed.
    RemoveLimit,
    /// A known caller was denied what the rules do not allow.
    Denied,
    /// A call came without a good credential.
    Unauthenticated,
}

/// Both, newest first.
#[derive(Debug, Default)]
pub struct History {
    losses: Mutex<VecDeque<End>>,
    releases: Mutex<VecDeque<End>>,
    deeds: Mutex<VecDeque<Deed>>,
    denials: Mutex<VecDeque<Deed>>,
    unauthenticated: Mutex<VecDeque<Deed>>,
}

impl EndReason {
    /// As the log and the metrics call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::StoreLost => "store_lost",
            Self::MaxHold => "max_hold",
            Self::CredentialExpired => "credential_expired",
        }
    }

    /// What that means, in a sentence; nothing of a release.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::Released => "",
            Self::Expired => "no renewal reached the store in time",
            Self::Revoked => "an operator has revoked the lease",
            Self::StoreLost => "the store does not know the lease any more",
            Self::MaxHold => "the lease has been held for all of its max_hold",
            Self::CredentialExpired => "the credential of its stream ran out",
        }
    }

    /// Whether the holder lost the lock, rather than having given it back.
    #[must_use]
    pub fn is_loss(self) -> bool {
        self != Self::Released
    }
}

impl History {
    /// A lease has ended.
    pub fn ended(&self, end: End) {
        if end.reason.is_loss() {
            keep(&self.losses, end, LOSSES_MAX);
        } else {
            keep(&self.releases, end, RELEASES_MAX);
        }
    }

    /// An operator has done something, or somebody was denied.
    pub fn done(&self, deed: Deed) {
        match deed.kind {
            DeedKind::Denied => keep(&self.denials, deed, DENIALS_MAX),
            DeedKind::Unauthenticated => keep(&self.unauthenticated, deed, UNAUTHENTICATED_MAX),
            DeedKind::ForceRelease | DeedKind::SetLimit | DeedKind::RemoveLimit => {
                keep(&self.deeds, deed, DEEDS_MAX);
            }
        }
    }

    /// The newest losses.
    #[must_use]
    pub fn losses(&self) -> Vec<End> {
        newest(&self.losses)
    }

    /// The newest ends of one lock's leases, at most so many.
    #[must_use]
    pub fn ends_of(&self, lock: &LockKey, most: usize) -> Vec<End> {
        let of_lock = |ends: &Mutex<VecDeque<End>>| {
            let ends = locked(ends);
            let of_lock = ends.iter().filter(|end| end.lock == *lock);
            of_lock.take(most).cloned().collect::<Vec<_>>()
        };
        let mut all = of_lock(&self.losses);
        all.extend(of_lock(&self.releases));
        all.sort_by_key(|end| std::cmp::Reverse(end.at));
        all.truncate(most);
        all
    }

    /// The newest deeds and denials.
    #[must_use]
    pub fn deeds(&self) -> Vec<Deed> {
        let mut all = newest(&self.deeds);
        all.extend(newest(&self.denials));
        all.extend(newest(&self.unauthenticated));
        all.sort_by_key(|deed| std::cmp::Reverse(deed.at));
        all
    }
}

fn keep<T>(ring: &Mutex<VecDeque<T>>, newest: T, most: usize) {
    let mut ring = locked(ring);
    ring.truncate(most - 1);
    ring.push_front(newest);
}

fn newest<T: Clone>(ring: &Mutex<VecDeque<T>>) -> Vec<T> {
    locked(ring).iter().cloned().collect()
}

fn locked<T>(ring: &Mutex<VecDeque<T>>) -> MutexGuard<'_, VecDeque<T>> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use crate::lock::{LockName, Namespace};

    use super::*;

    #[test]
    fn each_kind_keeps_its_newest_and_no_more() {
        let history = History::default();
        for token in 0..2 * RELEASES_MAX as u64 {
            history.ended(end(EndReason::Expired, token));
            history.ended(end(EndReason::Released, token));
            history.done(deed(DeedKind::SetLimit));
            history.done(deed(DeedKind::Denied));
        }
        let newest = 2 * RELEASES_MAX as u64 - 1;
        let losses = history.losses();
        assert_eq!(losses.len(), LOSSES_MAX);
        assert_eq!(losses[0].fencing_token, newest);
        let ends = history.ends_of(&lock(), usize::MAX);
        assert_eq!(ends.len(), LOSSES_MAX + RELEASES_MAX);
        let of_kind = |kind| {
            let deeds = history.deeds();
            deeds.iter().filter(|deed| deed.kind == kind).count()
        };
        assert_eq!(of_kind(DeedKind::SetLimit), DEEDS_MAX);
        assert_eq!(of_kind(DeedKind::Denied), DENIALS_MAX);
    }

    fn lock() -> LockKey {
        let namespace = Namespace::parse("").expect("the default");
        LockKey::new(namespace, LockName::parse("a").expect("a name"))
    }

    fn end(reason: EndReason, fencing_token: u64) -> End {
        End {
            at: SystemTime::now(),
            lock: lock(),
            lease_id: LeaseId::parse(&"a".repeat(LeaseId::LEN)).expect("an id"),
            owner: None,
            fencing_token,
            held_ms: 0,
            reason,
            why: String::new(),
        }
    }

    fn deed(kind: DeedKind) -> Deed {
        Deed {
            at: SystemTime::now(),
            kind,
            caller: String::new(),
            peer: String::new(),
            lock: None,
            lease_id: None,
            why: String::new(),
        }
    }
}
