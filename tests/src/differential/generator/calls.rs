//! Random parameters of the calls of a sequence: leases, streams, modes and terms.

use leasehold_server::{
    lock::{
        AcquireCommand, ArgumentsHash, Attachment, AttemptId, CloseCommand, ExpectedAttachment,
        FencingToken, LeaseBinding, LeaseId, LeaseOptions, Mode, Owner, RequestHash, RevokeCommand,
        RevokeMode, StreamId, TraceParent, Ttl,
    },
    store::memory::context::SpanLimit,
};
use rand::{Rng as _, seq::SliceRandom as _};

use super::{
    ARGUMENTS, Generator, LIMIT, ModeMix, SPAN_LIMITS_MS, SPANNING_DELAYS_MS, SPANNING_TTLS_MS,
    TTLS_MS, random_id,
};

impl Generator {
    /// Puts a call under an existing lease, which may belong to another call. The call enters the
    /// lock or adds it to the lease.
    pub(super) fn put_under_lease(&mut self, call: AcquireCommand) -> AcquireCommand {
        let lease = self.lease();
        let request = RequestHash::parse(&random_id(&mut self.rng, 26)).expect("an id");
        AcquireCommand {
            request,
            owner: Owner {
                id: request.to_string(),
                ..call.owner
            },
            lease_id: lease.lease_id,
            binding: match self.rng.gen_bool(0.7) {
                true => LeaseBinding::Reentry(lease.fencing_token),
                false => LeaseBinding::Existing,
            },
            mode: match call.mode {
                Mode::Exclusive | Mode::Shared if self.rng.gen_bool(0.7) => Mode::Shared,
                Mode::Exclusive | Mode::Shared | Mode::Semaphore { .. } => self.mode(),
            },
            ..call
        }
    }

    /// Returns a revocation of a lease that may exist.
    pub(super) fn revoke(&mut self) -> RevokeCommand {
        let lease = self.lease();
        let rng = &mut self.rng;
        RevokeCommand {
            lock: lease.lock,
            lease_id: lease.lease_id,
            reason: ["why", "a|b\n!"][rng.gen_range(0..2)].to_owned(),
            grace_ms: [0, 0, 700, 4_000, 90_000][rng.gen_range(0..5)],
            lock_delay_ms: match self.limits_spans {
                true => [None, Some(0), Some(2_500), Some(12_000)][rng.gen_range(0..4)],
                false => [None, None, Some(0), Some(2_500)][rng.gen_range(0..4)],
            },
            mode: [
                RevokeMode::Graceful,
                RevokeMode::Graceful,
                RevokeMode::Immediate,
                RevokeMode::DryRun,
            ][rng.gen_range(0..4)],
        }
    }

    /// Returns a command of an operator that closes the lock, often for a time that has passed or for
    /// less than it is closed already.
    pub(super) fn close(&mut self) -> CloseCommand {
        let rng = &mut self.rng;
        let now_ms = self.now_us / 1_000;
        CloseCommand {
            lock: self.lock.clone(),
            until_ms: now_ms + [0, 1, 800, 3_000, 12_000][rng.gen_range(0..5)]
                - rng.gen_range(0..2),
            operator: Owner {
                id: ["ops", "a|b\n!"][rng.gen_range(0..2)].to_owned(),
                reason: ["", "why"][rng.gen_range(0..2)].to_owned(),
                ..Owner::default()
            },
        }
    }

    /// Returns no limit of spans, or one that often changes during the sequence.
    pub(super) fn draw_span_limit(&mut self) -> SpanLimit {
        let rng = &mut self.rng;
        let mut limit_ms =
            || (SPAN_LIMITS_MS[rng.gen_range(0..8)] + rng.gen_range(0..3)).saturating_sub(1);
        let (before_ms, after_ms) = (limit_ms(), limit_ms());
        let now_ms = self.now_us / 1_000;
        let at_ms = now_ms + [0, 1, 500, 3_000, 20_000][self.rng.gen_range(0..5)];
        match self.rng.gen_bool(0.1) {
            true => SpanLimit::None,
            false => SpanLimit::Changing {
                before_ms,
                after_ms,
                at_ms,
            },
        }
    }

    /// Returns no floor of tokens, or one near the time or the newest token.
    pub(super) fn draw_token_floor(&mut self) -> Option<FencingToken> {
        let base = match self.rng.gen_bool(0.5) {
            true => self.now_us,
            false => self.newest_token(),
        };
        let ahead_us = [0, 1, 700, 2_000_000, 30_000_000][self.rng.gen_range(0..5)];
        let floor = FencingToken::new(base + ahead_us - 1);
        floor.filter(|_| self.rng.gen_bool(0.8))
    }

    pub(super) fn attachment(&mut self) -> Attachment {
        Attachment {
            stream: self.stream(),
            number: self.rng.gen_range(1..=3),
        }
    }

    pub(super) fn via(&mut self) -> ExpectedAttachment {
        match self.rng.gen_range(0..10) {
            0 => ExpectedAttachment::None,
            1..7 if self.streams => ExpectedAttachment::Stream(self.stream()),
            _ => ExpectedAttachment::Any,
        }
    }

    /// Returns a stream of the broker of the step.
    fn stream(&mut self) -> StreamId {
        StreamId {
            broker: self.brokers[self.broker],
            epoch: self.rng.gen_range(1..=2),
        }
    }

    fn mode(&mut self) -> Mode {
        let shared = [Mode::Shared, Mode::Shared, Mode::Exclusive];
        let permits = [1, 1, 1, 2, 3, LIMIT + 1][self.rng.gen_range(0..6)];
        let limit = [LIMIT, LIMIT, LIMIT, LIMIT, LIMIT + 1, 0][self.rng.gen_range(0..6)];
        let semaphore = Mode::Semaphore {
            permits: match limit {
                0 => permits,
                limit => permits.min(limit),
            },
            limit,
        };
        match self.kind {
            ModeMix::Exclusive => Mode::Exclusive,
            ModeMix::SharedAndExclusive => shared[self.rng.gen_range(0..3)],
            ModeMix::Semaphore => semaphore,
            ModeMix::Mixed => {
                [shared[self.rng.gen_range(0..3)], semaphore][self.rng.gen_range(0..2)]
            }
        }
    }

    fn terms(&mut self) -> LeaseOptions {
        if self.plain && self.rng.gen_bool(0.9) {
            return LeaseOptions::default();
        }
        LeaseOptions {
            max_hold_ms: [None, None, None, None, Some(700), Some(4_000), Some(30_000)]
                [self.rng.gen_range(0..7)],
            lock_delay_ms: match self.limits_spans {
                true => SPANNING_DELAYS_MS[self.rng.gen_range(0..8)],
                false => [0, 0, 0, 0, 0, 1_500, 8_000][self.rng.gen_range(0..7)],
            },
            at_least_ms: [0, 0, 0, 0, 0, 900, 5_000, 9_500][self.rng.gen_range(0..8)],
            disconnect_grace_ms: [None, None, Some(0), Some(900)][self.rng.gen_range(0..4)],
        }
    }

    /// Returns a call with a new lease, or one that adds the lock to the lease of another
    /// call.
    pub(super) fn new_call(&mut self) -> AcquireCommand {
        let mode = self.mode();
        let terms = self.terms();
        let adds_to = match self.reentrant && self.rng.gen_bool(0.4) {
            true => self.calls.choose(&mut self.rng).map(|call| call.lease_id),
            false => None,
        };
        let rng = &mut self.rng;
        let request = RequestHash::parse(&random_id(rng, 26)).expect("an id");
        let reason = ["", "a|b", "\"ä,\n%\\"][rng.gen_range(0..3)];
        AcquireCommand {
            lock: self.lock.clone(),
            mode,
            lease_id: adds_to.unwrap_or(LeaseId::parse(&random_id(rng, 26)).expect("an id")),
            binding: adds_to.map_or(LeaseBinding::New, |_| LeaseBinding::Existing),
            stream: None,
            request,
            arguments: ArgumentsHash::of(&[ARGUMENTS[0]]),
            attempt: AttemptId::parse(&random_id(rng, 13)).expect("an id"),
            ttl: Ttl::from_stored(match self.limits_spans {
                true => SPANNING_TTLS_MS[rng.gen_range(0..8)],
                false => TTLS_MS[rng.gen_range(if self.reentrant { 1..3 } else { 0..3 })],
            }),
            options: terms,
            wait_ms: 0,
            owner: Owner {
                id: request.to_string(),
                reason: reason.to_owned(),
                labels: vec![("key".to_owned(), reason.to_owned())],
                trace: TraceParent::new(7, 9, true).filter(|_| reason.is_empty()),
            },
            rejoin: false,
        }
    }
}
