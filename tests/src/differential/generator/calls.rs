//! What the calls of a sequence ask for, and on which streams.

use leasehold_server::lock::{
    Acquire, ArgumentsHash, Attachment, AttemptId, Force, LeaseId, Mode, Owner, RequestHash,
    Revoke, StreamId, Terms, TraceParent, Ttl, Under, Via,
};
use rand::{Rng as _, seq::SliceRandom as _};

use super::{ARGUMENTS, Generator, Kind, LIMIT, TTLS_MS, id};

impl Generator {
    /// A call under a lease: it enters the lock, or adds to the lease as if it were another's.
    pub(super) fn under(&mut self, call: Acquire) -> Acquire {
        let lease = self.lease();
        let request = RequestHash::parse(&id(&mut self.rng, 26)).expect("an id");
        Acquire {
            request,
            owner: Owner {
                id: request.to_string(),
                ..call.owner
            },
            lease_id: lease.lease_id,
            under: match self.rng.gen_bool(0.7) {
                true => Under::Grant(lease.fencing_token),
                false => Under::Lease,
            },
            mode: match call.mode {
                Mode::Exclusive | Mode::Shared if self.rng.gen_bool(0.7) => Mode::Shared,
                Mode::Exclusive | Mode::Shared | Mode::Semaphore { .. } => self.mode(),
            },
            ..call
        }
    }

    /// A revocation of a lease that may be there.
    pub(super) fn revoke(&mut self) -> Revoke {
        let lease = self.lease();
        let rng = &mut self.rng;
        Revoke {
            lock: lease.lock,
            lease_id: lease.lease_id,
            reason: ["why", "a|b\n!"][rng.gen_range(0..2)].to_owned(),
            grace_ms: [0, 0, 700, 4_000, 90_000][rng.gen_range(0..5)],
            lock_delay_ms: [None, None, Some(0), Some(2_500)][rng.gen_range(0..4)],
            force: [Force::Revoke, Force::Revoke, Force::Unsafe, Force::None][rng.gen_range(0..4)],
        }
    }

    pub(super) fn attachment(&mut self) -> Attachment {
        Attachment {
            stream: self.stream(),
            number: self.rng.gen_range(1..=3),
        }
    }

    pub(super) fn via(&mut self) -> Via {
        match self.rng.gen_range(0..10) {
            0 => Via::Unary,
            1..7 if self.streams => Via::Stream(self.stream()),
            _ => Via::Anywhere,
        }
    }

    /// Of the broker of the step.
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
            Kind::Exclusive => Mode::Exclusive,
            Kind::SharedToo => shared[self.rng.gen_range(0..3)],
            Kind::Semaphore => semaphore,
            Kind::Mixed => [shared[self.rng.gen_range(0..3)], semaphore][self.rng.gen_range(0..2)],
        }
    }

    fn terms(&mut self) -> Terms {
        Terms {
            max_hold_ms: [0, 0, 0, 0, 700, 4_000, 30_000][self.rng.gen_range(0..7)],
            lock_delay_ms: [0, 0, 0, 0, 0, 1_500, 8_000][self.rng.gen_range(0..7)],
            disconnect_grace_ms: [None, None, Some(0), Some(900)][self.rng.gen_range(0..4)],
        }
    }

    /// A call of its own lease, or one that adds the lock to the lease of another call.
    pub(super) fn new_call(&mut self) -> Acquire {
        let mode = self.mode();
        let terms = self.terms();
        let adds_to = match self.reentrant && self.rng.gen_bool(0.4) {
            true => self.calls.choose(&mut self.rng).map(|call| call.lease_id),
            false => None,
        };
        let rng = &mut self.rng;
        let request = RequestHash::parse(&id(rng, 26)).expect("an id");
        let reason = ["", "a|b", "\"ä,\n%\\"][rng.gen_range(0..3)];
        Acquire {
            lock: self.lock.clone(),
            mode,
            lease_id: adds_to.unwrap_or(LeaseId::parse(&id(rng, 26)).expect("an id")),
            under: adds_to.map_or(Under::NewLease, |_| Under::Lease),
            stream: None,
            request,
            arguments: ArgumentsHash::of(&[ARGUMENTS[0]]),
            attempt: AttemptId::parse(&id(rng, 13)).expect("an id"),
            ttl: Ttl::from_stored(TTLS_MS[rng.gen_range(if self.reentrant { 1..3 } else { 0..3 })]),
            terms,
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
