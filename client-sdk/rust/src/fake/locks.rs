//! The locks of a fake broker: who holds them, and who waits in which order.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use leasehold_proto::v1::{Grant, LockMode, LockRef, LockTarget};
use uuid::Uuid;

use crate::{
    clock,
    error::{Error, Holder, LostReason},
    guard::Guard,
    order::{Ask, Entry},
    target::lock,
    trust::Trust,
};

/// All of a lock: an exclusive holder takes it, a shared one takes 1 of it.
const WHOLE: i64 = 1 << 30;
const TTL_DEFAULT: Duration = Duration::from_secs(10);
/// Leases do not run out here.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(super) type Key = (String, String);

#[derive(Default)]
pub(super) struct Locks {
    pub(super) held: HashMap<Key, Vec<Held>>,
    /// Whose it is, and whether it is over.
    leases: HashMap<String, (u64, Arc<Trust>)>,
    last_client: u64,
    pub(super) line: VecDeque<Waiter>,
    last_token: i64,
}

/// A lock in the hands of a lease.
pub(super) struct Held {
    pub(super) lease_id: String,
    /// One for each entry, with what it weighs.
    entries: Vec<(String, i64)>,
    pub(super) limit: i64,
    grant: Grant,
    holder: Holder,
}

pub(super) struct Waiter {
    client: u64,
    pub(super) ask: Ask,
    until: Duration,
}

impl Locks {
    pub(super) fn new_client(&mut self) -> u64 {
        self.last_client += 1;
        self.last_client
    }

    /// A client is shut down: what it holds is free, and its calls are over.
    pub(super) fn close(&mut self, client: u64) {
        let line = std::mem::take(&mut self.line).into_iter();
        let (gone, line): (Vec<_>, Vec<_>) = line.partition(|waiter| waiter.client == client);
        self.line = line.into();
        for waiter in gone {
            // A caller that is gone needs no answer.
            let _ = waiter.ask.answer.send(Err(Error::Closed));
        }
        let leases = self.leases.iter();
        let leases = leases.filter(|(_, (owner, _))| *owner == client);
        let gone = leases.map(|(lease_id, _)| lease_id.clone()).collect();
        self.end(&gone, &LostReason::Closed);
    }

    pub(super) fn acquire(&mut self, client: u64, ask: Ask) {
        if let Some(error) = self.never(&ask) {
            let _ = ask.answer.send(Err(error));
            return;
        }
        let until = clock::now().saturating_add(ask.wait);
        let request_id = ask.call.request_id.clone();
        self.line.push_back(Waiter { client, ask, until });
        self.settle();
        let waits = self.line.iter();
        let mut waits = waits.filter(|waiter| waiter.ask.call.request_id == request_id);
        if waits.any(|waiter| waiter.ask.wait.is_zero()) {
            self.refuse(&request_id, Error::Held);
        }
    }

    pub(super) fn cancel(&mut self, request_id: &str) {
        self.line
            .retain(|waiter| waiter.ask.call.request_id != request_id);
        self.settle();
    }

    pub(super) fn release(&mut self, lease_id: &str, entry: &Entry) {
        for lock in &entry.locks {
            let held = self.held.entry(key(lock)).or_default();
            for held in held.iter_mut().filter(|held| held.lease_id == lease_id) {
                held.entries
                    .retain(|(request_id, _)| *request_id != entry.request_id);
            }
            held.retain(|held| !held.entries.is_empty());
        }
        self.forget_idle();
        self.settle();
    }

    pub(super) fn lose(&mut self, lock: &LockRef) -> usize {
        let held = self.held.get(&key(lock)).into_iter().flatten();
        let lost: HashSet<_> = held.map(|held| held.lease_id.clone()).collect();
        self.end(&lost, &LostReason::StoreLost);
        lost.len()
    }

    /// Ends leases with all their locks.
    fn end(&mut self, gone: &HashSet<String>, why: &LostReason) {
        for held in self.held.values_mut() {
            held.retain(|held| !gone.contains(&held.lease_id));
        }
        for lease_id in gone {
            if let Some((_, trust)) = self.leases.remove(lease_id) {
                trust.end(why.clone());
            }
        }
        self.settle();
    }

    pub(super) fn holders(&self, lock: &LockRef) -> Vec<Holder> {
        let held = self.held.get(&key(lock)).into_iter().flatten();
        held.map(|held| held.holder.clone()).collect()
    }

    pub(super) fn queue_length(&self, lock: &LockRef) -> usize {
        self.line
            .iter()
            .filter(|waiter| waiter.wants(&key(lock)))
            .count()
    }

    pub(super) fn next_time_out(&self) -> Option<Duration> {
        self.line.iter().map(|waiter| waiter.until).min()
    }

    pub(super) fn time_out(&mut self, now: Duration) {
        let late = self.line.iter().filter(|waiter| now >= waiter.until);
        let late: Vec<_> = late
            .map(|waiter| waiter.ask.call.request_id.clone())
            .collect();
        for request_id in late {
            self.refuse(&request_id, Error::WaitTimeout);
        }
        self.settle();
    }

    /// Grants what can be granted, in the order of the line.
    fn settle(&mut self) {
        let mut wanted: HashSet<Key> = HashSet::new();
        let mut place = 0;
        while let Some(waiter) = self.line.get(place) {
            let keys = waiter.keys();
            if keys.iter().all(|key| !wanted.contains(key)) && self.fits(waiter) {
                if let Some(waiter) = self.line.remove(place) {
                    self.grant(waiter.client, waiter.ask);
                }
            } else {
                wanted.extend(keys);
                place += 1;
            }
        }
        for waiter in &self.line {
            self.tell_place(waiter);
        }
    }

    fn fits(&self, waiter: &Waiter) -> bool {
        let under = waiter.under();
        waiter.ask.call.targets.iter().all(|target| {
            let (weight, limit) = weight(target);
            let held = self.held.get(&key(&lock(target))).into_iter().flatten();
            let limit = held
                .clone()
                .map(|held| held.limit)
                .next()
                .unwrap_or(limit.max(1));
            let is_own = held
                .clone()
                .any(|held| Some(held.lease_id.as_str()) == under);
            is_own || held.map(Held::weight).sum::<i64>() + weight <= limit
        })
    }

    fn grant(&mut self, client: u64, ask: Ask) {
        let under = ask.under.as_ref();
        let (lease_id, trust) = match under {
            Some(held) => {
                let lease_id = held.lease_id().to_owned();
                let known = self.leases.get(&lease_id);
                let trust = known.map(|(_, trust)| Arc::clone(trust));
                (lease_id, trust.unwrap_or_default())
            }
            None => {
                let trust = Arc::new(Trust::default());
                let ttl = ask.call.ttl.unwrap_or(TTL_DEFAULT);
                trust.begin(clock::now() + FOREVER, ttl);
                (Uuid::new_v4().simple().to_string(), trust)
            }
        };
        self.leases
            .insert(lease_id.clone(), (client, Arc::clone(&trust)));
        let targets = ask.call.targets.iter();
        let grants = targets
            .map(|target| self.enter(&lease_id, target, &ask))
            .collect();
        let request_id = ask.call.request_id;
        let guard = Guard::new(&lease_id, grants, request_id, trust, (ask.orders, ask.core));
        // Dropped, it gives itself back.
        let _ = ask.answer.send(Ok(guard));
    }

    fn enter(&mut self, lease_id: &str, target: &LockTarget, ask: &Ask) -> Grant {
        let (weight, limit) = weight(target);
        let all = self.held.entry(key(&lock(target))).or_default();
        let in_use = all.first().map(|held| held.limit);
        let entry = (ask.call.request_id.clone(), weight);
        if let Some(own) = all.iter_mut().find(|held| held.lease_id == lease_id) {
            own.entries.push(entry);
            return own.grant.clone();
        }
        self.last_token += 1;
        let lock = lock(target);
        let grant = Grant {
            target: Some(LockTarget {
                namespace: lock.namespace,
                ..target.clone()
            }),
            fencing_token: self.last_token,
            hold_count: 1,
            ..Grant::default()
        };
        all.push(Held {
            lease_id: lease_id.to_owned(),
            entries: vec![entry],
            limit: in_use.unwrap_or(limit.max(1)),
            grant: grant.clone(),
            holder: Holder {
                lease_id: lease_id.to_owned(),
                owner: ask.call.owner.id.clone(),
                reason: ask.call.owner.reason.clone(),
                fencing_token: self.last_token,
                since: None,
                remaining: ask.call.ttl.unwrap_or(TTL_DEFAULT),
            },
        });
        grant
    }

    fn forget_idle(&mut self) {
        let live: HashSet<_> = self
            .held
            .values()
            .flatten()
            .map(|held| &held.lease_id)
            .collect();
        let gone = self
            .leases
            .keys()
            .filter(|lease_id| !live.contains(lease_id));
        let gone: Vec<_> = gone.cloned().collect();
        for lease_id in gone {
            if let Some((_, trust)) = self.leases.remove(&lease_id) {
                trust.end(LostReason::Released);
            }
        }
    }
}

impl Waiter {
    fn keys(&self) -> Vec<Key> {
        self.ask
            .call
            .targets
            .iter()
            .map(|target| key(&lock(target)))
            .collect()
    }

    pub(super) fn wants(&self, wanted: &Key) -> bool {
        self.keys().contains(wanted)
    }

    fn under(&self) -> Option<&str> {
        self.ask.under.as_ref().map(crate::guard::Held::lease_id)
    }
}

impl Held {
    /// As much as its strongest entry.
    pub(super) fn weight(&self) -> i64 {
        self.entries
            .iter()
            .map(|(_, weight)| *weight)
            .max()
            .unwrap_or(0)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("held", &self.held.len())
            .field("waiting", &self.line.len())
            .finish_non_exhaustive()
    }
}

/// What a target takes of its lock, and how much that has; 0: as much as is in use.
pub(super) fn weight(target: &LockTarget) -> (i64, i64) {
    match target.mode() {
        LockMode::Unspecified | LockMode::Exclusive => (WHOLE, WHOLE),
        LockMode::Shared => (1, WHOLE),
        LockMode::Semaphore => (target.permits.max(1).into(), target.limit.into()),
    }
}

pub(super) fn key(lock: &LockRef) -> Key {
    (lock.namespace.clone(), lock.name.clone())
}
