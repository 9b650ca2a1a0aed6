//! Draws the next step of a sequence from what the steps so far have left behind.

mod calls;

use leasehold_server::{
    lock::{
        Acquire, ArgumentsHash, AttemptId, BrokerId, FencingToken, LeaseId, LeaseRef, LockKey,
        LockName, Namespace, Release, Ttl,
    },
    store::Acquired,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

use super::steps::{Answer, BEGIN_MS, Era, Step, Verb};

const BROKERS: usize = 3;
/// Enough to hold, to wait, and to be one too many.
const CALLS: usize = 8;
const LIMIT: u32 = 3;
/// All draws above this are touches.
const VERBS: u32 = 87;
const WAITS_MS: [u64; 6] = [0, 500, 4_000, 30_000, 3_600_000, 3_600_000];
const TTLS_MS: [u64; 3] = [1_000, 5_000, 60_000];
const MIXED_MS: [u64; 12] = [0, 0, 0, 0, 0, 0, 1, 10, 100, 300, 1_000, 2_900];
/// None is a time that leases are remembered for: what was forgotten does not come back when the
/// clock steps back.
const LEAPS_MS: [u64; 5] = [1_450, 3_000, 6_001, 13_000, 61_234];
const STEADY_MS: [u64; 6] = [0, 500, 1_500, 2_500, 3_000, 3_001];
const ARGUMENTS: [&[u8]; 2] = [b"these", b"those"];

/// What the calls of a sequence ask for.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Exclusive,
    SharedToo,
    Semaphore,
    Mixed,
}

/// One sequence.
pub struct Generator {
    rng: StdRng,
    lock: LockKey,
    brokers: [BrokerId; BROKERS],
    now_us: u64,
    /// Who sends the next step.
    broker: usize,
    /// In these sequences one broker touches the lock all the time and the others seldom.
    steady: bool,
    /// The last broker has ended, in one of these.
    has_ended: bool,
    /// In these many calls enter locks that their leases hold.
    reentrant: bool,
    /// In these one call is repeated again and again, and its attempts are cancelled.
    repeats: bool,
    /// For a while nothing is acquired in them, and more attempts are cancelled instead.
    cancels: bool,
    /// In these many leases are on streams.
    streams: bool,
    /// In these many leases are revoked.
    revokes: bool,
    kind: Kind,
    era: Era,
    /// The calls under way; each is replaced by a new one now and then.
    calls: Vec<Acquire>,
    /// Attempts that were sent, or cancelled before they were.
    attempts: Vec<Acquire>,
    leases: Vec<LeaseRef>,
    next_event_ms: Option<u64>,
}

impl Generator {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let brokers = [(); BROKERS].map(|()| BrokerId::parse(&id(&mut rng, 16)).expect("an id"));
        let begin_ms = BEGIN_MS + [0, 0, 25_000][rng.gen_range(0..3)];
        let reentrant = rng.gen_bool(0.45);
        let mut generator = Self {
            lock: LockKey::new(
                Namespace::parse("default").expect("legal"),
                LockName::parse("differential").expect("legal"),
            ),
            brokers,
            broker: 0,
            now_us: begin_ms * 1_000 + rng.gen_range(0..1_000),
            steady: rng.gen_bool(0.3),
            has_ended: false,
            reentrant,
            repeats: rng.gen_bool(if reentrant { 0.5 } else { 0.3 }),
            cancels: false,
            streams: rng.gen_bool(if reentrant { 0.1 } else { 0.35 }),
            revokes: rng.gen_bool(0.3),
            kind: [
                Kind::Exclusive,
                Kind::SharedToo,
                Kind::Semaphore,
                Kind::Mixed,
            ][[0, 0, 0, 1, 1, 1, 2, 2, 2, 3][rng.gen_range(if reentrant { 2..8 } else { 0..10 })]],
            era: [Era::Verified, Era::Verified, Era::Verified, Era::Recovering]
                [rng.gen_range(0..4)],
            calls: Vec::new(),
            attempts: Vec::new(),
            leases: Vec::new(),
            next_event_ms: None,
            rng,
        };
        for _ in 0..CALLS {
            let call = generator.new_call();
            generator.calls.push(call);
        }
        generator
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        self.pass_time();
        let now_ms = self.now_us / 1_000;
        let era = match self.rng.gen_range(0..100) {
            0 => Era::Absent,
            1 => Era::Other,
            2..7 => Era::Recovering,
            _ => self.era,
        };
        let touches = if self.steady { 44 } else { 14 };
        let which = self.rng.gen_range(0..VERBS + touches);
        self.has_ended |= self.steady && self.rng.gen_bool(0.05);
        let brokers = BROKERS - usize::from(self.has_ended);
        self.broker = match (self.steady, which) {
            (true, VERBS..) if self.rng.gen_bool(0.9) => 0,
            (true, _) if self.rng.gen_bool(0.3) => 0,
            _ => self.rng.gen_range(0..brokers),
        };
        let verb = self.verb(which);
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
            verb,
        }
    }

    /// Takes note of what an answer tells those who asked.
    pub fn learn(&mut self, step: &Step, answer: &Answer) {
        let mut told = answer.hand_offs().to_vec();
        match answer {
            Answer::Acquire(Ok(outcome)) => self.learn_acquired(step, &outcome.reply),
            Answer::Touch(Ok(outcome)) => {
                self.next_event_ms = due(step, outcome.reply.next_event_ms);
                told.extend(outcome.reply.held.clone());
            }
            Answer::Renew(_)
            | Answer::Attach(_)
            | Answer::Release(_)
            | Answer::Cancel(_)
            | Answer::SetLimit(_)
            | Answer::Revoke(_) => {
                self.next_event_ms = None;
            }
            Answer::Acquire(Err(_))
            | Answer::Touch(Err(_))
            | Answer::Get(_)
            | Answer::Check(_)
            | Answer::Failed(_) => {}
        }
        for hand_off in told {
            let call = self
                .attempts
                .iter()
                .find(|call| call.request == hand_off.request);
            let lease_id = call.expect("only calls are granted").lease_id;
            self.remember(lease_id, hand_off.fencing_token);
        }
    }

    fn learn_acquired(&mut self, step: &Step, acquired: &Acquired) {
        let Verb::Acquire(acquire) = &step.verb else {
            return;
        };
        if let Acquired::Granted(grant) = acquired {
            self.remember(acquire.lease_id, grant.fencing_token);
        }
        if let Acquired::Queued { next_event_ms, .. } = acquired {
            self.next_event_ms = due(step, *next_event_ms);
        }
    }

    fn remember(&mut self, lease_id: LeaseId, fencing_token: FencingToken) {
        let lease = LeaseRef {
            lock: self.lock.clone(),
            lease_id,
            fencing_token,
        };
        if !self.leases.contains(&lease) {
            self.leases.push(lease);
        }
    }

    fn pass_time(&mut self) {
        if let Some(due_ms) = self.next_event_ms.filter(|_| self.rng.gen_bool(0.1)) {
            let exact_ms = due_ms + self.rng.gen_range(0..3) - 1;
            self.now_us = self.now_us.max(exact_ms * 1_000);
            return;
        }
        if self.rng.gen_bool(0.02) {
            self.now_us -= self.rng.gen_range(0..20_000);
            return;
        }
        let choice = if self.rng.gen_bool(0.05) {
            &LEAPS_MS[..]
        } else if self.steady {
            &STEADY_MS[..]
        } else {
            &MIXED_MS[..]
        };
        let ms = choice.choose(&mut self.rng).expect("some");
        self.now_us += ms * 1_000 + self.rng.gen_range(0..300);
    }

    fn verb(&mut self, which: u32) -> Verb {
        self.cancels ^= self.repeats && self.rng.gen_bool(0.1);
        match which {
            0..35 if self.cancels => self.cancel(),
            50..63 if self.repeats => Verb::Acquire(Box::new(self.acquire())),
            0..35 => Verb::Acquire(Box::new(self.acquire())),
            35..50 => {
                let ttl_ms = TTLS_MS.choose(&mut self.rng).expect("some");
                let ttl = self.rng.gen_bool(0.3).then(|| Ttl::from_stored(*ttl_ms));
                match self.streams && self.rng.gen_bool(0.3) {
                    true => Verb::Attach(self.lease(), self.attachment()),
                    false => Verb::Renew(self.lease(), ttl, self.via()),
                }
            }
            50..67 => self.release(),
            67..75 if self.revokes => Verb::Revoke(self.revoke()),
            67..81 => self.cancel(),
            81..83 => Verb::Get,
            83..85 => Verb::Check(self.lease().fencing_token),
            85 => {
                let limit = self.rng.gen_range(1..=LIMIT + 4);
                Verb::SetLimit((limit <= LIMIT + 1).then_some(limit))
            }
            86 => Verb::Revoke(self.revoke()),
            _ => Verb::Touch(if self.rng.gen_bool(0.1) { 3 } else { 1 }),
        }
    }

    fn acquire(&mut self) -> Acquire {
        let is_repeated = self.repeats && self.rng.gen_bool(0.6);
        let slot = if is_repeated {
            0
        } else {
            self.rng.gen_range(0..CALLS)
        };
        if self.rng.gen_bool(if is_repeated { 0.02 } else { 0.2 }) {
            self.calls[slot] = self.new_call();
        }
        let mut call = self.calls[slot].clone();
        match self.rng.gen_range(0..100) {
            0..3 => call.arguments = ArgumentsHash::of(&[ARGUMENTS[1]]),
            3..5 => call.lease_id = LeaseId::parse(&id(&mut self.rng, 26)).expect("an id"),
            // The same attempt once more, or one that was cancelled before it was sent.
            5..40 if self.reentrant && !is_repeated && !self.leases.is_empty() => {
                call = self.under(call);
            }
            5..9 if !self.leases.is_empty() => call = self.under(call),
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
            call.attempt = AttemptId::parse(&id(&mut self.rng, 13)).expect("an id");
        }
        call.wait_ms = *WAITS_MS.choose(&mut self.rng).expect("some");
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

    fn release(&mut self) -> Verb {
        let lease = self.lease();
        let of_lease = |call: &&Acquire| call.lease_id == lease.lease_id;
        let entries: Vec<_> = self.attempts.iter().filter(of_lease).collect();
        let share = if self.reentrant { 0.9 } else { 0.1 };
        let entry = match self.rng.gen_bool(0.5) {
            true => entries.first(),
            false => entries.choose(&mut self.rng),
        };
        let entry = entry.map(|call| Release::Entry(call.request));
        let what = entry.filter(|_| self.rng.gen_bool(share));
        let what = what.unwrap_or(match self.rng.gen_bool(0.05) {
            true => Release::Lapse,
            false if self.rng.gen_bool(0.3) => Release::Lock,
            false => Release::All,
        });
        Verb::Release(lease, what, self.via())
    }

    fn cancel(&mut self) -> Verb {
        if self.attempts.is_empty() || self.rng.gen_bool(0.2) {
            let call = self.calls.choose(&mut self.rng).expect("some").clone();
            self.attempts.push(Acquire {
                attempt: AttemptId::parse(&id(&mut self.rng, 13)).expect("an id"),
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
        Verb::Cancel(call.request, call.attempt)
    }
}

fn due(step: &Step, next_event_ms: u64) -> Option<u64> {
    (next_event_ms > 0).then_some(step.now_us / 1_000 + next_event_ms)
}

/// 60 random bits, as long as ids of that kind are.
fn id(rng: &mut StdRng, len: usize) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bits: u64 = rng.r#gen();
    let digits = (0..len).map(|_| {
        let digit = DIGITS[usize::try_from(bits % 32).expect("below 32")];
        bits /= 32;
        char::from(digit)
    });
    digits.collect()
}
