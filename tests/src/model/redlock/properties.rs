//! Properties that hold in every world of a RedLock store, and the observations that they need.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_server::lock::LeaseId;

use super::{
    LOCK, NODES,
    broker::Task,
    world::{Body, RedlockWorld, Request},
};
use crate::{
    differential::steps::{StoreCommand, StoreReply},
    model::{
        broker::{Failure, GrantedLock},
        client::{CallState, ClientReply, LeaseState, PresentedLock, TrustedLock},
        keys::{AttemptKey, CallKey, TaskKey},
    },
};

/// Facts about the history of a world that its state does not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observations {
    /// Calls by the leases that they would create.
    calls: BTreeMap<LeaseId, CallKey>,
    /// Lease of each token that a client has received.
    delivered: BTreeMap<u64, CallKey>,
    /// Newest token that a client had received when a call began.
    newest_before: BTreeMap<CallKey, u64>,
    /// Time at which a call began.
    begun_us: BTreeMap<CallKey, u64>,
    /// Periods for which delivered leases with `at_least` close the lock, by their tokens.
    periods: BTreeMap<u64, Period>,
    /// Leases whose token a second round may have raised, as no quorum had granted one token in the
    /// first one.
    raised: BTreeSet<LeaseId>,
    /// Time since which a lease at a node has no client, no broker and no message that could renew
    /// it.
    orphans: BTreeMap<(u8, LeaseId), u64>,
    /// Numbers of the observed events, which show that a run has reached them.
    pub counts: BTreeMap<&'static str, u64>,
}

/// A period for which a lease closes the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Period {
    lease: CallKey,
    /// Earliest end by the clock of any node.
    until_us: u64,
    /// Number of restarts of nodes, which lose the period.
    restarts: u32,
}

impl Observations {
    /// Counts an event.
    pub(super) fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    /// Counts a reply of a node.
    pub(super) fn count_reply(&mut self, reply: &StoreReply) {
        self.count(match (reply.rejection(), reply) {
            (Some(_), _) => "not executed",
            (None, StoreReply::Vote(_)) => "vote",
            (None, StoreReply::Renew(_)) => "renewed at a node",
            (None, StoreReply::Release(_)) => "released at a node",
            (None, StoreReply::Cancel(_)) => "cancelled at a node",
            (None, StoreReply::Attach(_)) => "attached at a node",
            (None, _) => "other",
        });
    }

    /// Observes a command before its execution.
    pub(super) fn observe_command(&mut self, node: u8, command: &StoreCommand) {
        if let Some(lease) = renewed_lease(command) {
            self.orphans.remove(&(node, lease));
        }
    }

    /// Forgets what is known of the leases at a node that has restarted.
    pub(super) fn forget_node(&mut self, node: u8) {
        self.orphans.retain(|(other, _), _| *other != node);
    }

    pub(super) fn observe_raise(&mut self, lease: LeaseId) {
        self.count("second round");
        self.raised.insert(lease);
    }

    pub(super) fn begin_call(&mut self, call: CallKey, now_us: u64) {
        self.begun_us.insert(call, now_us);
        self.calls.insert(call.lease_id(), call);
        let newest = self.delivered.keys().next_back().copied();
        self.newest_before.insert(call, newest.unwrap_or(0));
    }
}

impl RedlockWorld {
    /// Checks the properties of the state.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let trusted: Vec<_> = self.trusted().collect();
        if let [(first, _), (second, _), ..] = trusted[..] {
            return Err(format!("clients trust leases {first} and {second}"));
        }
        for (lease, held) in trusted {
            let nodes = (0..NODES)
                .filter(|node| self.token_at(*node, lease).is_some())
                .count();
            if held.era == self.restarts && nodes <= NODES / 2 {
                return Err(format!(
                    "a client trusts lease {lease} (token {}), which {nodes} nodes hold",
                    held.token
                ));
            }
        }
        Ok(())
    }

    /// Checks a grant that its client receives.
    pub(super) fn check_delivered(
        &mut self,
        call: CallKey,
        locks: &[GrantedLock],
    ) -> Result<(), String> {
        let known = &self.clients[usize::from(call.client)].calls[&call.number];
        if known.state == CallState::Ended {
            return Ok(());
        }
        self.observations.count("delivered");
        let lease = known.arguments.under.unwrap_or(call);
        for granted in locks {
            let token = granted.token;
            let delivered = &mut self.observations.delivered;
            let of_lease = *delivered.entry(token).or_insert(lease);
            if of_lease != lease {
                return Err(format!(
                    "token {token} is delivered to lease {lease}, and was to lease {of_lease}"
                ));
            }
            let newest = self.observations.newest_before[&call];
            if token < newest && known.arguments.under.is_none() {
                return Err(format!(
                    "token {token} of call {call} is below {newest}, which was delivered before"
                ));
            }
            let mut earlier = self.observations.periods.range(..token);
            let closing = earlier.find(|(_, period)| {
                period.lease != lease
                    && period.restarts == self.restarts
                    && self.now_us < period.until_us
            });
            if let Some((_, period)) = closing {
                return Err(format!(
                    "token {token} of call {call} is delivered {} µs before the end of the period \
                     for which lease {} closes the lock",
                    period.until_us - self.now_us,
                    period.lease
                ));
            }
            let at_least_ms = known.arguments.at_least_ms;
            if at_least_ms > 0 {
                // The clock of a node may be faster by a fifth.
                let until_us = self.observations.begun_us[&call] + at_least_ms * 1_000 * 5 / 6;
                let period = Period {
                    lease,
                    until_us,
                    restarts: self.restarts,
                };
                self.observations.periods.insert(token, period);
            }
        }
        Ok(())
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
            return Ok(());
        };
        let Some(held) = known.locks.get(&LOCK) else {
            return Ok(());
        };
        let is_held = presented
            .iter()
            .any(|presented| presented.token == held.token);
        let entered = held.entries.values().map(|entry| entry.era).min();
        let may_be_lost = self.now_us >= held.trusted_until_us
            || held.era < self.restarts
            || entered.is_some_and(|era| era < self.restarts)
            // Released locks are presented for a while.
            || failure == Failure::LeaseReleased && known.has_released_entries
            || held.entries.len() == 1 && self.observations.raised.contains(&lease.lease_id());
        if known.state != LeaseState::Held || !is_held || may_be_lost {
            return Ok(());
        }
        Err(format!(
            "a client is notified that its lease {lease} is lost ({failure:?}) without a cause"
        ))
    }

    /// Lets time pass, and checks that leases without a client end in time.
    pub(super) fn advance(&mut self, ms: u64) -> Result<(), String> {
        let live = self.live_leases();
        let mut orphans = BTreeMap::new();
        for (node, lease_id) in self.held_leases() {
            let call = self.observations.calls.get(&lease_id);
            if call.is_some_and(|call| !live.contains(call)) {
                let since_us = self.observations.orphans.get(&(node, lease_id)).copied();
                orphans.insert((node, lease_id), since_us.unwrap_or(self.now_us));
            }
        }
        self.observations.orphans = orphans;
        self.now_us += ms * 1_000;
        for (node, lease_id) in self.held_leases() {
            let Some(since_us) = self.observations.orphans.get(&(node, lease_id)) else {
                continue;
            };
            let lease = self.observations.calls[&lease_id];
            let calls = &self.clients[usize::from(lease.client)].calls;
            let ttl_ms = calls[&lease.number].arguments.ttl_ms;
            let expiry_us = (ttl_ms * 6 / 5 + 250) * 1_000;
            if self.now_us > since_us + expiry_us {
                return Err(format!(
                    "node {node} holds lease {lease} {} ms after the last message that could \
                     renew it",
                    (self.now_us - since_us) / 1_000
                ));
            }
        }
        Ok(())
    }

    /// Returns the leases that clients trust.
    fn trusted(&self) -> impl Iterator<Item = (CallKey, &TrustedLock)> {
        let leases = self.clients.iter().flat_map(|client| &client.leases);
        leases.filter_map(|(key, lease)| {
            let held = lease.locks.get(&LOCK)?;
            (self.now_us < held.trusted_until_us).then_some((*key, held))
        })
    }

    /// Returns the token with which a lease holds the lock at a node.
    fn token_at(&self, node: usize, lease: CallKey) -> Option<u64> {
        let node = &self.nodes[node];
        let state = node.store.records[usize::from(LOCK)].get(node.clock_us(self.now_us));
        let mut holders = state.holders.iter();
        let held = holders.find(|holder| holder.lease_id == lease.lease_id())?;
        Some(held.fencing_token.get())
    }

    /// Returns the leases that hold the lock at each node.
    fn held_leases(&self) -> Vec<(u8, LeaseId)> {
        let nodes = (0..).zip(&self.nodes);
        let held = nodes.flat_map(|(index, node)| {
            let clock_us = node.clock_us(self.now_us);
            let holders = node.store.records[usize::from(LOCK)].get(clock_us).holders;
            holders
                .into_iter()
                .map(move |holder| (index, holder.lease_id))
        });
        held.collect()
    }

    /// Returns the leases that a client holds or requests, or for which a broker or a message may
    /// still act.
    fn live_leases(&self) -> BTreeSet<CallKey> {
        let mut live = BTreeSet::new();
        for (client, known) in (0_u8..).zip(&self.clients) {
            let held = known.leases.iter();
            let held = held.filter(|(_, lease)| lease.state == LeaseState::Held);
            live.extend(held.map(|(key, _)| *key));
            let open = known.calls.iter();
            let open = open.filter(|(_, call)| call.state == CallState::Open);
            live.extend(open.map(|(&number, call)| {
                let call_key = CallKey { client, number };
                call.arguments.under.unwrap_or(call_key)
            }));
        }
        for (message, body) in &self.messages {
            live.extend(self.lease_of_task(message.task));
            match body {
                Body::ToBroker(_, Request::Operate(operation)) => {
                    live.insert(operation.lease);
                }
                Body::ToBroker(_, Request::Acquire(request)) => {
                    live.insert(self.lease_of(request.attempt));
                }
                Body::Command { step, .. } => {
                    let lease_id = renewed_lease(&step.command);
                    let lease = lease_id.and_then(|id| self.observations.calls.get(&id));
                    live.extend(lease.copied());
                }
                Body::ToClient(ClientReply::Granted { call, .. }) => {
                    let attempt = AttemptKey {
                        call: *call,
                        number: 0,
                    };
                    live.insert(self.lease_of(attempt));
                }
                Body::ToBroker(..) | Body::ToClient(_) | Body::Reply { .. } => {}
            }
        }
        for broker in &self.brokers {
            for (key, task) in &broker.tasks {
                live.extend(self.lease_of_task(*key));
                if let Task::Operation(task) = task {
                    live.insert(task.operation.lease);
                }
            }
            live.extend(broker.waiters.keys().map(|attempt| self.lease_of(*attempt)));
            let late = broker.late_votes.keys();
            live.extend(late.filter_map(|message| self.lease_of_task(message.task)));
        }
        live
    }

    fn lease_of(&self, attempt: AttemptKey) -> CallKey {
        let call = attempt.call;
        let known = &self.clients[usize::from(call.client)].calls[&call.number];
        known.arguments.under.unwrap_or(call)
    }

    fn lease_of_task(&self, task: TaskKey) -> Option<CallKey> {
        match task {
            TaskKey::Acquire(attempt)
            | TaskKey::Election(attempt)
            | TaskKey::Rollback(attempt, _) => Some(self.lease_of(attempt)),
            TaskKey::Renewal(_, lease) | TaskKey::Lapse(_, lease) => Some(lease),
            TaskKey::Operation(..) | TaskKey::Touch(..) | TaskKey::Stream(_) => None,
        }
    }
}

/// Returns the lease that a command may grant, renew or attach.
fn renewed_lease(command: &StoreCommand) -> Option<LeaseId> {
    match command {
        StoreCommand::Acquire(acquire) | StoreCommand::Vote(acquire, _) => Some(acquire.lease_id),
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
    }
}
