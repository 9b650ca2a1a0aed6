//! Random histories of the model: each action is drawn from those that may apply.

use rand::{
    Rng as _, SeedableRng as _, distributions::Distribution as _, distributions::WeightedIndex,
    rngs::StdRng, seq::IteratorRandom as _, seq::SliceRandom as _,
};

use super::{
    BROKERS, Deployment, RecoveryAction, RecoveryWorld, Rule, SPAN_CONFIGURED, SPAN_MIN, Source,
};
use crate::model::random::{History, Walk, WalkResults};

const SPANS: [u64; 5] = [2, SPAN_MIN, 7, 15, SPAN_CONFIGURED];
const OFFSETS: [i64; 6] = [0, 0, 1, -1, 25, -25];
const AGES: [u64; 6] = [0, 0, 1, 3, 9, 30];
/// Multiples of a weight.
const MULTIPLES: [f64; 4] = [0.2, 1.0, 1.0, 4.0];
/// Kinds of actions, and how often each is drawn. Each history has other multiples of these weights.
const WEIGHTS: [(Kind, f64); 11] = [
    (Kind::Tick, 30.0),
    (Kind::Replace, 0.5),
    (Kind::Crash, 0.1),
    (Kind::Connect, 6.0),
    (Kind::Restart, 0.2),
    (Kind::Query, 16.0),
    (Kind::Lower, 1.0),
    (Kind::Acquire, 10.0),
    (Kind::Renew, 10.0),
    (Kind::Release, 3.0),
    (Kind::Receive, 3.0),
];
/// Kinds of actions that belong to an early end of the time without grants.
const EARLY_END_WEIGHTS: [(Kind, f64); 3] = [
    (Kind::Register, 1.5),
    (Kind::Acknowledge, 20.0),
    (Kind::End, 10.0),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tick,
    Replace,
    Crash,
    Connect,
    Restart,
    Query,
    Lower,
    Acquire,
    Renew,
    Release,
    Receive,
    Register,
    Acknowledge,
    End,
}

/// Generator of the actions of one history.
pub struct RecoveryWalk {
    rng: StdRng,
    history: History<RecoveryWorld>,
    kinds: Vec<Kind>,
    weights: WeightedIndex<f64>,
    /// Probability that a query is executed and its reply received at once.
    quick: f64,
    /// Probability that a broker wants a larger span.
    wants: f64,
    /// Actions that follow at once.
    next: Vec<RecoveryAction>,
}

impl RecoveryWalk {
    /// Returns the deployment of a seed.
    #[must_use]
    pub fn deployment(seed: u64) -> Deployment {
        match seed % 3 {
            0 => Deployment::Single,
            _ => Deployment::Replicated,
        }
    }

    /// Creates the generator of a seed, for a world without the rule `removed`.
    #[must_use]
    pub fn without(seed: u64, removed: Option<Rule>) -> Self {
        Self::in_world(seed, RecoveryWorld::new(Self::deployment(seed), removed))
    }

    /// Creates the same for a world in which the time without grants may end early.
    #[must_use]
    pub fn ending_early(seed: u64, removed: Option<Rule>) -> Self {
        let deployment = Self::deployment(seed);
        Self::in_world(seed, RecoveryWorld::ending_early(deployment, removed))
    }

    fn in_world(seed: u64, world: RecoveryWorld) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut kinds = WEIGHTS.to_vec();
        if world.ends_early() {
            kinds.extend(EARLY_END_WEIGHTS);
        }
        for (_, weight) in &mut kinds {
            *weight *= MULTIPLES.choose(&mut rng).expect("some");
        }
        let weights = kinds.iter().map(|(_, weight)| *weight);
        Self {
            quick: [0.5, 0.9, 1.0][rng.gen_range(0..3)],
            wants: [0.05, 0.3][rng.gen_range(0..2)],
            weights: WeightedIndex::new(weights).expect("positive weights"),
            kinds: kinds.into_iter().map(|(kind, _)| kind).collect(),
            history: History {
                world,
                actions: Vec::new(),
            },
            next: Vec::new(),
            rng,
        }
    }

    /// Draws which brokers connect to a new process at once, in their order.
    fn connect_next(&mut self) {
        let ends_early = self.history.world.ends_early();
        let share = if ends_early { 0.8 } else { 0.5 };
        let mut brokers: Vec<_> = (0..BROKERS).filter(|_| self.rng.gen_bool(share)).collect();
        brokers.shuffle(&mut self.rng);
        if let Some(broker) = brokers.first().filter(|_| ends_early) {
            self.next.push(RecoveryAction::End { broker: *broker });
        }
        let connects = brokers
            .into_iter()
            .map(|broker| RecoveryAction::Connect { broker });
        self.next.extend(connects);
    }

    fn span(&mut self) -> u64 {
        *SPANS.choose(&mut self.rng).expect("some")
    }

    /// Draws a new process, to which most brokers connect soon.
    fn replace(&mut self) -> RecoveryAction {
        let world = &self.history.world;
        let (count, is_single) = (
            world.process_count(),
            world.deployment() == Deployment::Single,
        );
        let back = if is_single {
            0
        } else {
            self.rng.gen_range(0..3)
        };
        let from = match self.rng.gen_bool(0.05) {
            true => Source::Empty,
            false => Source::Copy {
                process: (count - 1).saturating_sub(back),
                age: *AGES.choose(&mut self.rng).expect("some"),
            },
        };
        let offset = match is_single {
            true => 0,
            false if world.ends_early() && self.rng.gen_bool(0.6) => 0,
            false => *OFFSETS.choose(&mut self.rng).expect("some"),
        };
        self.connect_next();
        if is_single {
            self.next.push(RecoveryAction::Start { from, offset });
            for _ in 0..self.rng.gen_range(0..3) {
                self.next.push(RecoveryAction::Tick);
            }
            return RecoveryAction::Crash;
        }
        RecoveryAction::Start { from, offset }
    }

    fn draw_kind(&mut self, kind: Kind) -> RecoveryAction {
        let broker = self.rng.gen_range(0..BROKERS);
        match kind {
            Kind::Tick => RecoveryAction::Tick,
            Kind::Replace => self.replace(),
            Kind::Crash => RecoveryAction::Crash,
            Kind::Connect => RecoveryAction::Connect { broker },
            Kind::Restart => RecoveryAction::Restart { broker },
            Kind::Query => {
                let wanted = match self.rng.gen_bool(self.wants) {
                    true => self.span(),
                    false => 0,
                };
                if self.rng.gen_bool(self.quick) {
                    self.next.push(RecoveryAction::Receive { broker });
                    self.next.push(RecoveryAction::Execute { broker, wanted });
                }
                RecoveryAction::Query { broker }
            }
            Kind::Receive => match self.rng.r#gen() {
                true => RecoveryAction::Receive { broker },
                false => RecoveryAction::Execute { broker, wanted: 0 },
            },
            Kind::Register => RecoveryAction::Register { broker },
            Kind::Acknowledge => RecoveryAction::Acknowledge { broker },
            Kind::End => RecoveryAction::End { broker },
            Kind::Lower => RecoveryAction::Lower {
                broker,
                to: self.span(),
            },
            Kind::Acquire => RecoveryAction::Acquire {
                broker,
                span: self.span(),
            },
            Kind::Renew | Kind::Release => {
                let lease = self.history.world.leases().choose(&mut self.rng);
                match (lease, kind) {
                    (None, _) => RecoveryAction::Tick,
                    (Some(lease), Kind::Renew) => RecoveryAction::Renew {
                        broker,
                        lease,
                        span: self.span(),
                    },
                    (Some(lease), _) => RecoveryAction::Release { broker, lease },
                }
            }
        }
    }
}

impl Walk for RecoveryWalk {
    type World = RecoveryWorld;
    const STEPS: usize = 400;

    fn new(seed: u64, _has_journal: bool) -> Self {
        Self::without(seed, None)
    }

    fn new_world(seed: u64) -> RecoveryWorld {
        RecoveryWorld::new(Self::deployment(seed), None)
    }

    fn draw(&mut self) -> RecoveryAction {
        if let Some(action) = self.next.pop() {
            return action;
        }
        let kind = self.kinds[self.weights.sample(&mut self.rng)];
        self.draw_kind(kind)
    }

    fn history(&mut self) -> &mut History<RecoveryWorld> {
        &mut self.history
    }

    fn into_results(self) -> WalkResults {
        WalkResults {
            counts: self.history.world.counts,
            journals: Vec::new(),
        }
    }
}
