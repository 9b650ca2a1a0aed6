//! Random histories of a RedLock store: each action is drawn from those that apply to the world.

use std::collections::BTreeSet;

use leasehold_server::lock::Mode;
use rand::{
    Rng as _, SeedableRng as _, distributions::WeightedIndex, rngs::StdRng,
    seq::IteratorRandom as _, seq::SliceRandom as _,
};

use super::{
    LOCK, NODES,
    action::RedlockAction,
    broker::Task,
    calls::AcquirePhase,
    world::{BROKERS, Body, RedlockSize, RedlockWorld},
};
use crate::model::{
    action::{CallArguments, ReleasePart, Target},
    client::{CallState, LeaseState},
    keys::{AttemptKey, CallKey, MessageKey, TaskKey},
    random::{History, Walk, WalkResults},
};

/// Maximum number of calls of a client.
const CALLS_MAX: u8 = 8;
/// Maximum number of attempts of a call.
const ATTEMPTS_MAX: u8 = 4;
/// Maximum number of messages in flight before the oldest are delivered or lost.
const MESSAGES_MAX: usize = 24;
const TTLS_MS: [u64; 3] = [1_000, 1_000, 2_000];
const WAITS_MS: [u64; 4] = [0, 0, 1_500, 4_000];
const TIMES_MS: [u32; 7] = [1, 10, 60, 250, 500, 1_000, 3_000];
/// Times that are short enough for commands in flight.
const SHORT_TIMES_MS: [u32; 5] = [1, 1, 10, 30, 125];

/// Kinds of actions, and how often each is drawn. Each history has other multiples of these weights.
const WEIGHTS: [(Kind, f64); 14] = [
    (Kind::Deliver, 90.0),
    (Kind::Advance, 6.0),
    (Kind::BrokerTask, 8.0),
    (Kind::Touch, 2.0),
    (Kind::Acquire, 5.0),
    (Kind::Renew, 4.0),
    (Kind::Stream, 3.0),
    (Kind::Release, 5.0),
    (Kind::Retry, 7.0),
    (Kind::Abandon, 2.0),
    (Kind::Kill, 0.5),
    (Kind::Save, 1.0),
    (Kind::Restart, 3.0),
    (Kind::Verify, 3.0),
];
/// Kinds of actions after a restart, so that calls meet what the node has lost.
const AFTER_RESTART: [Kind; 9] = [
    Kind::Deliver,
    Kind::Deliver,
    Kind::Deliver,
    Kind::Deliver,
    Kind::BrokerTask,
    Kind::Verify,
    Kind::Verify,
    Kind::Acquire,
    Kind::Retry,
];
/// Number of actions that count as those after a restart.
const AFTER_RESTART_STEPS: u8 = 30;
/// Multiples of a weight.
const MULTIPLES: [f64; 4] = [0.2, 1.0, 1.0, 4.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Deliver,
    Advance,
    BrokerTask,
    Touch,
    Acquire,
    Renew,
    Stream,
    Release,
    Retry,
    Abandon,
    Kill,
    Save,
    Restart,
    Verify,
}

/// Generator of the actions of one history.
pub struct RedlockWalk {
    rng: StdRng,
    history: History<RedlockWorld>,
    /// Probability of faults of the network.
    faults: f64,
    /// Probability that the messages of one task are delivered one after the other.
    focus: f64,
    /// Task of the last message.
    focused: Option<TaskKey>,
    /// True if brokers give up commands at once that are in flight.
    gives_up_early: bool,
    /// Messages that arrive late.
    late: BTreeSet<MessageKey>,
    /// The repeat of the last call at the other broker, if its client hedges it.
    hedge: Option<RedlockAction>,
    /// Number of actions left that count as those after a restart.
    after_restart_left: u8,
    weights: WeightedIndex<f64>,
    /// Numbers of the next operations of the clients.
    operations: Vec<u8>,
}

/// Returns the size of the world of a seed.
fn world_size(seed: u64, has_journal: bool) -> RedlockSize {
    let mut rng = StdRng::seed_from_u64(seed);
    let skew = [0, 20, 300, 1_000][rng.gen_range(0..4)];
    RedlockSize {
        clients: rng.gen_range(2..=3),
        clock_offsets: [(); NODES].map(|()| rng.gen_range(-skew..=skew)),
        has_journal,
    }
}

impl Walk for RedlockWalk {
    type World = RedlockWorld;
    const STEPS: usize = 300;

    fn new(seed: u64, has_journal: bool) -> Self {
        let size = world_size(seed, has_journal);
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(1 << 40));
        let loses_data = rng.gen_bool(0.5);
        let weights = WEIGHTS.map(|(kind, weight)| {
            let is_off = kind == Kind::Restart && !loses_data;
            let multiple = MULTIPLES.choose(&mut rng).expect("some");
            if is_off { 0.0 } else { weight * multiple }
        });
        Self {
            faults: [0.02, 0.1, 0.3][rng.gen_range(0..3)],
            focus: [0.0, 0.5, 0.9][rng.gen_range(0..3)],
            focused: None,
            gives_up_early: rng.gen_bool(0.3),
            late: BTreeSet::new(),
            hedge: None,
            after_restart_left: 0,
            weights: WeightedIndex::new(weights).expect("positive weights"),
            operations: vec![0; usize::from(size.clients)],
            history: History {
                world: RedlockWorld::new(size),
                actions: Vec::new(),
            },
            rng,
        }
    }

    fn new_world(seed: u64) -> RedlockWorld {
        RedlockWorld::new(world_size(seed, false))
    }

    fn history(&mut self) -> &mut History<RedlockWorld> {
        &mut self.history
    }

    fn into_results(self) -> WalkResults {
        let RedlockWorld {
            nodes,
            observations,
            ..
        } = self.history.world;
        let journals = nodes.into_iter().filter_map(|node| node.store.journal);
        WalkResults {
            counts: observations.counts,
            journals: journals.collect(),
        }
    }

    fn draw(&mut self) -> RedlockAction {
        if let Some(hedge) = self.hedge.take() {
            return hedge;
        }
        let is_full = self.history.world.messages.len() >= MESSAGES_MAX;
        let kind = self.kind();
        let action = match kind {
            _ if is_full && self.rng.gen_bool(0.9) => self.deliver(),
            Kind::Deliver => self.deliver(),
            Kind::Advance => Some(RedlockAction::Advance(self.time_ms())),
            Kind::BrokerTask => self.broker_task(),
            Kind::Touch => Some(RedlockAction::Touch(self.broker())),
            Kind::Acquire => self.acquire(),
            Kind::Renew => self.renew(),
            Kind::Stream => self.stream(),
            Kind::Release => self.release(),
            Kind::Retry => self.retry(),
            Kind::Abandon => self.abandon(),
            Kind::Kill => Some(RedlockAction::Kill(self.broker())),
            Kind::Save => Some(RedlockAction::Save(self.node())),
            Kind::Restart => self.restart(),
            Kind::Verify => Some(RedlockAction::Verify {
                broker: self.broker(),
                node: self.node(),
            }),
        };
        action
            .or_else(|| self.deliver())
            .unwrap_or(RedlockAction::Advance(10))
    }
}

impl RedlockWalk {
    fn kind(&mut self) -> Kind {
        self.after_restart_left = self.after_restart_left.saturating_sub(1);
        if self.after_restart_left > 0 && self.rng.gen_bool(0.6) {
            return *AFTER_RESTART.choose(&mut self.rng).expect("some");
        }
        WEIGHTS[self.rng.sample(&self.weights)].0
    }

    /// Returns a restart of a node, mostly with a snapshot that has other holders.
    fn restart(&mut self) -> Option<RedlockAction> {
        let (node, saves_ago) = (self.node(), self.rng.gen_range(0..3));
        let store = &self.history.world.nodes[usize::from(node)].store;
        let has_other_holders = store.has_other_holders(saves_ago);
        if !has_other_holders && self.rng.gen_bool(0.8) {
            return None;
        }
        self.after_restart_left = AFTER_RESTART_STEPS;
        Some(RedlockAction::Restart { node, saves_ago })
    }

    fn deliver(&mut self) -> Option<RedlockAction> {
        let messages = &self.history.world.messages;
        let is_late = |message: &&MessageKey| self.late.contains(message);
        let others = messages.keys().filter(|message| !is_late(message));
        let focused = self.focused.filter(|_| self.rng.gen_bool(self.focus));
        let same_task = others
            .clone()
            .filter(|message| Some(message.task) == focused);
        let message = match self.rng.gen_bool(0.1) {
            true => messages.keys().filter(is_late).choose(&mut self.rng),
            false => same_task
                .choose(&mut self.rng)
                .or_else(|| others.choose(&mut self.rng)),
        };
        let message = *message.or_else(|| messages.keys().next())?;
        self.focused = Some(message.task);
        if !self.rng.gen_bool(self.faults) {
            return Some(RedlockAction::Deliver(message));
        }
        let body = &messages[&message];
        match (self.rng.gen_range(0..4), body) {
            (0, _) => Some(RedlockAction::Drop(message)),
            (1 | 2, _) => {
                self.late.insert(message);
                None
            }
            (_, Body::Command { .. } | Body::Reply { .. }) => Some(RedlockAction::Repeat(message)),
            (_, Body::ToBroker(..) | Body::ToClient(_)) => Some(RedlockAction::Deliver(message)),
        }
    }

    /// Returns a time to let pass. It is mostly short while commands are in flight, because a quorum
    /// must answer within a quarter of the validity.
    fn time_ms(&mut self) -> u32 {
        let messages = self.history.world.messages.iter();
        let mut messages = messages.filter(|(message, _)| !self.late.contains(message));
        let is_busy = messages.any(|(_, body)| matches!(body, Body::Command { .. }));
        let times = match is_busy && self.rng.gen_bool(0.9) {
            true => &SHORT_TIMES_MS[..],
            false => &TIMES_MS[..],
        };
        *times.choose(&mut self.rng).expect("some")
    }

    /// Returns a step that a broker takes after a time.
    fn broker_task(&mut self) -> Option<RedlockAction> {
        let world = &self.history.world;
        let now_us = world.now_us;
        let mut steps: Vec<_> = world.rollbacks().map(RedlockAction::Cancel).collect();
        for broker in &world.brokers {
            for (attempt, waiter) in &broker.waiters {
                steps.push(match waiter.election {
                    Some(_) => RedlockAction::EndRound(TaskKey::Election(*attempt)),
                    None => RedlockAction::Try(*attempt),
                });
            }
            for (key, task) in &broker.tasks {
                let (TaskKey::Acquire(attempt), Task::Acquire(task)) = (key, task) else {
                    continue;
                };
                match task.phase {
                    AcquirePhase::Electing(_) | AcquirePhase::Asking(_) => {
                        steps.push(RedlockAction::EndRound(*key));
                    }
                    AcquirePhase::Waiting if now_us >= task.deadline_us => {
                        steps.push(RedlockAction::TimeOut(*attempt));
                    }
                    AcquirePhase::Waiting
                    | AcquirePhase::Joining
                    | AcquirePhase::Claiming { .. }
                    | AcquirePhase::Leaving(_) => {}
                }
            }
            let in_flight = |command: &MessageKey| {
                world.messages.iter().any(|(message, body)| {
                    message.task == command.task
                        && match body {
                            Body::Command { .. } => message.number == command.number,
                            Body::Reply {
                                command: number, ..
                            } => *number == command.number,
                            Body::ToBroker(..) | Body::ToClient(_) => false,
                        }
                })
            };
            let mut lost = broker.outstanding();
            let is_late = |command: &MessageKey| self.gives_up_early || self.late.contains(command);
            lost.retain(|command| !in_flight(command) || is_late(command));
            steps.extend(lost.into_iter().map(RedlockAction::GiveUp));
        }
        steps.into_iter().choose(&mut self.rng)
    }

    fn acquire(&mut self) -> Option<RedlockAction> {
        let client = self.client();
        let known = &self.history.world.clients[usize::from(client)];
        let number = u8::try_from(known.calls.len()).ok()?;
        let stream = known.stream;
        if number >= CALLS_MAX {
            return None;
        }
        let under = match self.rng.gen_bool(0.4) {
            true => self.held_lease(client),
            false => None,
        };
        let known = &self.history.world.clients[usize::from(client)];
        let is_on_stream = match under {
            Some(lease) => known.leases[&lease].stream.is_some(),
            None => stream.is_some() && self.rng.gen_bool(0.6),
        };
        let broker = self.broker();
        let call = CallKey { client, number };
        self.hedge = self.rng.gen_bool(0.2).then_some(RedlockAction::Retry {
            attempt: AttemptKey { call, number: 1 },
            broker: (broker + 1) % BROKERS,
        });
        let arguments = CallArguments {
            call,
            broker,
            targets: vec![Target {
                lock: LOCK,
                mode: Mode::Exclusive,
            }],
            under,
            ttl_ms: *TTLS_MS.choose(&mut self.rng)?,
            wait_ms: *WAITS_MS.choose(&mut self.rng)?,
            lock_delay_ms: [0, 0, 0, 700][self.rng.gen_range(0..4)],
            at_least_ms: match under {
                None => [0, 0, 0, 0, 0, 0, 1_500, 3_000][self.rng.gen_range(0..8)],
                Some(_) => 0,
            },
            is_on_stream,
            disconnect_grace_ms: None,
            max_hold_ms: None,
        };
        Some(RedlockAction::Acquire(Box::new(arguments)))
    }

    fn retry(&mut self) -> Option<RedlockAction> {
        let is_open_only = self.rng.gen_bool(0.5);
        let (call, number) = self.call(|state| !is_open_only || state == CallState::Open)?;
        if number >= ATTEMPTS_MAX {
            return None;
        }
        Some(RedlockAction::Retry {
            attempt: AttemptKey { call, number },
            broker: self.broker(),
        })
    }

    fn abandon(&mut self) -> Option<RedlockAction> {
        let (call, attempts) = self.call(|state| state == CallState::Open)?;
        if attempts == 0 {
            return None;
        }
        let number = self.rng.gen_range(0..attempts);
        Some(RedlockAction::Abandon {
            attempt: AttemptKey { call, number },
            operation: self.operation(call.client),
        })
    }

    /// Returns a call in a state, and the number of its attempts.
    fn call(&mut self, is_meant: impl Fn(CallState) -> bool) -> Option<(CallKey, u8)> {
        let client = self.client();
        let calls = &self.history.world.clients[usize::from(client)].calls;
        let calls = calls.iter().filter(|(_, call)| is_meant(call.state));
        let (number, call) = calls.choose(&mut self.rng)?;
        let key = CallKey {
            client,
            number: *number,
        };
        Some((key, u8::try_from(call.attempts.len()).ok()?))
    }

    fn stream(&mut self) -> Option<RedlockAction> {
        let client = self.client();
        let broker = self.broker();
        let has_stream = self.history.world.clients[usize::from(client)]
            .stream
            .is_some();
        Some(match self.rng.gen_range(0..10) {
            _ if !has_stream => RedlockAction::Open { client, broker },
            0 => RedlockAction::Open { client, broker },
            1..6 => RedlockAction::Attach {
                client,
                operation: self.operation(client),
                lease: self.held_lease(client)?,
            },
            _ => RedlockAction::Heartbeat(client),
        })
    }

    fn renew(&mut self) -> Option<RedlockAction> {
        let client = self.client();
        Some(RedlockAction::Renew {
            client,
            lease: self.held_lease(client)?,
            operation: self.operation(client),
            broker: self.broker(),
        })
    }

    fn release(&mut self) -> Option<RedlockAction> {
        let client = self.client();
        let key = self.held_lease(client)?;
        let lease = &self.history.world.clients[usize::from(client)].leases[&key];
        let entries = lease.locks.get(&LOCK)?.entries.keys();
        let entry = *entries.choose(&mut self.rng)?;
        let part = match self.rng.gen_bool(0.5) {
            true => ReleasePart::All,
            false => ReleasePart::Entry(LOCK, entry),
        };
        Some(RedlockAction::Release {
            client,
            lease: key,
            part,
            operation: self.operation(client),
            broker: self.broker(),
        })
    }

    fn held_lease(&mut self, client: u8) -> Option<CallKey> {
        let leases = self.history.world.clients[usize::from(client)]
            .leases
            .iter();
        let held = leases.filter(|(_, lease)| lease.state == LeaseState::Held);
        held.map(|(key, _)| *key).choose(&mut self.rng)
    }

    fn client(&mut self) -> u8 {
        let clients = u8::try_from(self.operations.len()).expect("few");
        self.rng.gen_range(0..clients)
    }

    fn broker(&mut self) -> u8 {
        self.rng.gen_range(0..BROKERS)
    }

    fn node(&mut self) -> u8 {
        self.rng.gen_range(0..u8::try_from(NODES).expect("few"))
    }

    /// Returns the number of a new operation of the client.
    fn operation(&mut self, client: u8) -> u8 {
        let next = &mut self.operations[usize::from(client)];
        *next = next.wrapping_add(1);
        *next
    }
}
