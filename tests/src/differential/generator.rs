//! Generator of sequences, which draws each step from the results of the previous steps.

mod calls;

use leasehold_server::{
    lock::{
        AcquireCommand, ArgumentsHash, AttemptId, BrokerId, FencingToken, LeaseId, LeaseRef,
        LockKey, LockName, Namespace, ReleaseScope, Ttl,
    },
    store::{Acquired, NotifyMode, Vote, VoteReply, memory::context::SpanLimit},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

use super::steps::{Era, START_MS, Step, StoreCommand, StoreReply};

/// One of this many sequences runs at a node of a RedLock store.
const VOTING_INTERVAL: u64 = 8;
/// Largest distance of a proposed token from the clock of the node.
const MAX_CLOCK_SKEW_MS: u64 = 2_000;
const BROKERS: usize = 3;
/// Number of concurrent calls: enough for holders, a full queue and one call beyond its limit.
const CALLS: usize = 8;
const LIMIT: u32 = 3;
/// Upper bound of the draws for all verbs except touch. Draws above it are touches.
const NON_TOUCH_DRAWS: u32 = 89;
/// Upper bound of the draws for acquire, renew, attach and release.
const PLAIN_DRAWS: u32 = 67;
const WAITS_MS: [u64; 6] = [0, 500, 4_000, 30_000, 3_600_000, 3_600_000];
const TTLS_MS: [u64; 3] = [1_000, 5_000, 60_000];
/// Values around the limits of spans: those of sequences with limits.
const SPANNING_TTLS_MS: [u64; 8] = [500, 1_000, 5_000, 5_000, 10_001, 20_000, 60_000, 60_000];
const SPANNING_DELAYS_MS: [u64; 8] = [0, 0, 0, 1_500, 10_800, 10_801, 11_401, 12_500];
/// Limits that are cut to the least one, or allow some of these lock_delays and ttls.
const SPAN_LIMITS_MS: [u64; 8] = [0, 12_250, 12_850, 13_950, 20_000, 26_050, 72_250, 90_000];
const MIXED_MS: [u64; 12] = [0, 0, 0, 0, 0, 0, 1, 10, 100, 300, 1_000, 2_900];
/// Large time steps. None of them equals a time for which ended leases are remembered, because a
/// forgotten lease does not come back when the clock steps back.
const LARGE_STEPS_MS: [u64; 5] = [1_450, 3_000, 6_001, 13_000, 61_234];
const STEADY_MS: [u64; 6] = [0, 500, 1_500, 2_500, 3_000, 3_001];
const ARGUMENTS: [&[u8]; 2] = [b"these", b"those"];

/// Modes that the calls of a sequence use.
#[derive(Debug, Clone, Copy)]
enum ModeMix {
    Exclusive,
    SharedAndExclusive,
    Semaphore,
    Mixed,
}

/// Generator of one sequence.
pub struct Generator {
    rng: StdRng,
    lock: LockKey,
    brokers: [BrokerId; BROKERS],
    now_us: u64,
    /// Index of the broker that sends the next step.
    broker: usize,
    /// True if broker 0 touches the lock continuously and the others rarely.
    has_steady_toucher: bool,
    /// True if the last broker has stopped. Used in `steady` sequences.
    has_stopped_broker: bool,
    /// True if many calls enter locks that their leases hold.
    reentrant: bool,
    /// True if one call is repeated many times and its attempts are cancelled.
    repeats: bool,
    /// True in phases of a `repeats` sequence in which most acquires are replaced by cancels.
    cancels: bool,
    /// True if many leases are on streams.
    streams: bool,
    /// True if many leases are revoked.
    revokes: bool,
    /// True at a node of a RedLock store: acquires are votes.
    votes: bool,
    /// True if the eras have limits of spans.
    limits_spans: bool,
    span_limit: SpanLimit,
    /// True if the eras have floors of tokens.
    has_token_floors: bool,
    token_floor: Option<FencingToken>,
    /// True if most leases have the lock alone and without terms, which the scripts handle apart.
    plain: bool,
    kind: ModeMix,
    era: Era,
    /// Current calls. A call is replaced by a new one now and then.
    calls: Vec<AcquireCommand>,
    /// Attempts that were sent, and attempts that were cancelled before they were sent.
    attempts: Vec<AcquireCommand>,
    /// Attempt that was cancelled before the next acquire sends it.
    cancelled: Option<AcquireCommand>,
    leases: Vec<LeaseRef>,
    next_event_ms: Option<u64>,
}

impl Generator {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let brokers =
            [(); BROKERS].map(|()| BrokerId::parse(&random_id(&mut rng, 16)).expect("an id"));
        let begin_ms = START_MS + [0, 0, 25_000][rng.gen_range(0..3)];
        let reentrant = rng.gen_bool(0.45);
        let mut generator = Self {
            lock: LockKey::new(
                Namespace::parse("default").expect("legal"),
                LockName::parse("differential").expect("legal"),
            ),
            brokers,
            broker: 0,
            now_us: begin_ms * 1_000 + rng.gen_range(0..1_000),
            has_steady_toucher: rng.gen_bool(0.3),
            has_stopped_broker: false,
            reentrant,
            repeats: rng.gen_bool(if reentrant { 0.5 } else { 0.3 }),
            cancels: false,
            streams: rng.gen_bool(if reentrant { 0.1 } else { 0.35 }),
            revokes: rng.gen_bool(0.3),
            votes: seed % VOTING_INTERVAL == 3 || seed % 32 == 21,
            limits_spans: matches!(seed % 16, 2 | 6 | 10 | 11 | 14) || seed % 32 == 29,
            span_limit: SpanLimit::None,
            has_token_floors: matches!(seed % 16, 1 | 3 | 9),
            token_floor: None,
            plain: is_plain(seed),
            kind: [
                ModeMix::Exclusive,
                ModeMix::SharedAndExclusive,
                ModeMix::Semaphore,
                ModeMix::Mixed,
            ][[0, 0, 0, 1, 1, 1, 2, 2, 2, 3][rng.gen_range(if reentrant { 2..8 } else { 0..10 })]],
            era: [Era::Verified, Era::Verified, Era::Verified, Era::Recovering]
                [rng.gen_range(0..4)],
            calls: Vec::new(),
            attempts: Vec::new(),
            cancelled: None,
            leases: Vec::new(),
            next_event_ms: None,
            rng,
        };
        if generator.plain {
            generator.make_plain();
        }
        for _ in 0..CALLS {
            let call = generator.new_call();
            generator.calls.push(call);
        }
        generator
    }

    fn make_plain(&mut self) {
        self.kind = match self.rng.gen_bool(0.8) {
            true => ModeMix::Exclusive,
            false => ModeMix::Mixed,
        };
        self.reentrant = false;
        self.repeats = false;
        self.revokes = false;
        self.streams = self.rng.gen_bool(0.6);
    }

    /// Draws the next step.
    pub fn step(&mut self) -> Step {
        self.advance_time();
        let now_ms = self.now_us / 1_000;
        let era = match self.rng.gen_range(0..100) {
            0 => Era::Absent,
            1 => Era::Other,
            2..7 => Era::Recovering,
            _ => self.era,
        };
        if self.limits_spans && self.rng.gen_bool(0.2) {
            self.span_limit = self.draw_span_limit();
        }
        if self.has_token_floors && self.rng.gen_bool(0.1) {
            self.token_floor = self.draw_token_floor();
        }
        let touches = if self.has_steady_toucher { 44 } else { 14 };
        let which = match self.plain && self.rng.gen_bool(0.9) {
            true => self.rng.gen_range(0..PLAIN_DRAWS),
            false => self.rng.gen_range(0..NON_TOUCH_DRAWS + touches),
        };
        self.has_stopped_broker |= self.has_steady_toucher && self.rng.gen_bool(0.05);
        let brokers = BROKERS - usize::from(self.has_stopped_broker);
        self.broker = match (self.has_steady_toucher, which) {
            (true, NON_TOUCH_DRAWS..) if self.rng.gen_bool(0.9) => 0,
            (true, _) if self.rng.gen_bool(0.3) => 0,
            _ if self.plain && self.rng.gen_bool(0.8) => 0,
            _ => self.rng.gen_range(0..brokers),
        };
        let verb = self.draw_verb(which);
        Step {
            now_us: self.now_us,
            lock: self.lock.clone(),
            broker: self.brokers[self.broker],
            not_after_ms: match self.rng.gen_range(0..40) {
                0 => now_ms - 1,
                1 => now_ms,
                _ => now_ms + 800,
            },
            era,
            span_limit: self.span_limit,
            token_floor: self.token_floor,
            notifies_release: self.votes && self.rng.gen_bool(0.8),
            verb,
        }
    }

    /// Stores the leases and times that an answer returned, for later steps.
    pub fn observe(&mut self, step: &Step, answer: &StoreReply) {
        let mut grants = answer.hand_offs().to_vec();
        match answer {
            StoreReply::Acquire(Ok(outcome)) => self.observe_acquired(step, &outcome.reply),
            StoreReply::Vote(Ok(outcome)) => {
                if let VoteReply::Acquired(acquired) = &outcome.reply {
                    self.observe_acquired(step, acquired);
                }
            }
            StoreReply::Touch(Ok(outcome)) => {
                self.next_event_ms = due_at_ms(step, outcome.reply.next_event_ms);
                grants.extend(outcome.reply.held.clone());
            }
            StoreReply::Renew(_)
            | StoreReply::Attach(_)
            | StoreReply::Release(_)
            | StoreReply::Cancel(_)
            | StoreReply::SetLimit(_)
            | StoreReply::SetClosure(_)
            | StoreReply::Revoke(_) => {
                self.next_event_ms = None;
            }
            StoreReply::Acquire(Err(_))
            | StoreReply::Vote(Err(_))
            | StoreReply::Touch(Err(_))
            | StoreReply::Get(_)
            | StoreReply::Check(_)
            | StoreReply::Failed(_) => {}
        }
        for hand_off in grants {
            let call = self
                .attempts
                .iter()
                .find(|call| call.request == hand_off.request);
            let lease_id = call.expect("only calls are granted").lease_id;
            self.record_lease(lease_id, hand_off.fencing_token);
        }
    }

    fn observe_acquired(&mut self, step: &Step, acquired: &Acquired) {
        let (StoreCommand::Acquire(acquire) | StoreCommand::Vote(acquire, _)) = &step.verb else {
            return;
        };
        if let Acquired::Granted(grant) = acquired {
            self.record_lease(acquire.lease_id, grant.fencing_token);
        }
        if let Acquired::Queued { next_event_ms, .. } = acquired {
            self.next_event_ms = due_at_ms(step, *next_event_ms);
        }
    }

    fn record_lease(&mut self, lease_id: LeaseId, fencing_token: FencingToken) {
        let lease = LeaseRef {
            lock: self.lock.clone(),
            lease_id,
            fencing_token,
        };
        if !self.leases.contains(&lease) {
            self.leases.push(lease);
        }
    }

    fn advance_time(&mut self) {
        if let Some(due_ms) = self.next_event_ms.filter(|_| self.rng.gen_bool(0.1)) {
            let exact_ms = due_ms + self.rng.gen_range(0..3) - 1;
            self.now_us = self.now_us.max(exact_ms * 1_000);
            return;
        }
        if self.rng.gen_bool(0.02) {
            let newest_us = self.newest_token().min(self.now_us);
            let is_near = self.now_us - newest_us < 20_000;
            self.now_us = match self.plain && is_near && self.rng.gen_bool(0.5) {
                true => newest_us,
                false => self.now_us - self.rng.gen_range(0..20_000),
            };
            return;
        }
        let choice = if self.rng.gen_bool(0.05) {
            &LARGE_STEPS_MS[..]
        } else if self.has_steady_toucher {
            &STEADY_MS[..]
        } else {
            &MIXED_MS[..]
        };
        let ms = choice.choose(&mut self.rng).expect("some");
        self.now_us += ms * 1_000 + self.rng.gen_range(0..300);
    }

    fn draw_verb(&mut self, which: u32) -> StoreCommand {
        self.cancels ^= self.repeats && self.rng.gen_bool(0.1);
        match which {
            0..35 if self.cancels => self.cancel(),
            0..35 if self.plain && self.rng.gen_bool(0.05) => self.cancel_unsent(),
            50..63 if self.repeats => self.acquire_or_vote(),
            0..35 => self.acquire_or_vote(),
            35..50 => {
                let ttls_ms = match self.limits_spans {
                    true => &SPANNING_TTLS_MS[..],
                    false => &TTLS_MS[..],
                };
                let ttl_ms = ttls_ms.choose(&mut self.rng).expect("some");
                let ttl = self.rng.gen_bool(0.3).then(|| Ttl::from_stored(*ttl_ms));
                let attached = if self.plain { 0.5 } else { 0.3 };
                match self.streams && self.rng.gen_bool(attached) {
                    true => StoreCommand::Attach(self.lease(), self.attachment()),
                    false if self.votes && self.rng.gen_bool(0.5) => {
                        StoreCommand::RenewForClient(self.lease(), ttl, self.via())
                    }
                    false => StoreCommand::Renew(self.lease(), ttl, self.via()),
                }
            }
            50..67 => self.release(),
            67..75 if self.revokes => StoreCommand::Revoke(self.revoke()),
            67..81 => self.cancel(),
            81..83 => StoreCommand::Get,
            83..85 => StoreCommand::Check(self.lease().fencing_token),
            85 => {
                let limit = self.rng.gen_range(1..=LIMIT + 4);
                StoreCommand::SetLimit((limit <= LIMIT + 1).then_some(limit))
            }
            86 => StoreCommand::Revoke(self.revoke()),
            87 => StoreCommand::Close(self.close()),
            88 => StoreCommand::Open,
            _ => StoreCommand::Touch(if self.rng.gen_bool(0.1) { 3 } else { 1 }),
        }
    }

    fn acquire_or_vote(&mut self) -> StoreCommand {
        let mut acquire = Box::new(self.acquire());
        if !self.votes {
            return StoreCommand::Acquire(acquire);
        }
        acquire.wait_ms = 0;
        acquire.rejoin = false;
        StoreCommand::Vote(acquire, self.vote())
    }

    /// Returns a proposal, often at a bound of the tokens that the node accepts.
    fn vote(&mut self) -> Vote {
        let skew_us = MAX_CLOCK_SKEW_MS * 1_000;
        let newest = self.newest_token();
        let token = match self.rng.gen_range(0..20) {
            0..2 => 0,
            2..5 => newest,
            5..8 => newest + 1,
            8 => self.now_us - skew_us,
            9 => self.now_us - skew_us - 1,
            10 => self.now_us + skew_us,
            11 => self.now_us + skew_us + 1,
            _ => self.now_us + self.rng.gen_range(0..100_000),
        };
        Vote {
            token: FencingToken::new(token),
            max_clock_skew_ms: MAX_CLOCK_SKEW_MS,
            raises: self.rng.gen_bool(0.6),
            notify: [NotifyMode::Never, NotifyMode::IfHeld, NotifyMode::Always]
                [self.rng.gen_range(0..3)],
        }
    }

    /// Returns the largest token that was granted, or the time if there is none.
    fn newest_token(&self) -> u64 {
        let tokens = self.leases.iter().map(|lease| lease.fencing_token.get());
        tokens.max().unwrap_or(self.now_us)
    }

    fn acquire(&mut self) -> AcquireCommand {
        let is_repeated = self.repeats && self.rng.gen_bool(0.6);
        let slot = if is_repeated {
            0
        } else {
            self.rng.gen_range(0..CALLS)
        };
        let is_new = self.plain && self.rng.gen_bool(0.7);
        if let Some(call) = self.cancelled.take() {
            self.calls[slot] = call;
        } else if is_new || self.rng.gen_bool(if is_repeated { 0.02 } else { 0.2 }) {
            self.calls[slot] = self.new_call();
        }
        let mut call = self.calls[slot].clone();
        match self.rng.gen_range(0..100) {
            _ if is_new => {}
            0..3 => call.arguments = ArgumentsHash::of(&[ARGUMENTS[1]]),
            3..5 => call.lease_id = LeaseId::parse(&random_id(&mut self.rng, 26)).expect("an id"),
            5..40 if self.reentrant && !is_repeated && !self.leases.is_empty() => {
                call = self.put_under_lease(call);
            }
            5..9 if !self.leases.is_empty() => call = self.put_under_lease(call),
            // Repeats a recent attempt, possibly one that was cancelled before it was sent.
            9..50 if !is_repeated && !self.attempts.is_empty() => {
                let newest = self.attempts.len().saturating_sub(6);
                call = self.attempts[newest..]
                    .choose(&mut self.rng)
                    .expect("some")
                    .clone();
            }
            _ => {}
        }
        if !self
            .attempts
            .iter()
            .any(|sent| sent.attempt == call.attempt)
            || self.rng.gen_bool(if is_repeated { 0.8 } else { 0.1 })
        {
            call.attempt = AttemptId::parse(&random_id(&mut self.rng, 13)).expect("an id");
        }
        call.wait_ms = match self.plain && self.rng.gen_bool(0.9) {
            true => 0,
            false => *WAITS_MS.choose(&mut self.rng).expect("some"),
        };
        call.rejoin = self.rng.gen_bool(0.3);
        if self.streams && self.rng.gen_bool(0.7) {
            call.stream = Some(self.attachment());
        }
        if let Some(attachment) = &mut call.stream {
            attachment.stream.broker = self.brokers[self.broker];
        }
        self.attempts.push(call.clone());
        call
    }

    fn lease(&mut self) -> LeaseRef {
        let newest = self.leases.len().saturating_sub(2);
        let mut lease = match self.rng.gen_range(0..10) {
            0 => self.leases.choose(&mut self.rng),
            _ => self.leases[newest..].choose(&mut self.rng),
        }
        .cloned()
        .unwrap_or_else(|| LeaseRef {
            lock: self.lock.clone(),
            lease_id: self.calls[0].lease_id,
            fencing_token: FencingToken::new(1).expect("a token"),
        });
        match self.rng.gen_range(0..40) {
            0 => lease.lease_id = self.calls[0].lease_id,
            1 => {
                let token = lease.fencing_token.get() + 1;
                lease.fencing_token = FencingToken::new(token).expect("a token");
            }
            _ => {}
        }
        lease
    }

    fn release(&mut self) -> StoreCommand {
        let lease = self.lease();
        let of_lease = |call: &&AcquireCommand| call.lease_id == lease.lease_id;
        let entries: Vec<_> = self.attempts.iter().filter(of_lease).collect();
        let share = if self.reentrant { 0.9 } else { 0.1 };
        let entry = match self.rng.gen_bool(0.5) {
            true => entries.first(),
            false => entries.choose(&mut self.rng),
        };
        let entry = entry.map(|call| ReleaseScope::Entry(call.request));
        let what = entry.filter(|_| self.rng.gen_bool(share));
        let what = what.unwrap_or(match self.rng.gen_bool(0.05) {
            true => ReleaseScope::ExpireNow,
            false if self.rng.gen_bool(0.3) => ReleaseScope::Lock,
            false => ReleaseScope::All,
        });
        StoreCommand::Release(lease, what, self.via())
    }

    /// Cancels an attempt that the next acquire sends.
    fn cancel_unsent(&mut self) -> StoreCommand {
        let call = self.new_call();
        self.attempts.push(call.clone());
        let cancel = StoreCommand::Cancel(call.request, call.attempt);
        self.cancelled = Some(call);
        cancel
    }

    fn cancel(&mut self) -> StoreCommand {
        if self.attempts.is_empty() || self.rng.gen_bool(0.2) {
            let call = self.calls.choose(&mut self.rng).expect("some").clone();
            self.attempts.push(AcquireCommand {
                attempt: AttemptId::parse(&random_id(&mut self.rng, 13)).expect("an id"),
                ..call
            });
        }
        let newest = self.attempts.len().saturating_sub(5);
        let mut call = self.attempts[newest..].choose(&mut self.rng);
        if self.repeats && self.rng.gen_bool(0.8) {
            let request = match call {
                Some(call) if self.reentrant => call.request,
                _ => self.calls[0].request,
            };
            let mut repeated: Vec<_> = self.attempts.iter().rev().collect();
            repeated.retain(|attempt| attempt.request == request);
            repeated.dedup_by_key(|attempt| attempt.attempt);
            let newest = &repeated[..repeated.len().min(5)];
            call = newest.choose(&mut self.rng).copied().or(call);
        }
        let call = call.expect("some");
        StoreCommand::Cancel(call.request, call.attempt)
    }
}

/// Returns true if most leases of a seed have the lock alone and without terms.
pub fn is_plain(seed: u64) -> bool {
    matches!(seed % 32, 5 | 13 | 17 | 21 | 29)
}

fn due_at_ms(step: &Step, next_event_ms: Option<u64>) -> Option<u64> {
    Some(step.now_us / 1_000 + next_event_ms?)
}

/// Returns 60 random bits, encoded with the length of the ids of this kind.
fn random_id(rng: &mut StdRng, len: usize) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bits: u64 = rng.r#gen();
    let digits = (0..len).map(|_| {
        let digit = DIGITS[usize::try_from(bits % 32).expect("below 32")];
        bits /= 32;
        char::from(digit)
    });
    digits.collect()
}
