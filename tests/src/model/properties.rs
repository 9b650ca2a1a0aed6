//! Properties that hold in every world, and the observations that they need.

mod closures;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_server::{
    lock::{LeaseId, LockState, Mode, RequestHash, RevokeMode},
    store::Acquired,
};

use self::closures::{ClosedBy, Period};
use super::{
    broker::{AcquirePhase, AcquireTask, Failure, Task},
    client::{CallState, ClientReply, LeaseState, PresentedLock, ReleasedLock, TrustedLock},
    keys::{CallKey, LockIndex, ProcessKey, TaskKey},
    world::{Body, World},
};
use crate::differential::steps::{StoreCommand, StoreReply};

/// Time within which a broker's touch makes it certain that the broker is not silent: the longest
/// interval between touches is 4.8 s, and a broker is silent after 6 s.
const SURELY_LIVE_US: u64 = 5_000_000;
/// Limit of exclusive and shared locks. Not taken from the product, like the weights.
const WHOLE: u32 = 1 << 30;

/// Facts about the history of a world that its state does not contain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Observations {
    /// Calls by the ids of their requests.
    pub requests: BTreeMap<RequestHash, CallKey>,
    /// Grant of each token of each lock.
    grants: BTreeMap<(LockIndex, u64), KnownGrant>,
    /// Newest token of each lock.
    newest_tokens: Vec<u64>,
    /// Upper bound of the limits of each lock.
    limits: Vec<u32>,
    /// Calls that were queued.
    queued: BTreeSet<(LockIndex, CallKey)>,
    /// Calls that were rejected for good in one of their attempts.
    rejected: BTreeSet<CallKey>,
    /// Calls that were handed a lock, whose position in the queue then depends on their broker.
    handed_off: BTreeSet<(LockIndex, CallKey)>,
    /// Last touch of each lock by each broker process.
    touches: BTreeMap<(LockIndex, ProcessKey), u64>,
    /// End of the lock delay of leases that were not released, if they expire.
    delays: BTreeMap<(LockIndex, CallKey), u64>,
    /// Periods in which a lock is closed, by the lease with `at_least` or the operator that closes
    /// it.
    periods: BTreeMap<(LockIndex, ClosedBy), Period>,
    /// Newest token of each lock when an operator opened it: what older leases close is open.
    opened: Vec<u64>,
    /// Locks of leases that an operator revoked.
    revoked: BTreeMap<(LockIndex, CallKey), RevokeMode>,
    /// Time since which a holder has no client, no broker and no message that could renew it.
    orphans: BTreeMap<(LockIndex, u64), u64>,
    /// Numbers of the observed events, which show that a run has reached them.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Observations {
    /// Creates observations of a world in which nothing has happened.
    #[must_use]
    pub fn new(locks: usize) -> Self {
        Self {
            requests: BTreeMap::new(),
            grants: BTreeMap::new(),
            newest_tokens: vec![0; locks],
            limits: vec![0; locks],
            queued: BTreeSet::new(),
            rejected: BTreeSet::new(),
            handed_off: BTreeSet::new(),
            touches: BTreeMap::new(),
            delays: BTreeMap::new(),
            periods: BTreeMap::new(),
            opened: vec![0; locks],
            revoked: BTreeMap::new(),
            orphans: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }
}

/// The broker that sent a command, and where the command was executed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Executor {
    pub process: ProcessKey,
    /// Era that the broker had verified when it sent the command.
    pub verified_era: u32,
    /// Era of the master that executed the command.
    pub era: u32,
}

/// A grant that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct KnownGrant {
    lease: CallKey,
    ttl_ms: u64,
    /// Time for which the lock stays closed after the grant.
    at_least_ms: u64,
    granted_us: u64,
}

/// A grant that a command makes.
struct NewGrant {
    call: CallKey,
    lease: CallKey,
    token: u64,
    weight: u32,
}

impl World {
    /// Checks a command that was executed, with the state of the lock before it.
    pub(super) fn observe(
        &mut self,
        executor: Executor,
        lock: LockIndex,
        command: &StoreCommand,
        (before, reply): (&LockState, &StoreReply),
    ) -> Result<(), String> {
        let process = executor.process;
        let is_current = executor.era == self.store.era;
        self.observations.count_reply(reply);
        let renewed = match command {
            StoreCommand::Acquire(acquire) | StoreCommand::Vote(acquire, _) => {
                Some(acquire.lease_id)
            }
            StoreCommand::Renew(lease, ..)
            | StoreCommand::RenewForClient(lease, ..)
            | StoreCommand::Attach(lease, _) => Some(lease.lease_id),
            StoreCommand::Release(..)
            | StoreCommand::Cancel(..)
            | StoreCommand::Touch(_)
            | StoreCommand::SetLimit(_)
            | StoreCommand::Close(_)
            | StoreCommand::Open
            | StoreCommand::Revoke(_)
            | StoreCommand::Get
            | StoreCommand::Check(_) => None,
        };
        let Observations {
            orphans, grants, ..
        } = &mut self.observations;
        orphans.retain(|token, _| Some(grants[token].lease.lease_id()) != renewed);
        if let (StoreCommand::SetLimit(Some(limit)), StoreReply::SetLimit(Ok(_))) = (command, reply)
        {
            let known = &mut self.observations.limits[usize::from(lock)];
            *known = (*known).max(*limit);
        }
        self.observe_closing(lock, command, reply, executor.era);
        let mut granted = Vec::new();
        if let (StoreCommand::Acquire(acquire), StoreReply::Acquire(Ok(outcome))) = (command, reply)
            && let Acquired::Granted(grant) = &outcome.reply
        {
            granted.push((acquire.request, grant.fencing_token.get()));
        }
        for hand_off in reply.hand_offs() {
            granted.push((hand_off.request, hand_off.fencing_token.get()));
        }
        // A command grants the lock to waiters before its own call.
        granted.sort_by_key(|(_, token)| *token);
        for (request, token) in granted {
            if let Some(grant) = self.new_grant(lock, request, token)? {
                self.check_grant(lock, &grant, executor.era)?;
                // Waiters may have moved from the former master to the new one.
                if is_current {
                    self.check_order(lock, process, before, &grant)?;
                }
            }
        }
        for hand_off in reply.hand_offs() {
            let call = self.observations.requests[&hand_off.request];
            self.observations.handed_off.insert((lock, call));
        }
        if let (StoreCommand::Acquire(acquire), StoreReply::Acquire(Ok(outcome))) = (command, reply)
        {
            let call = self.observations.requests[&acquire.request];
            if let Acquired::Queued { .. } = &outcome.reply {
                self.observations.queued.insert((lock, call));
            } else if let Acquired::LimitMismatch { .. } = &outcome.reply {
                self.observations.rejected.insert(call);
            }
        }
        if let StoreReply::Touch(Ok(touched)) = reply
            && !touched.reply.rejoin
            && is_current
        {
            self.check_places(lock, process, executor.verified_era)?;
        }
        let is_touch = matches!(command, StoreCommand::Touch(_) | StoreCommand::Acquire(_));
        if is_touch && is_current {
            let touch = (lock, process);
            self.observations.touches.insert(touch, self.now_us);
        }
        Ok(())
    }

    /// Returns the grant if the token is new.
    fn new_grant(
        &mut self,
        lock: LockIndex,
        request: RequestHash,
        token: u64,
    ) -> Result<Option<NewGrant>, String> {
        let call = self.observations.requests[&request];
        let arguments = &self.clients[usize::from(call.client)].calls[&call.number].arguments;
        let lease = arguments.under.unwrap_or(call);
        let target = arguments.targets.iter().find(|target| target.lock == lock);
        let mode = target.expect("a target of the call").mode;
        let limit = &mut self.observations.limits[usize::from(lock)];
        *limit = (*limit).max(limit_of(mode));
        match self.observations.grants.get(&(lock, token)) {
            Some(known) if known.lease == lease => return Ok(None),
            Some(known) => {
                return Err(format!(
                    "lock {lock} is granted to lease {lease} with token {token} of lease {}",
                    known.lease
                ));
            }
            None => {}
        }
        let newest = &mut self.observations.newest_tokens[usize::from(lock)];
        if token <= *newest {
            return Err(format!(
                "token {token} of lock {lock} for lease {lease} is not above {newest}"
            ));
        }
        *newest = token;
        let ttl_ms = arguments.ttl_ms;
        let grant = KnownGrant {
            lease,
            ttl_ms,
            at_least_ms: arguments.at_least_ms,
            granted_us: self.now_us,
        };
        self.observations.grants.insert((lock, token), grant);
        Ok(Some(NewGrant {
            call,
            lease,
            token,
            weight: weight_of(mode),
        }))
    }

    /// Checks a grant of a master in this era.
    fn check_grant(&mut self, lock: LockIndex, grant: &NewGrant, era: u32) -> Result<(), String> {
        let NewGrant { lease, token, .. } = grant;
        let others = self.trusted_weight(lock, Some(*lease));
        let limit = self.observations.limits[usize::from(lock)];
        if others + u64::from(grant.weight) > u64::from(limit) {
            return Err(format!(
                "lock {lock} is granted to lease {lease} (token {token}) while clients trust leases \
                 of weight {others} of {limit}"
            ));
        }
        let closed = self
            .observations
            .delays
            .iter()
            .find(|((delayed, other), until_us)| {
                *delayed == lock && other != lease && self.now_us < **until_us
            });
        if let Some(((_, other), until_us)) = closed {
            return Err(format!(
                "lock {lock} is granted to lease {lease} {} µs before the end of the lock delay of \
                 lease {other}",
                until_us - self.now_us
            ));
        }
        self.check_closed(lock, *lease, era)
    }

    /// Checks that a grant passes no waiter that was queued earlier.
    fn check_order(
        &self,
        lock: LockIndex,
        process: ProcessKey,
        before: &LockState,
        grant: &NewGrant,
    ) -> Result<(), String> {
        let call = &grant.call;
        let earlier = before
            .waiters
            .iter()
            .filter_map(|waiter| Some((waiter.sequence, CallKey::from_owner(&waiter.owner.id)?)));
        let earlier: Vec<_> = earlier.collect();
        let position = earlier.iter().position(|(_, waiting)| waiting == call);
        if position.is_none() && self.observations.queued.contains(&(lock, *call)) {
            // The wait of the call has timed out, so that its position is not reported.
            return Ok(());
        }
        let earlier = &earlier[..position.unwrap_or(earlier.len())];
        let passed = earlier
            .iter()
            .find(|(_, waiting)| self.is_surely_eligible(lock, process, *waiting, before));
        if let Some((_, passed)) = passed {
            return Err(format!(
                "lock {lock} is granted to call {call} before call {passed}, which was queued earlier"
            ));
        }
        Ok(())
    }

    /// Returns true if nothing but the order of the queue can delay the grant to a waiter.
    fn is_surely_eligible(
        &self,
        lock: LockIndex,
        executing: ProcessKey,
        call: CallKey,
        before: &LockState,
    ) -> bool {
        let known = &self.clients[usize::from(call.client)].calls[&call.number];
        let lease = known.arguments.under.unwrap_or(call);
        let holds = before
            .holders
            .iter()
            .any(|holder| holder.lease_id == lease.lease_id());
        // Another call of the lease may have been handed the lock, which this call then enters.
        let has_other_call = before.waiters.iter().any(|waiter| {
            let other = CallKey::from_owner(&waiter.owner.id).filter(|other| *other != call);
            other.is_some_and(|other| self.lease_of(other) == lease)
        });
        let target = known
            .arguments
            .targets
            .iter()
            .find(|target| target.lock == lock);
        let is_whole = target.is_some_and(|target| target.mode == Mode::Exclusive);
        let waits_at = |process: ProcessKey| {
            let broker = self.brokers.iter().find(|broker| broker.process == process);
            broker.is_some_and(|broker| {
                broker.tasks.values().any(|task| {
                    matches!(task, Task::Acquire(task) if task.request.attempt.call == call
                        && task.phase == AcquirePhase::Waiting && task.lock() == Some(lock)
                        && self.now_us < task.deadline_us)
                })
            })
        };
        let has_touched = |process: ProcessKey| {
            let touch = self.observations.touches.get(&(lock, process));
            touch.is_some_and(|touched_us| self.now_us < touched_us + SURELY_LIVE_US)
        };
        let is_live = |process: ProcessKey| process == executing || has_touched(process);
        let mut processes = self.brokers.iter().map(|broker| broker.process);
        known.state == CallState::Open
            && known.attempts.len() == 1
            && !holds
            && !has_other_call
            && is_whole
            && !self.observations.handed_off.contains(&(lock, call))
            && processes.any(|process| waits_at(process) && is_live(process))
    }

    /// Checks that every call that waits at the broker has a place in the queue, or the lock.
    fn check_places(
        &self,
        lock: LockIndex,
        process: ProcessKey,
        verified_era: u32,
    ) -> Result<(), String> {
        let Some(broker) = self.brokers.iter().find(|broker| broker.process == process) else {
            return Ok(());
        };
        let state = self.store.records[usize::from(lock)].get(self.now_us);
        let queue = broker.queues.get(&lock).copied().unwrap_or_default();
        if queue.era != Some(verified_era) {
            // The broker asks its calls to join when it receives the reply.
            return Ok(());
        }
        let waits = |task: &&AcquireTask| {
            let call = task.request.attempt.call;
            let known = &self.clients[usize::from(call.client)].calls[&call.number];
            task.phase == AcquirePhase::Waiting
                && task.lock() == Some(lock)
                && self.now_us < task.deadline_us
                && known.state == CallState::Open
                && !self.observations.rejected.contains(&call)
                && !task.may_miss_a_grant(queue.touch_sent_us, self.now_us)
        };
        let tasks = broker.tasks.values().filter_map(|task| match task {
            Task::Acquire(task) => Some(&**task),
            Task::Operation(_) | Task::Rollback(_) | Task::Touch(_) => None,
        });
        for task in tasks.filter(waits) {
            let call = task.request.attempt.call;
            let lease = task.request.arguments.under.unwrap_or(call);
            let is_queued = state
                .waiters
                .iter()
                .any(|waiter| CallKey::from_owner(&waiter.owner.id) == Some(call));
            let holds = state
                .holders
                .iter()
                .any(|holder| holder.lease_id == lease.lease_id());
            if !is_queued && !holds {
                return Err(format!(
                    "{} waits for lock {lock} at {process} without a place in its queue, and is not \
                     asked to join",
                    task.request.attempt
                ));
            }
        }
        Ok(())
    }

    /// Checks the properties of the state.
    pub(super) fn check(&mut self) -> Result<(), String> {
        for lock in 0..self.store.records.len() {
            let lock = LockIndex::try_from(lock).expect("few locks");
            self.check_lock(lock)?;
        }
        self.update_delays();
        self.update_periods();
        Ok(())
    }

    fn check_lock(&self, lock: LockIndex) -> Result<(), String> {
        let weight = self.trusted_weight(lock, None);
        if weight == 0 {
            return Ok(());
        }
        let limit = self.observations.limits[usize::from(lock)];
        if weight > u64::from(limit) {
            return Err(format!(
                "clients trust leases of weight {weight} of {limit} in lock {lock}"
            ));
        }
        let state = self.store.records[usize::from(lock)].get(self.now_us);
        for (lease, TrustedLock { token, era, .. }) in self.trusted(lock) {
            let is_held = state.holders.iter().any(|holder| {
                holder.lease_id == lease.lease_id() && holder.fencing_token.get() == *token
            });
            if *era == self.store.era && !is_held {
                return Err(format!(
                    "a client trusts lease {lease} (token {token}) of lock {lock}, which the store \
                     has ended"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn observe_revocation(&mut self, lock: LockIndex, lease: CallKey, mode: RevokeMode) {
        let revoked = self
            .observations
            .revoked
            .entry((lock, lease))
            .or_insert(mode);
        if mode == RevokeMode::Immediate {
            *revoked = mode;
        }
    }

    /// Returns the leases that clients trust.
    fn trusted(&self, lock: LockIndex) -> impl Iterator<Item = (CallKey, &TrustedLock)> {
        let leases = self.clients.iter().flat_map(|client| &client.leases);
        leases.filter_map(move |(key, lease)| {
            let held = lease.locks.get(&lock)?;
            let revoked = self.observations.revoked.get(&(lock, *key));
            let is_trusted = self.now_us < held.trusted_until_us
                && revoked != Some(&RevokeMode::Immediate)
                && !(lease.may_lapse && lease.has_grace);
            is_trusted.then_some((*key, held))
        })
    }

    fn trusted_weight(&self, lock: LockIndex, except: Option<CallKey>) -> u64 {
        let others = self.trusted(lock).filter(|(key, _)| Some(*key) != except);
        others.map(|(_, held)| u64::from(held.weight())).sum()
    }

    fn update_delays(&mut self) {
        for client in &self.clients {
            for (key, lease) in &client.leases {
                let created = &client.calls[&key.number].arguments;
                for (lock, held) in &lease.locks {
                    // Others may share the lock until the lease expires, unless it is exclusive.
                    let is_own = created.targets.iter().any(|target| target.lock == *lock);
                    let is_exclusive = is_own && held.weight() == WHOLE;
                    let has_lapsed = lease.may_lapse && lease.has_grace;
                    let revoked = self.observations.revoked.get(&(*lock, *key));
                    if created.lock_delay_ms == 0
                        || !is_exclusive
                        || held.token <= self.observations.opened[usize::from(*lock)]
                        || has_lapsed
                        || revoked == Some(&RevokeMode::Immediate)
                        || held.era != self.store.era
                    {
                        self.observations.delays.remove(&(*lock, *key));
                        continue;
                    }
                    let until_us = held.trusted_until_us + created.lock_delay_ms * 1_000;
                    self.observations.delays.insert((*lock, *key), until_us);
                }
                if lease.state == LeaseState::Released {
                    self.observations
                        .delays
                        .retain(|(_, other), _| other != key);
                }
                for lock in lease.released.keys() {
                    if !lease.locks.contains_key(lock) {
                        self.observations.delays.remove(&(*lock, *key));
                    }
                }
            }
        }
    }

    /// Checks a call that was rejected because its lease has ended.
    pub(super) fn check_refused(
        &mut self,
        call: CallKey,
        presented: &[PresentedLock],
        failure: Failure,
    ) -> Result<(), String> {
        let known = &self.clients[usize::from(call.client)].calls[&call.number];
        match known.arguments.under {
            Some(lease) if failure == Failure::LeaseNotFound => {
                self.check_loss(lease, presented, failure)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that the loss of a lease, of which a client is notified, has a cause.
    pub(super) fn check_loss(
        &mut self,
        lease: CallKey,
        presented: &[PresentedLock],
        failure: Failure,
    ) -> Result<(), String> {
        self.observations.count("loss");
        let Some(known) = self.clients[usize::from(lease.client)].leases.get(&lease) else {
            // The client has not received the grant.
            return Ok(());
        };
        let is_held = |presented: &PresentedLock| {
            let held = known.locks.get(&presented.lock);
            held.is_some_and(|held| held.token == presented.token)
        };
        if known.state != LeaseState::Held || !presented.iter().any(is_held) {
            return Ok(());
        }
        // After two losses the reply may be from the era between them, in which the lease was lost,
        // and the second loss may have restored it.
        let has_lost_twice = |held: &TrustedLock| {
            let mut eras = held.entries.values().map(|entry| entry.era);
            eras.any(|era| era + 1 < self.store.era)
        };
        let is_revoked = |presented: &PresentedLock| {
            let revoked = &self.observations.revoked;
            revoked.contains_key(&(presented.lock, lease))
        };
        let may_be_lost = |held: &TrustedLock| {
            self.now_us >= held.trusted_until_us
                || held.era < self.store.era
                || has_lost_twice(held)
                || known.may_lack_entries(held, self.store.era)
                || known.may_lapse && known.has_grace
                || held
                    .max_hold_until_us
                    .is_some_and(|until_us| self.now_us >= until_us)
        };
        // Released locks may be presented for a while. Their release is no cause, unless nothing
        // else was presented.
        let is_forgotten = |released: &ReleasedLock| {
            failure == Failure::LeaseReleased
                || self.now_us >= released.released_at_us + known.ttl_ms * 1_000
        };
        let has_cause = |presented: &PresentedLock| match known.locks.get(&presented.lock) {
            Some(held) if held.token == presented.token => may_be_lost(held),
            Some(_) | None => {
                let released = known.released.get(&presented.lock);
                released
                    .is_none_or(|released| may_be_lost(&released.held) || is_forgotten(released))
            }
        };
        let has_cause = |presented: &PresentedLock| is_revoked(presented) || has_cause(presented);
        match presented.iter().any(has_cause) {
            true => Ok(()),
            false => Err(format!(
                "a client is notified that its lease {lease} is lost ({failure:?}) without a cause"
            )),
        }
    }

    /// Lets time pass, and checks that holders without a client end in time.
    pub(super) fn advance(&mut self, ms: u64) -> Result<(), String> {
        let live = self.live_leases();
        let holders = self.holders();
        let is_live = |token| {
            let grant = self.observations.grants.get(token);
            grant.is_none_or(|grant| live.contains(&grant.lease))
        };
        let mut orphans = BTreeMap::new();
        for token in holders.iter().filter(|token| !is_live(token)) {
            let since_us = self.observations.orphans.get(token).copied();
            orphans.insert(*token, since_us.unwrap_or(self.now_us));
        }
        self.observations.orphans = orphans;
        self.now_us += ms * 1_000;
        for token in self.holders() {
            let Some(since_us) = self.observations.orphans.get(&token) else {
                continue;
            };
            let KnownGrant { lease, ttl_ms, .. } = self.observations.grants[&token];
            let expiry_us = (ttl_ms * 6 / 5 + 250) * 1_000;
            if self.now_us > since_us + expiry_us {
                return Err(format!(
                    "lease {lease} holds lock {} {} ms after the last message that could renew it",
                    token.0,
                    (self.now_us - since_us) / 1_000
                ));
            }
        }
        Ok(())
    }

    /// Returns the locks that are held, with the tokens of their holders.
    fn holders(&self) -> Vec<(LockIndex, u64)> {
        let records = (0..).zip(&self.store.records);
        let holders = records.flat_map(|(lock, record)| {
            let holders = record.get(self.now_us).holders.into_iter();
            holders.map(move |holder| (lock, holder.fencing_token.get()))
        });
        holders.collect()
    }

    /// Returns the leases that a client holds or requests, or for which a broker or a message may
    /// still act.
    fn live_leases(&self) -> BTreeSet<CallKey> {
        let mut live = BTreeSet::new();
        for client in &self.clients {
            let held = client
                .leases
                .iter()
                .filter(|(_, lease)| lease.state == LeaseState::Held);
            live.extend(held.map(|(key, _)| *key));
            for (number, call) in &client.calls {
                if call.state == CallState::Open {
                    let call_key = CallKey {
                        client: call.arguments.call.client,
                        number: *number,
                    };
                    live.insert(call.arguments.under.unwrap_or(call_key));
                }
            }
        }
        let lease_of = |call: CallKey| self.lease_of(call);
        let lease_of_task = |task: TaskKey| match task {
            TaskKey::Acquire(attempt)
            | TaskKey::Election(attempt)
            | TaskKey::Rollback(attempt, _) => Some(lease_of(attempt.call)),
            TaskKey::Renewal(_, lease) | TaskKey::Lapse(_, lease) => Some(lease),
            TaskKey::Operation(..) | TaskKey::Touch(..) | TaskKey::Stream(_) => None,
        };
        for (key, body) in &self.messages {
            live.extend(lease_of_task(key.task));
            match body {
                Body::ToBroker(_, request) => live.extend(request.call().map(lease_of)),
                Body::Command(_, step) => live.extend(self.lease_of_command(&step.command)),
                Body::HandOff(_, _, hand_off, _) => {
                    live.insert(lease_of(self.observations.requests[&hand_off.request]));
                }
                Body::ToClient(ClientReply::Granted { call, .. }) => live.extend([lease_of(*call)]),
                Body::ToClient(_) | Body::Reply(..) => {}
            }
        }
        for broker in &self.brokers {
            for (key, task) in &broker.tasks {
                live.extend(lease_of_task(*key));
                if let Task::Operation(task) = task {
                    live.insert(task.lease());
                }
            }
        }
        live
    }

    /// Returns the lease of a call.
    fn lease_of(&self, call: CallKey) -> CallKey {
        let known = &self.clients[usize::from(call.client)].calls[&call.number];
        known.arguments.under.unwrap_or(call)
    }

    fn lease_of_command(&self, command: &StoreCommand) -> Option<CallKey> {
        let lease_id = renewed_lease(command)?;
        let mut leases = self.observations.grants.values().map(|grant| grant.lease);
        leases.find(|lease| lease.lease_id() == lease_id)
    }
}

/// Returns the share of the limit that a holder uses.
pub(super) fn weight_of(mode: Mode) -> u32 {
    match mode {
        Mode::Exclusive => WHOLE,
        Mode::Shared => 1,
        Mode::Semaphore { permits, .. } => permits,
    }
}

fn limit_of(mode: Mode) -> u32 {
    match mode {
        Mode::Exclusive | Mode::Shared => WHOLE,
        Mode::Semaphore { limit, .. } => limit,
    }
}

/// Returns the lease that a command renews or attaches.
fn renewed_lease(command: &StoreCommand) -> Option<LeaseId> {
    if let StoreCommand::Renew(lease, ..)
    | StoreCommand::RenewForClient(lease, ..)
    | StoreCommand::Attach(lease, _) = command
    {
        return Some(lease.lease_id);
    }
    None
}
