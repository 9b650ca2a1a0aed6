//! Keys of calls, tasks and messages, and the ids that are derived from them.
//!
//! A key is derived from its client, call and attempt. Removing another call from a history does not
//! change it, so that the shorter history can be repeated.

use std::fmt;

use leasehold_server::lock::{
    ArgumentsHash, AttemptId, BrokerId, LeaseId, LockKey, LockName, Namespace, RequestHash,
    StreamId,
};

/// Index of a client.
pub type ClientIndex = u8;
/// Index of a lock.
pub type LockIndex = u8;

/// An Acquire call of a client, and the lease that it creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey {
    pub client: ClientIndex,
    pub number: u8,
}

/// One RPC of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey {
    pub call: CallKey,
    pub number: u8,
}

/// A process of a broker. A broker that starts again is another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    pub broker: u8,
    pub start: u8,
}

/// A lease stream of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    pub client: ClientIndex,
    /// Number of the stream among those of the client.
    pub number: u8,
}

/// A task of a broker, or of a client, that sends messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskKey {
    /// An RPC that acquires locks.
    Acquire(AttemptKey),
    /// Requests to the nodes of a RedLock store for a call that waits.
    Election(AttemptKey),
    /// The rollback of an RPC at one lock.
    Rollback(AttemptKey, LockIndex),
    /// A renewal, release or cancellation that a client requests.
    Operation(ClientIndex, u8),
    /// A touch of a lock by a broker.
    Touch(ProcessKey, LockIndex),
    /// Messages of a client on a stream.
    Stream(StreamKey),
    /// Renewals of a lease for the heartbeats of a stream.
    Renewal(StreamKey, CallKey),
    /// The end of a lease whose stream broke longer than its `disconnect_grace` ago.
    Lapse(StreamKey, CallKey),
}

/// A message: the task that caused it, and its number among the messages of this task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    pub task: TaskKey,
    pub number: u16,
}

impl CallKey {
    /// Returns the id of the lease that the call creates.
    #[must_use]
    pub fn lease_id(self) -> LeaseId {
        LeaseId::parse(&self.id('l', 26)).expect("an id")
    }

    #[must_use]
    pub fn request(self) -> RequestHash {
        RequestHash::parse(&self.id('r', 26)).expect("an id")
    }

    /// Returns the digest of the arguments, which are equal in all attempts.
    #[must_use]
    pub fn arguments(self) -> ArgumentsHash {
        ArgumentsHash::of(&[&[self.client, self.number]])
    }

    /// Returns the call of a request, from the owner of a waiter or holder.
    #[must_use]
    pub fn from_owner(owner: &str) -> Option<Self> {
        let (client, number) = owner.split_once('-')?;
        Some(Self {
            client: client.parse().ok()?,
            number: number.parse().ok()?,
        })
    }

    fn id(self, kind: char, length: usize) -> String {
        padded(
            &format!("{kind}{}", letters(&[self.client, self.number])),
            length,
        )
    }
}

impl AttemptKey {
    #[must_use]
    pub fn id(self) -> AttemptId {
        let text = letters(&[self.call.client, self.call.number, self.number]);
        AttemptId::parse(&padded(&format!("a{text}"), 13)).expect("an id")
    }
}

impl AttemptKey {
    /// Returns the id of an attempt by which a broker requests the lock for a call that waits.
    #[must_use]
    pub fn try_id(self, try_number: u8) -> AttemptId {
        let numbers = [self.call.client, self.call.number, self.number, try_number];
        AttemptId::parse(&padded(&format!("t{}", letters(&numbers)), 13)).expect("an id")
    }
}

impl StreamKey {
    /// Returns the id of the stream at a broker process.
    #[must_use]
    pub fn id(self, process: ProcessKey) -> StreamId {
        StreamId {
            broker: process.id(),
            epoch: u64::from(self.client) * 256 + u64::from(self.number),
        }
    }
}

impl ProcessKey {
    #[must_use]
    pub fn id(self) -> BrokerId {
        let text = letters(&[self.broker, self.start]);
        BrokerId::parse(&padded(&format!("b{text}"), 16)).expect("an id")
    }
}

/// Returns the name of a lock.
#[must_use]
pub fn lock_key(lock: LockIndex) -> LockKey {
    LockKey::new(
        Namespace::parse("default").expect("a namespace"),
        LockName::parse(&format!("model/{lock}")).expect("a name"),
    )
}

/// Returns two letters for each number.
fn letters(numbers: &[u8]) -> String {
    let digits = numbers.iter().flat_map(|number| [number / 16, number % 16]);
    digits.map(|digit| char::from(b'a' + digit)).collect()
}

fn padded(text: &str, length: usize) -> String {
    format!("{text:z<length$}")
}

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.client, self.number)
    }
}

impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.call, self.number)
    }
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broker {}.{}", self.broker, self.start)
    }
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}-{}", self.client, self.number)
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(attempt) => write!(f, "acquire {attempt}"),
            Self::Election(attempt) => write!(f, "election for {attempt}"),
            Self::Rollback(attempt, lock) => write!(f, "rollback {attempt} of lock {lock}"),
            Self::Operation(client, number) => write!(f, "operation {client}-{number}"),
            Self::Touch(process, lock) => write!(f, "touch of lock {lock} by {process}"),
            Self::Stream(stream) => write!(f, "{stream}"),
            Self::Renewal(stream, lease) => write!(f, "renewal of lease {lease} on {stream}"),
            Self::Lapse(stream, lease) => write!(f, "lapse of lease {lease} of {stream}"),
        }
    }
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.task, self.number)
    }
}
