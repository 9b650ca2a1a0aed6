//! Plans of simulated runs.

use leasehold_server::lock::{Mode, SPAN_MIN_MS, span_ms};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

/// Number of locks. The last one is a semaphore.
pub const LOCKS: usize = 4;
/// Limit of the semaphore, unless an operator sets another one.
pub const PERMITS: u32 = 3;
/// Longest ttl of a lease.
pub const TTL_MAX_MS: u64 = 5_000;
/// Longest ttl of the leases of a plan with promotions.
pub const LONG_TTL_MAX_MS: u64 = 40_000;
/// Longest lock delay.
pub const LOCK_DELAY_MAX_MS: u64 = 500;
/// Largest age of the data of a server that is promoted.
pub const ROLL_BACK_MAX_MS: u64 = 3_000;
/// Longest closure by an operator.
const CLOSURE_MAX_MS: u64 = 5_000;

/// Actions of the clients and faults of a run. The delays and losses of messages follow from the
/// seed.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub duration_ms: u64,
    pub brokers: usize,
    /// Time by which the clock of the store advances in a second, in microseconds. Within a fifth
    /// of a second, and so are the clocks of clients compared with it (A2).
    pub store_second_us: u64,
    /// The limit of spans at the beginning. `None` if the store has none.
    pub span_limit_ms: Option<u64>,
    pub clients: Vec<ClientPlan>,
    pub faults: Vec<Planned<FaultPlan>>,
}

/// Kind of history that a plan makes more frequent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Emphasis {
    None,
    /// Returns of the store to older data, with clients that repeat old calls.
    DataLoss,
    /// Promotions of servers with older data and other clocks, with leases that a limit of spans
    /// cuts.
    Promotions,
}

/// Actions that only some plans have, because their effects excuse much.
#[derive(Debug, Clone, Copy)]
struct Features {
    emphasis: Emphasis,
    /// Operators set limits and revoke leases.
    has_operator: bool,
    /// Leases have `at_least`, and operators close and open locks.
    has_closures: bool,
}

impl Features {
    const fn ttl_max_ms(self) -> u64 {
        match self.emphasis {
            Emphasis::None | Emphasis::DataLoss => TTL_MAX_MS,
            Emphasis::Promotions => LONG_TTL_MAX_MS,
        }
    }
}

/// Something that happens at a time.
#[derive(Debug, Clone, Copy)]
pub struct Planned<T> {
    pub at_ms: u64,
    pub what: T,
}

/// A client.
#[derive(Debug, Clone)]
pub struct ClientPlan {
    pub name: String,
    /// True if the client uses lease streams.
    pub is_streaming: bool,
    /// Time that passes while the clock of the client advances by a second, in milliseconds.
    pub second_ms: u64,
    /// True if the client presents a lease as it was received, with locks that it has released.
    pub presents_released: bool,
    pub actions: Vec<Planned<Action>>,
}

/// An action of a client. Indexes of leases and calls select one of those that the client has at
/// that time; without any, nothing is done.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    Acquire(AcquirePlan),
    /// Adds a lock to a lease, or enters a lock again.
    Add {
        lease: usize,
        target: TargetPlan,
        wait_ms: u64,
    },
    Release {
        lease: usize,
        part: Part,
    },
    /// Cancels a pending call.
    Cancel {
        call: usize,
    },
    /// Sends an earlier call again, or one that was cancelled.
    Repeat {
        call: usize,
        is_cancelled: bool,
    },
    /// Closes the stream and moves to the next broker.
    Move,
    /// Delays all messages of the client's stream.
    Silence {
        for_ms: u64,
    },
    /// Crashes, and starts without any lease.
    Crash,
    /// Sets the limit of the semaphore.
    SetLimit {
        limit: Option<u32>,
    },
    /// Revokes a lease of any client.
    Revoke {
        lease: usize,
        unsafe_now: bool,
    },
    /// Closes a lock.
    Close {
        lock: usize,
        for_ms: u64,
    },
    /// Opens a lock.
    Open {
        lock: usize,
    },
}

/// An acquire.
#[derive(Debug, Clone, Copy)]
pub struct AcquirePlan {
    pub targets: [Option<TargetPlan>; 2],
    pub ttl_ms: u64,
    pub wait_ms: u64,
    /// Time after which the client releases the lease.
    pub hold_ms: u64,
    /// False if the client releases the lease only after twice its ttl, and does not renew it in
    /// unary calls.
    pub is_released: bool,
    pub max_hold_ms: Option<u64>,
    pub lock_delay_ms: u64,
    pub at_least_ms: u64,
    pub disconnect_grace_ms: Option<u64>,
    /// Time after which a unary call is sent to a second broker as well.
    pub hedge_after_ms: Option<u64>,
    /// Time after which the call is cancelled, unless it was answered.
    pub cancel_after_ms: Option<u64>,
}

/// A lock of a call.
#[derive(Debug, Clone, Copy)]
pub struct TargetPlan {
    pub lock: usize,
    pub mode: Mode,
}

/// Part of a lease to release.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    Lease,
    Lock(usize),
    Entry(usize),
}

/// A fault of the store or of a broker.
#[derive(Debug, Clone, Copy)]
pub enum FaultPlan {
    /// The store returns to its records of `age_ms` ago, or loses all.
    DataLoss {
        age_ms: Option<u64>,
    },
    /// Another server serves, with the records of `age_ms` ago and a clock that differs by
    /// `clock_ms`. It grants nothing until the longest span under the limit of spans has passed.
    Promotion {
        age_ms: u64,
        clock_ms: i64,
    },
    /// The limit of spans begins to change.
    SpanLimit {
        limit_ms: u64,
    },
    /// The store executes nothing.
    Stall {
        for_ms: u64,
    },
    /// Commands, replies and events are lost, delayed or repeated.
    Lossy {
        for_ms: u64,
        permille: u32,
    },
    Kill {
        broker: usize,
        for_ms: u64,
    },
    Pause {
        broker: usize,
        for_ms: u64,
    },
    Drain {
        broker: usize,
        for_ms: u64,
    },
}

impl Plan {
    /// Returns the plan of a seed.
    #[must_use]
    pub fn new(seed: u64, duration_ms: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let brokers = random.gen_range(2..=3);
        let store_second_us = random.gen_range(834_000..=1_200_000);
        // Time that passes while the store's clock advances by a second, in milliseconds.
        let second_ms = |seconds: u64| seconds * 1_000_000 / store_second_us;
        let client_second_ms = second_ms(800)..=second_ms(1_200);
        let features = Features {
            has_operator: random.gen_bool(0.25),
            emphasis: match random.gen_bool(0.25) {
                _ if seed % 8 == 5 => Emphasis::Promotions,
                true => Emphasis::DataLoss,
                false => Emphasis::None,
            },
            has_closures: seed % 4 == 3,
        };
        let has_span_limit = features.emphasis == Emphasis::Promotions;
        let span_limit_ms = has_span_limit.then(|| span_limit_ms(&mut random));
        let clients = (0..random.gen_range(5..=9)).map(|index| {
            let is_streaming = random.gen_bool(0.5);
            let kind = if is_streaming { "stream" } else { "unary" };
            ClientPlan {
                name: format!("{kind}-{index}"),
                is_streaming,
                second_ms: random.gen_range(client_second_ms.clone()),
                presents_released: random.gen_bool(0.5),
                actions: actions(&mut random, duration_ms, features),
            }
        });
        Self {
            seed,
            duration_ms,
            brokers,
            store_second_us,
            span_limit_ms,
            clients: clients.collect(),
            faults: faults(&mut random, duration_ms, brokers, features.emphasis),
        }
    }
}

fn actions(random: &mut StdRng, duration_ms: u64, features: Features) -> Vec<Planned<Action>> {
    let (mut actions, mut at_ms) = (Vec::new(), random.gen_range(0..1_000));
    let pause_max_ms = *[400, 1_500, 4_000].choose(random).expect("three");
    while at_ms < duration_ms {
        let what = match features.emphasis {
            Emphasis::None | Emphasis::Promotions => action(random, features),
            Emphasis::DataLoss => repeating_action(random, features),
        };
        actions.push(Planned { at_ms, what });
        at_ms += random.gen_range(1..pause_max_ms);
    }
    actions
}

/// Returns an action that may bring back what has ended: calls are repeated, cancelled calls, too,
/// and locks are released from leases and added to them again.
fn repeating_action(random: &mut StdRng, features: Features) -> Action {
    let index = random.gen_range(0..4);
    match random.gen_range(0..100) {
        0..35 => Action::Acquire(acquire(random, features)),
        35..55 => add(random),
        55..70 => release(random),
        70..75 => Action::Cancel { call: index },
        75..95 => Action::Repeat {
            call: index,
            is_cancelled: random.gen_bool(0.6),
        },
        _ => Action::Move,
    }
}

fn action(random: &mut StdRng, features: Features) -> Action {
    let index = random.gen_range(0..8);
    match random.gen_range(0..100) {
        0..45 => Action::Acquire(acquire(random, features)),
        45..57 => add(random),
        57..75 => release(random),
        75..82 => Action::Cancel { call: index },
        82..90 => Action::Repeat {
            call: index,
            is_cancelled: false,
        },
        90 if features.has_closures => Action::Close {
            lock: random.gen_range(0..LOCKS),
            for_ms: random.gen_range(1..=CLOSURE_MAX_MS),
        },
        91 if features.has_closures => Action::Open {
            lock: random.gen_range(0..LOCKS),
        },
        90..95 => Action::Move,
        95 => Action::Silence {
            for_ms: random.gen_range(500..9_000),
        },
        96 => Action::Crash,
        97 if features.has_operator => Action::SetLimit {
            limit: random.gen_bool(0.7).then(|| random.gen_range(1..=5)),
        },
        98.. if features.has_operator => Action::Revoke {
            lease: index,
            unsafe_now: random.gen_bool(0.3),
        },
        _ => Action::Move,
    }
}

fn add(random: &mut StdRng) -> Action {
    Action::Add {
        lease: random.gen_range(0..8),
        target: target(random),
        wait_ms: wait_ms(random),
    }
}

fn release(random: &mut StdRng) -> Action {
    Action::Release {
        lease: random.gen_range(0..8),
        part: match random.gen_range(0..4) {
            0 => Part::Lock(random.gen_range(0..2)),
            1 => Part::Entry(random.gen_range(0..2)),
            _ => Part::Lease,
        },
    }
}

fn acquire(random: &mut StdRng, features: Features) -> AcquirePlan {
    let at_least_ms = if features.has_closures && random.gen_bool(0.04) {
        random.gen_range(TTL_MAX_MS..2 * TTL_MAX_MS)
    } else {
        0
    };
    let first = target(random);
    let second = target(random);
    let has_second = random.gen_bool(0.2) && second.lock != first.lock;
    AcquirePlan {
        targets: [Some(first), has_second.then_some(second)],
        ttl_ms: random.gen_range(1_000..=features.ttl_max_ms()),
        wait_ms: wait_ms(random),
        hold_ms: match random.gen_range(0..10) {
            0..6 => random.gen_range(0..500),
            6..9 => random.gen_range(500..4_000),
            _ => random.gen_range(4_000..20_000),
        },
        is_released: random.gen_bool(match features.emphasis {
            Emphasis::None | Emphasis::DataLoss => 0.9,
            // a client that does not renew relies on its lease for the longest time
            Emphasis::Promotions => 0.6,
        }),
        max_hold_ms: random.gen_bool(0.1).then(|| random.gen_range(1_000..8_000)),
        lock_delay_ms: if random.gen_bool(0.1) {
            random.gen_range(1..=LOCK_DELAY_MAX_MS)
        } else {
            0
        },
        at_least_ms,
        disconnect_grace_ms: random.gen_bool(0.2).then(|| random.gen_range(0..3_000)),
        hedge_after_ms: random.gen_bool(0.25).then(|| random.gen_range(0..2_500)),
        cancel_after_ms: random.gen_bool(0.2).then(|| match random.gen_range(0..3) {
            0 => random.gen_range(0..4),
            1 => random.gen_range(0..50),
            _ => random.gen_range(0..5_000),
        }),
    }
}

fn target(random: &mut StdRng) -> TargetPlan {
    let lock = random.gen_range(0..LOCKS);
    let mode = if lock == LOCKS - 1 {
        Mode::Semaphore {
            permits: random.gen_range(1..=2),
            limit: if random.gen_bool(0.8) { PERMITS } else { 0 },
        }
    } else if lock == 0 || random.gen_bool(0.5) {
        Mode::Exclusive
    } else {
        Mode::Shared
    };
    TargetPlan { lock, mode }
}

fn span_limit_ms(random: &mut StdRng) -> u64 {
    let longest_ms = span_ms(LONG_TTL_MAX_MS, LOCK_DELAY_MAX_MS);
    *[SPAN_MIN_MS, 15_000, 25_000, longest_ms]
        .choose(random)
        .expect("four")
}

fn wait_ms(random: &mut StdRng) -> u64 {
    match random.gen_range(0..10) {
        0..2 => 0,
        2..5 => random.gen_range(1..2_000),
        _ => random.gen_range(2_000..30_000),
    }
}

/// Returns faults that do not overlap, with times without any fault between them. Many
/// plans have none, so that every effect of their history has its cause in what clients did.
fn faults(
    random: &mut StdRng,
    duration_ms: u64,
    brokers: usize,
    emphasis: Emphasis,
) -> Vec<Planned<FaultPlan>> {
    let mut faults = Vec::new();
    if emphasis == Emphasis::DataLoss {
        let mut at_ms = random.gen_range(5_000..15_000);
        while at_ms < duration_ms {
            let age_ms = Some(random.gen_range(0..3_000));
            let what = FaultPlan::DataLoss { age_ms };
            faults.push(Planned { at_ms, what });
            // Nothing is granted for up to 10 s.
            at_ms += random.gen_range(13_000..20_000);
        }
        return faults;
    }
    if emphasis == Emphasis::Promotions {
        let mut at_ms = random.gen_range(5_000..20_000);
        while at_ms < duration_ms {
            let what = FaultPlan::SpanLimit {
                limit_ms: span_limit_ms(random),
            };
            faults.push(Planned { at_ms, what });
            at_ms += random.gen_range(ROLL_BACK_MAX_MS..20_000);
            let what = FaultPlan::Promotion {
                age_ms: random.gen_range(0..ROLL_BACK_MAX_MS),
                clock_ms: random.gen_range(-3_000..=3_000),
            };
            faults.push(Planned { at_ms, what });
            at_ms += random.gen_range(1_000..60_000);
        }
        return faults;
    }
    if random.gen_bool(0.3) {
        return faults;
    }
    let pause_max_ms = *[5_000, 20_000, 60_000].choose(random).expect("three");
    let mut at_ms = random.gen_range(1_000..pause_max_ms);
    while at_ms < duration_ms {
        let broker = random.gen_range(0..brokers);
        let for_ms = random.gen_range(50..8_000);
        let what = match random.gen_range(0..12) {
            0..2 => FaultPlan::DataLoss {
                age_ms: random.gen_bool(0.85).then(|| random.gen_range(0..3_000)),
            },
            2..4 => FaultPlan::Stall { for_ms },
            4..7 => FaultPlan::Lossy {
                for_ms,
                permille: random.gen_range(20..400),
            },
            7..9 => FaultPlan::Kill { broker, for_ms },
            9..11 => FaultPlan::Pause { broker, for_ms },
            _ => FaultPlan::Drain { broker, for_ms },
        };
        faults.push(Planned { at_ms, what });
        at_ms += for_ms + random.gen_range(1..pause_max_ms);
    }
    faults
}
