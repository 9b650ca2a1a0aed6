//! The locks of a fake broker, with their holders and queue.

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
    command::{AcquireCommand, GuardScope},
    error::{Error, ErrorDetail, Holder, LostReason},
    guard::Guard,
    target::lock_ref,
    validity::LeaseValidity,
};

/// Weight of an exclusive holder, and limit of exclusive and shared locks. A shared holder weighs
/// 1.
const EXCLUSIVE_WEIGHT: i64 = 1 << 30;
const LIMIT_MAX: u32 = 1_000;
const TTL_DEFAULT: Duration = Duration::from_secs(10);
/// Validity of a lease, which never expires in a fake broker.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(super) type Key = (String, String);

#[derive(Default)]
pub(super) struct Locks {
    pub(super) held: HashMap<Key, Vec<HolderSlot>>,
    /// Limits that were set.
    set_limits: HashMap<Key, i64>,
    /// Client and validity of each lease.
    leases: HashMap<String, (u64, Arc<LeaseValidity>)>,
    last_client: u64,
    pub(super) queue: VecDeque<Waiter>,
    last_token: i64,
}

/// A lease that holds a lock.
pub(super) struct HolderSlot {
    pub(super) lease_id: String,
    /// Request id and weight of each entry.
    entries: Vec<(String, i64)>,
    pub(super) limit: i64,
    grant: Grant,
    holder: Holder,
}

pub(super) struct Waiter {
    client: u64,
    pub(super) command: AcquireCommand,
    deadline: Duration,
}

impl Locks {
    pub(super) fn new_client(&mut self) -> u64 {
        self.last_client += 1;
        self.last_client
    }

    /// Releases the leases of a client that is shut down, and fails its waiting calls.
    pub(super) fn close(&mut self, client: u64) {
        let queue = std::mem::take(&mut self.queue).into_iter();
        let (removed, queue): (Vec<_>, Vec<_>) = queue.partition(|waiter| waiter.client == client);
        self.queue = queue.into();
        for waiter in removed {
            // A caller that was dropped needs no response.
            let _ = waiter.command.reply.send(Err(Error::Closed));
        }
        let leases = self.leases.iter();
        let leases = leases.filter(|(_, (owner, _))| *owner == client);
        let removed = leases.map(|(lease_id, _)| lease_id.clone()).collect();
        self.end_leases(&removed, &LostReason::Closed);
    }

    pub(super) fn acquire(&mut self, client: u64, command: AcquireCommand) {
        if let Some(error) = self.find_rejection(&command) {
            let _ = command.reply.send(Err(error));
            return;
        }
        let deadline = clock::now().saturating_add(command.wait);
        let request_id = command.params.request_id.clone();
        self.queue.push_back(Waiter {
            client,
            command,
            deadline,
        });
        self.grant_waiters();
        let waits = self.queue.iter();
        let mut waits = waits.filter(|waiter| waiter.command.params.request_id == request_id);
        if waits.any(|waiter| waiter.command.wait.is_zero()) {
            self.reject(&request_id, Error::Held);
        }
    }

    pub(super) fn cancel(&mut self, request_id: &str) {
        self.queue
            .retain(|waiter| waiter.command.params.request_id != request_id);
        self.grant_waiters();
    }

    pub(super) fn release(&mut self, lease_id: &str, entry: &GuardScope) {
        for lock in &entry.locks {
            let held = self.held.entry(key(lock)).or_default();
            for held in held.iter_mut().filter(|held| held.lease_id == lease_id) {
                held.entries
                    .retain(|(request_id, _)| *request_id != entry.request_id);
            }
            held.retain(|held| !held.entries.is_empty());
        }
        self.remove_unused_leases();
        self.grant_waiters();
    }

    pub(super) fn lose(&mut self, lock: &LockRef) -> usize {
        let held = self.held.get(&key(lock)).into_iter().flatten();
        let lost: HashSet<_> = held.map(|held| held.lease_id.clone()).collect();
        self.end_leases(&lost, &LostReason::StoreLost);
        lost.len()
    }

    /// Ends leases with all their locks.
    fn end_leases(&mut self, removed: &HashSet<String>, reason: &LostReason) {
        for held in self.held.values_mut() {
            held.retain(|held| !removed.contains(&held.lease_id));
        }
        for lease_id in removed {
            if let Some((_, validity)) = self.leases.remove(lease_id) {
                validity.expire(reason.clone());
            }
        }
        self.grant_waiters();
    }

    /// Sets or removes the limit of a semaphore, and returns the previous one.
    pub(super) fn set_limit(
        &mut self,
        lock: &LockRef,
        limit: Option<u32>,
    ) -> Result<Option<u32>, Error> {
        let key = key(lock);
        let to_limit = |limit: i64| u32::try_from(limit).ok();
        let Some(limit) = limit else {
            return Ok(self.set_limits.remove(&key).and_then(to_limit));
        };
        if limit > LIMIT_MAX {
            let message = "limit: must be 1 to 1000";
            return Err(Error::Invalid(ErrorDetail::new(message)));
        }
        let in_use = self.limit_in_use(&key);
        if in_use == Some(EXCLUSIVE_WEIGHT) {
            let message = "the lock is in use in another mode: set the limit when the lock is idle";
            return Err(Error::LimitMismatch(ErrorDetail::new(message)));
        }
        let limit = i64::from(limit);
        for held in self.held.get_mut(&key).into_iter().flatten() {
            held.limit = limit;
        }
        self.set_limits.insert(key, limit);
        self.grant_waiters();
        Ok(in_use.and_then(to_limit))
    }

    /// Returns the limit that was set, or that of the holders. `None` if the next call determines
    /// it.
    pub(super) fn limit_in_use(&self, key: &Key) -> Option<i64> {
        let held = self.held.get(key).into_iter().flatten();
        let of_holders = held.map(|held| held.limit).next();
        self.set_limits.get(key).copied().or(of_holders)
    }

    pub(super) fn is_limit_set(&self, key: &Key) -> bool {
        self.set_limits.contains_key(key)
    }

    pub(super) fn holders(&self, lock: &LockRef) -> Vec<Holder> {
        let held = self.held.get(&key(lock)).into_iter().flatten();
        held.map(|held| held.holder.clone()).collect()
    }

    pub(super) fn queue_length(&self, lock: &LockRef) -> usize {
        self.queue
            .iter()
            .filter(|waiter| waiter.waits_for(&key(lock)))
            .count()
    }

    pub(super) fn next_timeout(&self) -> Option<Duration> {
        self.queue.iter().map(|waiter| waiter.deadline).min()
    }

    pub(super) fn time_out(&mut self, now: Duration) {
        let expired = self.queue.iter().filter(|waiter| now >= waiter.deadline);
        let expired: Vec<_> = expired
            .map(|waiter| waiter.command.params.request_id.clone())
            .collect();
        for request_id in expired {
            self.reject(&request_id, Error::WaitTimeout);
        }
        self.grant_waiters();
    }

    /// Grants locks to waiters, in the order of the queue, where possible.
    fn grant_waiters(&mut self) {
        let mut reserved: HashSet<Key> = HashSet::new();
        let mut index = 0;
        while let Some(waiter) = self.queue.get(index) {
            let keys = waiter.keys();
            if keys.iter().all(|key| !reserved.contains(key)) && self.fits(waiter) {
                if let Some(waiter) = self.queue.remove(index) {
                    self.grant(waiter.client, waiter.command);
                }
            } else {
                reserved.extend(keys);
                index += 1;
            }
        }
        for waiter in &self.queue {
            self.notify_position(waiter);
        }
    }

    fn fits(&self, waiter: &Waiter) -> bool {
        let under = waiter.under();
        waiter.command.params.targets.iter().all(|target| {
            let (weight, limit) = weight(target);
            let key = key(&lock_ref(target));
            let limit = self.limit_in_use(&key).unwrap_or(limit.max(1));
            let held = self.held.get(&key).into_iter().flatten();
            let is_own = held
                .clone()
                .any(|held| Some(held.lease_id.as_str()) == under);
            is_own || held.map(HolderSlot::weight).sum::<i64>() + weight <= limit
        })
    }

    fn grant(&mut self, client: u64, command: AcquireCommand) {
        let under = command.under.as_ref();
        let (lease_id, validity) = match under {
            Some(held) => {
                let lease_id = held.lease_id().to_owned();
                let existing = self.leases.get(&lease_id);
                let validity = existing.map(|(_, validity)| Arc::clone(validity));
                (lease_id, validity.unwrap_or_default())
            }
            None => {
                let validity = Arc::new(LeaseValidity::default());
                let ttl = command.params.ttl.unwrap_or(TTL_DEFAULT);
                validity.start(clock::now() + FOREVER, ttl);
                (Uuid::new_v4().simple().to_string(), validity)
            }
        };
        self.leases
            .insert(lease_id.clone(), (client, Arc::clone(&validity)));
        let targets = command.params.targets.iter();
        let grants = targets
            .map(|target| self.add_entry(&lease_id, target, &command))
            .collect();
        let request_id = command.params.request_id;
        let guard = Guard::new(
            &lease_id,
            grants,
            request_id,
            validity,
            (command.commands, command.runtime),
        );
        // A guard that is not received releases its locks when it is dropped.
        let _ = command.reply.send(Ok(guard));
    }

    fn add_entry(
        &mut self,
        lease_id: &str,
        target: &LockTarget,
        command: &AcquireCommand,
    ) -> Grant {
        let (weight, requested) = weight(target);
        let key = key(&lock_ref(target));
        let limit = self.limit_in_use(&key).unwrap_or(requested.max(1));
        let all = self.held.entry(key).or_default();
        let entry = (command.params.request_id.clone(), weight);
        if let Some(own) = all.iter_mut().find(|held| held.lease_id == lease_id) {
            own.entries.push(entry);
            return own.grant.clone();
        }
        self.last_token += 1;
        let lock = lock_ref(target);
        let grant = Grant {
            target: Some(LockTarget {
                namespace: lock.namespace,
                limit: match target.mode() {
                    LockMode::Semaphore => i32::try_from(limit).unwrap_or(i32::MAX),
                    LockMode::Unspecified | LockMode::Exclusive | LockMode::Shared => 0,
                },
                ..target.clone()
            }),
            fencing_token: self.last_token,
            hold_count: 1,
            ..Grant::default()
        };
        all.push(HolderSlot {
            lease_id: lease_id.to_owned(),
            entries: vec![entry],
            limit,
            grant: grant.clone(),
            holder: Holder {
                lease_id: lease_id.to_owned(),
                owner: command.params.owner.id.clone(),
                reason: command.params.owner.reason.clone(),
                fencing_token: self.last_token,
                since: None,
                remaining: command.params.ttl.unwrap_or(TTL_DEFAULT),
            },
        });
        grant
    }

    fn remove_unused_leases(&mut self) {
        let live: HashSet<_> = self
            .held
            .values()
            .flatten()
            .map(|held| &held.lease_id)
            .collect();
        let removed = self
            .leases
            .keys()
            .filter(|lease_id| !live.contains(lease_id));
        let removed: Vec<_> = removed.cloned().collect();
        for lease_id in removed {
            if let Some((_, validity)) = self.leases.remove(&lease_id) {
                validity.expire(LostReason::Released);
            }
        }
    }
}

impl Waiter {
    fn keys(&self) -> Vec<Key> {
        self.command
            .params
            .targets
            .iter()
            .map(|target| key(&lock_ref(target)))
            .collect()
    }

    pub(super) fn waits_for(&self, key: &Key) -> bool {
        self.keys().contains(key)
    }

    fn under(&self) -> Option<&str> {
        self.command
            .under
            .as_ref()
            .map(crate::guard::Held::lease_id)
    }
}

impl HolderSlot {
    /// Returns the largest weight of an entry.
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
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}

/// Returns the weight of a target and the limit of its lock; limit 0: the limit in use.
pub(super) fn weight(target: &LockTarget) -> (i64, i64) {
    match target.mode() {
        LockMode::Unspecified | LockMode::Exclusive => (EXCLUSIVE_WEIGHT, EXCLUSIVE_WEIGHT),
        LockMode::Shared => (1, EXCLUSIVE_WEIGHT),
        LockMode::Semaphore => (target.permits.max(1).into(), target.limit.into()),
    }
}

pub(super) fn key(lock: &LockRef) -> Key {
    (lock.namespace.clone(), lock.name.clone())
}
