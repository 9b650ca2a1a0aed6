//! Clients of the model: their calls, and the leases that they trust.

use std::collections::BTreeMap;

use super::{
    action::{CallArguments, ReleasePart, Target},
    broker::{Failure, GrantedLock},
    keys::{CallKey, LockIndex, StreamKey},
    properties::weight_of,
};

/// A client. It trusts a lock until the time at which it sent the call whose success was reported,
/// plus the ttl on its own clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelClient {
    /// Duration of a second of the client's clock, in tenths of a second: 8 to 12 (assumption A2).
    pub clock_tenths: u64,
    pub calls: BTreeMap<u8, ClientCall>,
    /// Leases by the call that created them.
    pub leases: BTreeMap<CallKey, ClientLease>,
    /// The stream that the client uses, and its broker.
    pub stream: Option<OpenStream>,
    /// Number of streams that the client has opened.
    pub streams_opened: u8,
}

/// A stream, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpenStream {
    pub key: StreamKey,
    pub broker: u8,
}

/// A call of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCall {
    pub arguments: CallArguments,
    /// Lease to which the lock is added, as it is presented in all attempts.
    pub presented: Vec<PresentedLock>,
    /// Brokers to which the attempts were sent.
    pub attempts: BTreeMap<u8, u8>,
    pub state: CallState,
}

/// State of a call, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallState {
    Open,
    Granted,
    /// The call was rejected for good, or its client does not want it any longer.
    Ended,
}

/// A lease, as its client knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientLease {
    pub locks: BTreeMap<LockIndex, TrustedLock>,
    /// Locks that the client released from the lease.
    pub released: BTreeMap<LockIndex, ReleasedLock>,
    pub state: LeaseState,
    pub ttl_ms: u64,
    /// True if the client has released the entry of a call.
    pub has_released_entries: bool,
    /// Stream to which the lease is attached.
    pub stream: Option<StreamKey>,
    /// Number of attachments that the client has requested.
    pub attachments: u32,
    /// True if the lease may end before its validity, because its stream broke and the lease has a
    /// `disconnect_grace`.
    pub may_lapse: bool,
    pub has_grace: bool,
}

/// State of a lease, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseState {
    Held,
    Lost,
    Released,
}

/// A lock that a client holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TrustedLock {
    pub token: u64,
    pub trusted_until_us: u64,
    /// Newest era in which the store confirmed the hold.
    pub era: u32,
    /// Calls that entered the lock.
    pub entries: BTreeMap<CallKey, TrustedEntry>,
    pub max_hold_until_us: Option<u64>,
}

/// The entry of a call in a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TrustedEntry {
    pub weight: u32,
    /// Era in which the store granted the entry.
    pub era: u32,
}

/// A lock that was released from a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReleasedLock {
    /// The lock, as it was held before.
    pub held: TrustedLock,
    pub released_at_us: u64,
    /// True if all entries were released, also those of calls without a reply.
    pub is_whole: bool,
}

/// A lock of a lease, as a client presents it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PresentedLock {
    pub lock: LockIndex,
    pub token: u64,
}

/// Reply of a broker to a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientReply {
    Granted {
        call: CallKey,
        stream: Option<StreamKey>,
        sent_us: u64,
        locks: Vec<GrantedLock>,
    },
    /// A lease is attached to a stream. Its validity is unchanged.
    Attached { lease: CallKey, stream: StreamKey },
    Refused {
        call: CallKey,
        presented: Vec<PresentedLock>,
        failure: Failure,
    },
    Renewed {
        lease: CallKey,
        sent_us: u64,
        locks: Vec<GrantedLock>,
    },
    RenewalFailed {
        lease: CallKey,
        presented: Vec<PresentedLock>,
        failure: Failure,
    },
}

impl ModelClient {
    /// Creates a client whose clock counts a second in `clock_tenths` tenths of a second.
    #[must_use]
    pub fn new(clock_tenths: u64) -> Self {
        Self {
            clock_tenths,
            calls: BTreeMap::new(),
            leases: BTreeMap::new(),
            stream: None,
            streams_opened: 0,
        }
    }

    /// Handles a reply that grants locks to a call.
    pub fn on_granted(
        &mut self,
        call: CallKey,
        stream: Option<StreamKey>,
        sent_us: u64,
        locks: &[GrantedLock],
    ) {
        let current = self.stream.map(|stream| stream.key);
        let Some(known) = self.calls.get_mut(&call.number) else {
            return;
        };
        let is_first = known.state == CallState::Open;
        if known.state == CallState::Ended {
            return;
        }
        known.state = CallState::Granted;
        let arguments = known.arguments.clone();
        let lease = arguments.under.unwrap_or(call);
        if is_first && arguments.under.is_none() {
            let attachments = u32::try_from(known.attempts.len()).unwrap_or(u32::MAX);
            let created = ClientLease {
                stream,
                attachments,
                has_grace: arguments.disconnect_grace_ms.is_some(),
                may_lapse: stream.is_some_and(|stream| Some(stream) != current),
                ..ClientLease::new(arguments.ttl_ms)
            };
            self.leases.insert(lease, created);
        }
        let trusted_until_us = self.trusted_until_us(sent_us, locks);
        let Some(lease) = self.leases.get_mut(&lease) else {
            return;
        };
        if lease.state != LeaseState::Held {
            return;
        }
        for granted in locks {
            let target = arguments
                .targets
                .iter()
                .find(|target| target.lock == granted.lock);
            match target.filter(|_| is_first) {
                Some(_) if lease.was_released(granted) => continue,
                Some(target) => lease.enter(call, &arguments, target, granted),
                None if !lease.has(granted) => continue,
                None => {}
            }
            lease.trust(granted, trusted_until_us);
        }
    }

    /// Handles the end of the client's stream.
    pub fn on_broken(&mut self) {
        let broken = self.stream.take().map(|stream| stream.key);
        for lease in self.leases.values_mut() {
            lease.may_lapse |= lease.stream.is_some() && lease.stream == broken;
        }
    }

    /// Handles a reply that renews a lease.
    pub fn on_renewed(&mut self, lease: CallKey, sent_us: u64, locks: &[GrantedLock]) {
        let trusted_until_us = self.trusted_until_us(sent_us, locks);
        if let Some(lease) = self.leases.get_mut(&lease) {
            for granted in locks {
                if lease.has(granted) {
                    lease.trust(granted, trusted_until_us);
                }
            }
        }
    }

    /// Returns the end of the validity of locks that were granted or renewed together.
    fn trusted_until_us(&self, sent_us: u64, locks: &[GrantedLock]) -> u64 {
        let ttl_ms = locks.iter().map(|granted| granted.ttl_ms).min();
        sent_us + ttl_ms.unwrap_or(0) * 100 * self.clock_tenths
    }
}

impl TrustedLock {
    /// Returns the weight of the strongest entry.
    #[must_use]
    pub fn weight(&self) -> u32 {
        let weights = self.entries.values().map(|entry| entry.weight);
        weights.max().unwrap_or(0)
    }
}

impl ClientLease {
    fn new(ttl_ms: u64) -> Self {
        Self {
            locks: BTreeMap::new(),
            released: BTreeMap::new(),
            state: LeaseState::Held,
            ttl_ms,
            has_released_entries: false,
            stream: None,
            attachments: 0,
            may_lapse: false,
            has_grace: false,
        }
    }

    /// Returns the locks as the client presents them: those it has, and those it released less
    /// than a ttl ago.
    #[must_use]
    pub fn presented(&self, now_us: u64) -> Vec<PresentedLock> {
        let held = self.locks.iter().map(|(&lock, held)| PresentedLock {
            lock,
            token: held.token,
        });
        let recent = self.released.iter().filter(|(lock, released)| {
            !self.locks.contains_key(lock) && now_us < released.released_at_us + self.ttl_ms * 1_000
        });
        let recent = recent.map(|(&lock, released)| PresentedLock {
            lock,
            token: released.held.token,
        });
        held.chain(recent).collect()
    }

    /// Stops to trust a part of the lease. Returns the locks to release. `has_open_calls` is true if
    /// calls that add locks to the lease have no reply.
    pub fn release(
        &mut self,
        part: ReleasePart,
        now_us: u64,
        has_open_calls: bool,
    ) -> Vec<PresentedLock> {
        self.has_released_entries |= matches!(part, ReleasePart::Entry(..));
        let locks: Vec<_> = match part {
            ReleasePart::All => self.locks.keys().copied().collect(),
            ReleasePart::Lock(lock) | ReleasePart::Entry(lock, _) => vec![lock],
        };
        let mut presented = Vec::new();
        for lock in locks {
            let Some(held) = self.locks.get_mut(&lock) else {
                continue;
            };
            let token = held.token;
            presented.push(PresentedLock { lock, token });
            if let ReleasePart::Entry(_, call) = part {
                held.entries.remove(&call);
                if !held.entries.is_empty() {
                    continue;
                }
            }
            if let Some(held) = self.locks.remove(&lock) {
                let released = ReleasedLock {
                    held,
                    released_at_us: now_us,
                    is_whole: !matches!(part, ReleasePart::Entry(..)),
                };
                self.released.insert(lock, released);
            }
        }
        if part == ReleasePart::All || self.locks.is_empty() && !has_open_calls {
            self.state = LeaseState::Released;
        }
        presented
    }

    fn enter(
        &mut self,
        call: CallKey,
        arguments: &CallArguments,
        target: &Target,
        granted: &GrantedLock,
    ) {
        let entered = self.locks.entry(granted.lock).or_insert(TrustedLock {
            token: granted.token,
            trusted_until_us: 0,
            era: 0,
            entries: BTreeMap::new(),
            max_hold_until_us: None,
        });
        if entered.token != granted.token {
            entered.entries.clear();
            entered.token = granted.token;
        }
        let entry = TrustedEntry {
            weight: weight_of(target.mode),
            era: granted.era,
        };
        entered.entries.insert(call, entry);
        if let Some(max_hold_ms) = arguments.max_hold_ms {
            let until_us = granted.granted_at_us + max_hold_ms * 1_000;
            entered.max_hold_until_us.get_or_insert(until_us);
        }
    }

    /// Returns true if the store may have lost an entry that the client trusts, and kept one that the
    /// client has released: the store ends the hold with that entry, and grants nothing until the
    /// hold would have expired.
    #[must_use]
    pub fn may_lack_entries(&self, held: &TrustedLock, era: u32) -> bool {
        self.has_released_entries && held.entries.values().any(|entry| entry.era < era)
    }

    /// Returns true if the client has released the hold that a reply confirms, or a later one of the
    /// same lease: the store grants the lock again only after the end of the earlier hold.
    fn was_released(&self, granted: &GrantedLock) -> bool {
        let released = self.released.get(&granted.lock);
        released.is_some_and(|released| released.is_whole && granted.token <= released.held.token)
    }

    fn has(&self, granted: &GrantedLock) -> bool {
        let held = self.locks.get(&granted.lock);
        held.is_some_and(|held| held.token == granted.token)
    }

    fn trust(&mut self, granted: &GrantedLock, until_us: u64) {
        if let Some(held) = self.locks.get_mut(&granted.lock) {
            held.trusted_until_us = held.trusted_until_us.max(until_us);
            held.era = held.era.max(granted.era);
        }
    }
}
