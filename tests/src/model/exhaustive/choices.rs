//! Choices in a state of the search.

use leasehold_server::lock::Mode;

use super::state::{BROKERS, CLIENTS, SearchState};
use crate::model::{
    action::{Action, CallArguments, ReleasePart, Target},
    broker::{AcquirePhase, ModelBroker, Task},
    client::{CallState, ClientCall, LeaseState, ModelClient},
    keys::{AttemptKey, CallKey, ClientIndex, LockIndex, MessageKey},
    store::TTL_MAX_MS,
};

/// Maximum number of attempts of a call.
const ATTEMPTS_MAX: u8 = 2;
/// Maximum number of calls of a client.
const CALLS_MAX: u8 = 3;
/// Client that may use streams.
const STREAM_CLIENT: ClientIndex = 1;
/// Time for which a call waits.
const WAIT_MS: u64 = 5_000;
/// Time within which a lease that was renewed at its start is valid on any clock, in milliseconds;
/// time after which it has expired in the store; and time after which a rollback is due, a lock
/// delay has passed, and a command is late.
const TIME_STEPS_MS: [u32; 3] = [2_399, 2_650, 1_000];
/// Time without grants after a loss of data, in milliseconds.
const QUARANTINE_MS: u32 = 4_650;

/// Choice of the next step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Choice {
    Act(Action),
    /// The adversary delays a message, perhaps for ever.
    Delay(MessageKey),
}

impl SearchState {
    /// Subtracts a choice from what may still happen.
    pub(super) fn spend(&mut self, choice: &Choice) {
        let remaining = &mut self.remaining;
        let Choice::Act(action) = choice else {
            remaining.faults -= 1;
            return;
        };
        match action {
            Action::Drop(_)
            | Action::Repeat(_)
            | Action::Kill(_)
            | Action::RollBack { .. }
            | Action::Promote { .. } => remaining.faults -= 1,
            Action::Advance(_) => remaining.time_steps -= 1,
            Action::Acquire(_) => remaining.calls -= 1,
            Action::Open { client, .. }
                if self.world.clients[usize::from(*client)].streams_opened == 0 => {}
            Action::Touch { .. }
            | Action::Save
            | Action::SetLimit { .. }
            | Action::Close { .. }
            | Action::OpenLock { .. }
            | Action::Revoke { .. }
            | Action::Retry { .. }
            | Action::Open { .. }
            | Action::Break(_)
            | Action::Heartbeat(_)
            | Action::Attach { .. }
            | Action::Abandon { .. }
            | Action::Renew { .. }
            | Action::Release { .. } => remaining.operations -= 1,
            Action::Deliver(_)
            | Action::GiveUp(_)
            | Action::TimeOut(_)
            | Action::Cancel(_)
            | Action::Verify(_) => {}
        }
    }

    /// Adds the choices in this state.
    pub fn choices(&self, choices: &mut Vec<Choice>) {
        if let Some(message) = self.next_message() {
            choices.push(Choice::Act(Action::Deliver(message)));
            if self.remaining.faults > 0 {
                choices.push(Choice::Act(Action::Repeat(message)));
                choices.push(Choice::Delay(message));
            }
            return;
        }
        if let Some(step) = self.due_step() {
            choices.push(Choice::Act(step));
            return;
        }
        let mut act = |action| choices.push(Choice::Act(action));
        for message in &self.delayed {
            act(Action::Deliver(*message));
        }
        self.given_up(&mut act);
        if !self.has_begun() {
            self.first_stream(&mut act);
        }
        if self.remaining.calls > 0 {
            (0..CLIENTS).for_each(|client| self.calls(client, &mut act));
        }
        if self.remaining.operations > 0 {
            self.operations(&mut act);
        }
        if self.has_begun() {
            self.time_steps(&mut act);
            self.faults(&mut act);
        }
    }

    /// Returns a step that a broker takes now: a cancellation, the end of a wait, or the
    /// verification of a new era. The messages of the step can be delayed.
    pub(super) fn due_step(&self) -> Option<Action> {
        let now_us = self.world.now_us;
        for (broker, state) in (0..).zip(&self.world.brokers) {
            if state.era != self.world.store.era {
                return Some(Action::Verify(broker));
            }
            let mut tasks = state.tasks.iter();
            let step = tasks.find_map(|(&key, task)| match task {
                Task::Rollback(task) => (task.in_flight.is_none() && now_us >= task.not_before_us)
                    .then_some(Action::Cancel(key)),
                Task::Acquire(task) => (task.phase == AcquirePhase::Waiting
                    && now_us >= task.deadline_us)
                    .then_some(Action::TimeOut(key)),
                Task::Operation(_) | Task::Touch(_) => None,
            });
            if step.is_some() {
                return step;
            }
        }
        None
    }

    /// Lets brokers give up commands whose message or reply is delayed or lost.
    fn given_up(&self, act: &mut impl FnMut(Action)) {
        for state in &self.world.brokers {
            for (&key, task) in &state.tasks {
                let in_flight = match task {
                    Task::Acquire(task) => task.in_flight(),
                    Task::Operation(task) => task.in_flight(),
                    Task::Rollback(task) => task.in_flight,
                    Task::Touch(touch) => Some(touch.command),
                };
                if in_flight.is_some() {
                    act(Action::GiveUp(key));
                }
            }
        }
    }

    fn time_steps(&self, act: &mut impl FnMut(Action)) {
        if self.remaining.time_steps == 0 {
            return;
        }
        TIME_STEPS_MS
            .iter()
            .for_each(|ms| act(Action::Advance(*ms)));
        if self.has_rolled_back {
            act(Action::Advance(QUARANTINE_MS));
        }
    }

    fn faults(&self, act: &mut impl FnMut(Action)) {
        if self.remaining.faults == 0 {
            return;
        }
        if !self.has_killed {
            (0..BROKERS).for_each(|broker| act(Action::Kill(broker)));
        }
        if !self.has_rolled_back {
            (0..=u8::from(self.has_saved))
                .for_each(|saves_ago| act(Action::RollBack { saves_ago }));
        }
    }

    /// Lets a client use a stream from the beginning.
    fn first_stream(&self, act: &mut impl FnMut(Action)) {
        let client = STREAM_CLIENT;
        if self.world.clients[usize::from(client)].streams_opened == 0 {
            act(Action::Open { client, broker: 0 });
        }
    }

    fn has_begun(&self) -> bool {
        self.world
            .clients
            .iter()
            .any(|client| !client.calls.is_empty())
    }

    fn calls(&self, client: ClientIndex, act: &mut impl FnMut(Action)) {
        let known = &self.world.clients[usize::from(client)];
        let number = u8::try_from(known.calls.len()).expect("few calls");
        if number >= CALLS_MAX {
            return;
        }
        let call = CallKey { client, number };
        // The first call uses the first broker and the first lock, because the others differ by
        // their names only.
        let is_first = !self.has_begun();
        let brokers = if is_first { 1 } else { BROKERS };
        let locks = LockIndex::try_from(self.world.store.records.len()).expect("few locks");
        let mut targets: Vec<_> = (0..locks).map(|lock| vec![lock]).collect();
        if is_first {
            targets.truncate(1);
        }
        for broker in 0..brokers {
            for under in held_leases(known) {
                for lock in 0..locks {
                    let arguments = arguments(call, broker, &[lock], known);
                    let under = Some(under);
                    act(Action::Acquire(Box::new(CallArguments {
                        under,
                        ..arguments
                    })));
                }
            }
            let all: Vec<_> = (0..locks).collect();
            let several = (locks > 1).then_some(all);
            for targets in targets.iter().chain(&several) {
                let arguments = arguments(call, broker, targets, known);
                act(Action::Acquire(Box::new(arguments)));
            }
        }
    }

    fn operations(&self, act: &mut impl FnMut(Action)) {
        for (client, known) in (0..).zip(&self.world.clients) {
            for call in known.calls.values() {
                calls_operations(call, self.operation(), act);
            }
            if known.streams_opened > 0 {
                stream_operations(client, known, act);
            }
            for lease in held_leases(known) {
                self.lease_operations(lease, act);
            }
        }
        for (broker, state) in (0..).zip(&self.world.brokers) {
            for lock in 0..self.world.store.records.len() {
                let lock = LockIndex::try_from(lock).expect("few locks");
                if waits_for(state, lock) {
                    act(Action::Touch { broker, lock });
                }
            }
        }
        if !self.has_saved && !self.has_rolled_back && self.remaining.faults > 0 {
            act(Action::Save);
        }
    }

    fn lease_operations(&self, lease: CallKey, act: &mut impl FnMut(Action)) {
        let client = lease.client;
        let held = &self.world.clients[usize::from(client)].leases[&lease];
        let operation = self.operation();
        let mut calls = self.world.clients[usize::from(client)].calls.values();
        let has_open_calls =
            calls.any(|call| call.state == CallState::Open && call.arguments.under == Some(lease));
        if held.stream.is_none() {
            // The broker of a renewal makes no difference.
            act(Action::Renew {
                client,
                operation,
                lease,
                broker: 0,
            });
        }
        for broker in 0..BROKERS {
            let mut release = |part| {
                act(Action::Release {
                    client,
                    operation,
                    lease,
                    part,
                    broker,
                });
            };
            release(ReleasePart::All);
            for (&lock, trusted) in &held.locks {
                if held.locks.len() > 1 || has_open_calls {
                    release(ReleasePart::Lock(lock));
                }
                for call in trusted.entries.keys().filter(|_| trusted.entries.len() > 1) {
                    release(ReleasePart::Entry(lock, *call));
                }
            }
            if held.stream.is_some() {
                break;
            }
        }
    }

    /// Returns the number of the next operation.
    fn operation(&self) -> u8 {
        self.remaining.operations
    }
}

fn calls_operations(call: &ClientCall, operation: u8, act: &mut impl FnMut(Action)) {
    if call.state != CallState::Open {
        return;
    }
    let number = u8::try_from(call.attempts.len()).expect("few attempts");
    let key = call.arguments.call;
    if number < ATTEMPTS_MAX {
        let attempt = AttemptKey { call: key, number };
        let broker = (call.arguments.broker + 1) % BROKERS;
        act(Action::Retry { attempt, broker });
    }
    for number in call.attempts.keys().copied() {
        let attempt = AttemptKey { call: key, number };
        act(Action::Abandon { attempt, operation });
    }
}

fn stream_operations(client: ClientIndex, known: &ModelClient, act: &mut impl FnMut(Action)) {
    (0..BROKERS).for_each(|broker| act(Action::Open { client, broker }));
    if let Some(open) = known.stream {
        act(Action::Break(client));
        act(Action::Heartbeat(client));
        for lease in held_leases(known) {
            if known.leases[&lease].stream != Some(open.key) {
                act(Action::Attach { client, lease });
            }
        }
    }
}

fn held_leases(client: &ModelClient) -> impl Iterator<Item = CallKey> {
    let held = client.leases.iter();
    held.filter(|(_, lease)| lease.state == LeaseState::Held)
        .map(|(key, _)| *key)
}

fn waits_for(broker: &ModelBroker, lock: LockIndex) -> bool {
    let mut tasks = broker.tasks.values();
    tasks.any(|task| matches!(task, Task::Acquire(task) if task.waits_for(lock)))
}

fn arguments(
    call: CallKey,
    broker: u8,
    locks: &[LockIndex],
    client: &ModelClient,
) -> CallArguments {
    let targets = locks.iter().map(|&lock| Target {
        lock,
        mode: Mode::Exclusive,
    });
    let is_on_stream = client.stream.is_some();
    CallArguments {
        call,
        broker,
        targets: targets.collect(),
        under: None,
        ttl_ms: TTL_MAX_MS,
        wait_ms: WAIT_MS,
        lock_delay_ms: if call.client == 0 { 1_000 } else { 0 },
        at_least_ms: 0,
        is_on_stream,
        disconnect_grace_ms: (is_on_stream && call.number > 0).then_some(1_000),
        max_hold_ms: None,
    }
}
