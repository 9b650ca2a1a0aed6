//! Random histories: each action is drawn from those that apply to the world.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use leasehold_server::{
    lock::{Mode, RevokeMode},
    store::memory::context::Bounds,
};
use rand::{
    Rng as _, SeedableRng as _, distributions::WeightedIndex, rngs::StdRng,
    seq::IteratorRandom as _, seq::SliceRandom as _,
};

use super::{
    ModelWorld,
    action::{Action, CallArguments, ReleasePart, Target},
    broker::{AcquirePhase, Task},
    client::{CallState, LeaseState},
    keys::{AttemptKey, CallKey, LockIndex, MessageKey, TaskKey},
    store::JournalEntry,
    world::{Body, World, WorldSize},
};

/// Bounds of the records, so low that short histories reach them.
pub const LOW_BOUNDS: Bounds = Bounds {
    waiters_max: 3,
    holders_max: 4,
    entries_max: 3,
    attempts_max: 2,
    touch_slots_max: 4,
    expirations_max: 4,
    tombstones_max: 3,
    released_max: 2,
    expired_max: 3,
};
/// Maximum number of calls of a client.
const CALLS_MAX: u8 = 8;
/// Maximum number of attempts of a call.
const ATTEMPTS_MAX: u8 = 4;
/// Maximum number of messages in flight before the oldest are delivered or lost.
const MESSAGES_MAX: usize = 12;
const TTLS_MS: [u64; 3] = [1_000, 1_000, 2_000];
const WAITS_MS: [u64; 4] = [0, 1_500, 4_000, 4_000];
const TIMES_MS: [u32; 8] = [1, 10, 100, 200, 400, 700, 1_000, 3_000];

/// Kinds of actions, and how often each is drawn. Each history has other multiples of these weights:
/// one that does few things often reaches what one that does everything does not (Groce et al.,
/// Swarm Testing, 2012).
const WEIGHTS: [(Kind, f64); 15] = [
    (Kind::Deliver, 45.0),
    (Kind::Advance, 12.0),
    (Kind::Touch, 6.0),
    (Kind::BrokerTask, 6.0),
    (Kind::Acquire, 8.0),
    (Kind::Renew, 3.0),
    (Kind::Stream, 4.0),
    (Kind::Release, 6.0),
    (Kind::Retry, 3.0),
    (Kind::Abandon, 2.0),
    (Kind::Operate, 1.0),
    (Kind::Kill, 1.0),
    (Kind::Save, 1.0),
    (Kind::RollBack, 1.0),
    (Kind::Verify, 2.0),
];
/// Kinds of actions after a loss of data, with which clients meet what came back.
const AFTER_LOSS: [Kind; 8] = [
    Kind::Deliver,
    Kind::Deliver,
    Kind::Deliver,
    Kind::Deliver,
    Kind::BrokerTask,
    Kind::Retry,
    Kind::Acquire,
    Kind::Stream,
];
/// Multiples of a weight.
const MULTIPLES: [f64; 4] = [0.2, 1.0, 1.0, 4.0];

/// A history with a violated property.
#[derive(Debug, Clone)]
pub struct Violation<A = Action> {
    pub actions: Vec<A>,
    /// The violated property, as a sentence.
    pub property: String,
}

impl<A: fmt::Display> fmt::Display for Violation<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for action in &self.actions {
            writeln!(f, "{action}")?;
        }
        write!(f, "violated: {}", self.property)
    }
}

/// A world with the actions that were applied to it.
pub struct History<W: ModelWorld> {
    pub world: W,
    pub actions: Vec<W::Action>,
}

impl<W: ModelWorld> History<W> {
    /// Applies an action.
    ///
    /// # Errors
    /// The history until a property was violated.
    pub fn apply(&mut self, action: W::Action) -> Result<(), Box<Violation<W::Action>>> {
        match self.world.apply(&action) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.actions.push(action);
                Ok(())
            }
            Err(property) => {
                self.actions.push(action);
                Err(Box::new(Violation {
                    actions: std::mem::take(&mut self.actions),
                    property,
                }))
            }
        }
    }
}

/// A generator of random histories of a world.
pub trait Walk: Sized {
    type World: ModelWorld<Action: fmt::Display>;
    /// Number of actions of a history.
    const STEPS: usize;

    /// Creates the generator of a seed. With `has_journal` the world records what its stores execute.
    fn new(seed: u64, has_journal: bool) -> Self;

    /// Returns the world in which the history of a seed begins.
    fn new_world(seed: u64) -> Self::World;

    /// Draws the next action.
    fn draw(&mut self) -> <Self::World as ModelWorld>::Action;

    fn history(&mut self) -> &mut History<Self::World>;

    /// Returns the numbers of the events, and the journal of each store.
    fn into_results(self) -> WalkResults;

    /// Applies the actions of a history.
    ///
    /// # Errors
    /// The history until a property was violated.
    fn run(&mut self) -> Result<(), Box<Violation<<Self::World as ModelWorld>::Action>>> {
        while self.history().actions.len() < Self::STEPS {
            let action = self.draw();
            self.history().apply(action)?;
        }
        Ok(())
    }
}

/// Results of a history without a violation.
pub struct WalkResults {
    /// Numbers of the events.
    pub counts: BTreeMap<&'static str, u64>,
    /// Everything that each store executed, if it was recorded.
    pub journals: Vec<Vec<JournalEntry>>,
}

/// Generator of the actions of one history of [`World`].
pub struct RandomWalk {
    rng: StdRng,
    history: History<World>,
    kinds: Vec<LockKind>,
    /// Probability of faults of the network.
    faults: f64,
    /// Messages that arrive late.
    late: BTreeSet<MessageKey>,
    /// Number of actions in which clients mostly repeat requests, because the store lost data.
    repeats_left: u8,
    weights: WeightedIndex<f64>,
    /// Numbers of the next operations of the clients.
    operations: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Deliver,
    Advance,
    Touch,
    BrokerTask,
    Acquire,
    Renew,
    Stream,
    Release,
    Retry,
    Abandon,
    Operate,
    Kill,
    Save,
    RollBack,
    Verify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockKind {
    Exclusive,
    ReadWrite,
    Semaphore,
}

/// Returns the size of the world of a seed.
fn world_size(seed: u64, has_journal: bool) -> WorldSize {
    let mut rng = StdRng::seed_from_u64(seed);
    WorldSize {
        clients: rng.gen_range(2..=3),
        brokers: 2,
        locks: rng.gen_range(1..=2),
        bounds: LOW_BOUNDS,
        has_journal,
    }
}

impl Walk for RandomWalk {
    type World = World;
    const STEPS: usize = 150;

    fn new(seed: u64, has_journal: bool) -> Self {
        let size = world_size(seed, has_journal);
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(1 << 40));
        let kinds = [
            LockKind::Exclusive,
            LockKind::Exclusive,
            LockKind::ReadWrite,
            LockKind::Semaphore,
        ];
        let kinds = (0..size.locks).map(|_| *kinds.choose(&mut rng).expect("some"));
        let kinds = kinds.collect();
        let loses_data = rng.gen_bool(0.4);
        let weights = WEIGHTS.map(|(kind, weight)| {
            let is_off = kind == Kind::RollBack && !loses_data;
            let multiple = MULTIPLES.choose(&mut rng).expect("some");
            if is_off { 0.0 } else { weight * multiple }
        });
        Self {
            kinds,
            faults: [0.02, 0.1, 0.3][rng.gen_range(0..3)],
            late: BTreeSet::new(),
            repeats_left: 0,
            weights: WeightedIndex::new(weights).expect("positive weights"),
            operations: vec![0; usize::from(size.clients)],
            history: History {
                world: World::new(size),
                actions: Vec::new(),
            },
            rng,
        }
    }

    fn new_world(seed: u64) -> World {
        World::new(world_size(seed, false))
    }

    fn history(&mut self) -> &mut History<World> {
        &mut self.history
    }

    fn into_results(self) -> WalkResults {
        let World {
            store,
            observations,
            ..
        } = self.history.world;
        WalkResults {
            counts: observations.counts,
            journals: store.journal.into_iter().collect(),
        }
    }

    fn draw(&mut self) -> Action {
        let is_full = self.history.world.messages.len() >= MESSAGES_MAX;
        let kind = self.kind();
        let action = match kind {
            _ if is_full => self.deliver(),
            Kind::Deliver => self.deliver(),
            Kind::Advance => Some(Action::Advance(self.time_ms())),
            Kind::Touch => self.touch(),
            Kind::BrokerTask => self.broker_task(),
            Kind::Acquire => self.acquire(),
            Kind::Renew => self.renew(),
            Kind::Stream => self.stream(),
            Kind::Release => self.release(),
            Kind::Retry => self.retry(),
            Kind::Abandon => self.abandon(),
            Kind::Operate => self.operate(),
            Kind::Kill => Some(Action::Kill(self.rng.gen_range(0..2))),
            Kind::Save => Some(Action::Save),
            Kind::RollBack => self.roll_back(),
            Kind::Verify => Some(Action::Verify(self.rng.gen_range(0..2))),
        };
        action
            .or_else(|| self.deliver())
            .unwrap_or(Action::Advance(10))
    }
}

impl RandomWalk {
    fn kind(&mut self) -> Kind {
        self.repeats_left = self.repeats_left.saturating_sub(1);
        if self.repeats_left > 0 && self.rng.gen_bool(0.7) {
            return *AFTER_LOSS.choose(&mut self.rng).expect("some");
        }
        WEIGHTS[self.rng.sample(&self.weights)].0
    }

    /// Returns a fall-back to a snapshot, mostly to one with other holders.
    fn roll_back(&mut self) -> Option<Action> {
        let saves_ago = self.rng.gen_range(0..3);
        let has_other_holders = self.history.world.store.has_other_holders(saves_ago);
        if !has_other_holders && self.rng.gen_bool(0.8) {
            return None;
        }
        self.repeats_left = 20;
        Some(match self.rng.gen_bool(0.3) {
            true => Action::Promote { saves_ago },
            false => Action::RollBack { saves_ago },
        })
    }

    fn deliver(&mut self) -> Option<Action> {
        let messages = &self.history.world.messages;
        let late = messages
            .keys()
            .filter(|message| self.late.contains(message));
        let others = messages
            .keys()
            .filter(|message| !self.late.contains(message));
        let message = match self.rng.gen_bool(0.1) {
            true => late.choose(&mut self.rng),
            false => others.choose(&mut self.rng),
        };
        let message = *message.or_else(|| messages.keys().next())?;
        if !self.rng.gen_bool(self.faults) {
            return Some(Action::Deliver(message));
        }
        let body = &self.history.world.messages[&message];
        match (self.rng.gen_range(0..4), body) {
            (0, _) => Some(Action::Drop(message)),
            (1, Body::Command(..) | Body::Reply(..)) => Some(Action::GiveUp(message.task)),
            (2, _) => {
                self.late.insert(message);
                None
            }
            _ => Some(Action::Repeat(message)),
        }
    }

    /// Returns a time to let pass. It is mostly short while commands are in flight, because the store
    /// rejects late commands.
    fn time_ms(&mut self) -> u32 {
        let is_command = |body: &Body| matches!(body, Body::Command(..));
        let times =
            match self.history.world.messages.values().any(is_command) && self.rng.gen_bool(0.8) {
                true => &TIMES_MS[..4],
                false => &TIMES_MS[..],
            };
        *times.choose(&mut self.rng).expect("some")
    }

    fn touch(&mut self) -> Option<Action> {
        Some(Action::Touch {
            broker: self.rng.gen_range(0..2),
            lock: self.lock(),
        })
    }

    /// Returns a step that a broker takes after a time: a cancellation, the end of a wait, or the
    /// end of the wait for a reply that was lost.
    fn broker_task(&mut self) -> Option<Action> {
        let now_us = self.history.world.now_us;
        let messages = &self.history.world.messages;
        let in_flight = |key: TaskKey| messages.keys().any(|message| message.task == key);
        let tasks = self
            .history
            .world
            .brokers
            .iter()
            .flat_map(|broker| &broker.tasks);
        let steps = tasks.filter_map(|(&key, task)| match task {
            Task::Rollback(task) if task.in_flight.is_none() => {
                (now_us >= task.not_before_us).then_some(Action::Cancel(key))
            }
            Task::Acquire(task) if task.phase == AcquirePhase::Waiting => {
                (now_us >= task.deadline_us).then_some(Action::TimeOut(key))
            }
            Task::Acquire(_) | Task::Operation(_) | Task::Rollback(_) | Task::Touch(_) => {
                (!in_flight(key)).then_some(Action::GiveUp(key))
            }
        });
        steps.choose(&mut self.rng)
    }

    fn acquire(&mut self) -> Option<Action> {
        let client = self.client();
        let number =
            u8::try_from(self.history.world.clients[usize::from(client)].calls.len()).ok()?;
        if number >= CALLS_MAX {
            return None;
        }
        let under = match self.rng.gen_bool(0.4) {
            true => self.held_lease(client),
            false => None,
        };
        let known = &self.history.world.clients[usize::from(client)];
        let released = under.and_then(|lease| known.leases[&lease].released.keys().next());
        let released = released.filter(|_| self.rng.gen_bool(0.5)).copied();
        let locks = match under {
            None if self.kinds.len() > 1 && self.rng.gen_bool(0.3) => vec![0, 1],
            Some(_) | None => vec![released.unwrap_or_else(|| self.lock())],
        };
        let targets = locks.into_iter().map(|lock| Target {
            lock,
            mode: self.mode(lock),
        });
        let targets = targets.collect();
        let known = &self.history.world.clients[usize::from(client)];
        let is_on_stream = match under {
            Some(lease) => known.leases[&lease].stream.is_some(),
            None => known.stream.is_some() && self.rng.gen_bool(0.6),
        };
        let arguments = CallArguments {
            call: CallKey { client, number },
            broker: self.rng.gen_range(0..2),
            targets,
            under,
            ttl_ms: *TTLS_MS.choose(&mut self.rng)?,
            wait_ms: *WAITS_MS.choose(&mut self.rng)?,
            lock_delay_ms: [0, 0, 0, 700][self.rng.gen_range(0..4)],
            at_least_ms: match under {
                None => [0, 0, 0, 0, 0, 0, 1_500, 3_000][self.rng.gen_range(0..8)],
                Some(_) => 0,
            },
            is_on_stream,
            disconnect_grace_ms: [None, None, Some(0), Some(400)][self.rng.gen_range(0..4)]
                .filter(|_| is_on_stream),
            max_hold_ms: [None, None, None, None, Some(2_500)][self.rng.gen_range(0..5)],
        };
        Some(Action::Acquire(Box::new(arguments)))
    }

    fn mode(&mut self, lock: LockIndex) -> Mode {
        let is_light = self.rng.gen_bool(0.6);
        match (self.kinds[usize::from(lock)], is_light) {
            (LockKind::Exclusive, _) | (LockKind::ReadWrite, false) => Mode::Exclusive,
            (LockKind::ReadWrite, true) => Mode::Shared,
            (LockKind::Semaphore, _) => Mode::Semaphore {
                permits: if is_light { 1 } else { 2 },
                limit: 2,
            },
        }
    }

    fn retry(&mut self) -> Option<Action> {
        let is_open_only = self.rng.gen_bool(0.5);
        let (call, number) = self.call(|state| !is_open_only || state == CallState::Open)?;
        if number >= ATTEMPTS_MAX {
            return None;
        }
        Some(Action::Retry {
            attempt: AttemptKey { call, number },
            broker: self.rng.gen_range(0..2),
        })
    }

    fn abandon(&mut self) -> Option<Action> {
        let (call, attempts) = self.call(|state| state == CallState::Open)?;
        let number = self.rng.gen_range(0..attempts);
        Some(Action::Abandon {
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

    fn stream(&mut self) -> Option<Action> {
        let client = self.client();
        let broker = self.rng.gen_range(0..2);
        if self.history.world.clients[usize::from(client)]
            .stream
            .is_none()
        {
            return Some(Action::Open { client, broker });
        }
        Some(match self.rng.gen_range(0..10) {
            0 => Action::Open { client, broker },
            1 => Action::Break(client),
            2..5 => Action::Attach {
                client,
                lease: self.held_lease(client)?,
            },
            _ => Action::Heartbeat(client),
        })
    }

    fn renew(&mut self) -> Option<Action> {
        let client = self.client();
        Some(Action::Renew {
            client,
            lease: self.held_lease(client)?,
            operation: self.operation(client),
            broker: self.rng.gen_range(0..2),
        })
    }

    fn release(&mut self) -> Option<Action> {
        let client = self.client();
        let key = self.held_lease(client)?;
        let lease = &self.history.world.clients[usize::from(client)].leases[&key];
        let (lock, held) = lease.locks.iter().choose(&mut self.rng)?;
        let entry = *held.entries.keys().choose(&mut self.rng)?;
        let part = [
            ReleasePart::All,
            ReleasePart::Lock(*lock),
            ReleasePart::Entry(*lock, entry),
        ][self.rng.gen_range(0..3)];
        Some(Action::Release {
            client,
            lease: key,
            part,
            operation: self.operation(client),
            broker: self.rng.gen_range(0..2),
        })
    }

    fn operate(&mut self) -> Option<Action> {
        if self.rng.gen_bool(0.4) {
            let client = self.client();
            return Some(Action::Revoke {
                lock: self.lock(),
                lease: self.held_lease(client)?,
                mode: [RevokeMode::Graceful, RevokeMode::Immediate][self.rng.gen_range(0..2)],
            });
        }
        if self.rng.gen_bool(0.5) {
            let lock = self.lock();
            return Some(match self.rng.gen_bool(0.6) {
                true => Action::Close {
                    lock,
                    for_ms: [300, 1_000, 3_000][self.rng.gen_range(0..3)],
                },
                false => Action::OpenLock { lock },
            });
        }
        let semaphores = (0_u8..).zip(&self.kinds);
        let semaphores = semaphores.filter(|(_, kind)| **kind == LockKind::Semaphore);
        let (lock, _) = semaphores.choose(&mut self.rng)?;
        Some(Action::SetLimit {
            lock,
            limit: [None, Some(1), Some(2), Some(3)][self.rng.gen_range(0..4)],
        })
    }

    fn held_lease(&mut self, client: u8) -> Option<CallKey> {
        let leases = &self.history.world.clients[usize::from(client)].leases;
        let held = leases
            .iter()
            .filter(|(_, lease)| lease.state == LeaseState::Held);
        held.map(|(key, _)| *key).choose(&mut self.rng)
    }

    fn client(&mut self) -> u8 {
        self.rng
            .gen_range(0..u8::try_from(self.operations.len()).expect("few"))
    }

    fn lock(&mut self) -> LockIndex {
        self.rng
            .gen_range(0..u8::try_from(self.kinds.len()).expect("few"))
    }

    /// Returns the number of a new operation of the client.
    fn operation(&mut self, client: u8) -> u8 {
        let next = &mut self.operations[usize::from(client)];
        *next = next.wrapping_add(1);
        *next
    }
}
