//! Actions of clients, brokers and the adversary.

use std::fmt;

use leasehold_server::lock::{Mode, RevokeMode};

use super::keys::{AttemptKey, CallKey, ClientIndex, LockIndex, MessageKey, TaskKey};

/// Change of the world. An action that does not apply changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes, in milliseconds.
    Advance(u32),
    /// A message in flight arrives.
    Deliver(MessageKey),
    /// A message in flight is lost.
    Drop(MessageKey),
    /// A message in flight arrives, and remains in flight.
    Repeat(MessageKey),
    /// A broker stops to wait for the reply to its store command, which may still be executed.
    GiveUp(TaskKey),
    /// A broker is killed, and starts again as another process.
    Kill(u8),
    /// A broker touches a lock.
    Touch { broker: u8, lock: LockIndex },
    /// A broker detects that a waiting call has waited for its whole time.
    TimeOut(TaskKey),
    /// A broker sends the cancellation of a rollback.
    Cancel(TaskKey),
    /// A broker reads the era of the store.
    Verify(u8),
    /// The store writes a snapshot.
    Save,
    /// The store loses what it executed since a snapshot, and grants nothing for `Q`.
    RollBack { saves_ago: u8 },
    /// A replica with the data of a snapshot is promoted, while its master still runs.
    Promote { saves_ago: u8 },
    /// An operator sets or removes the limit of a lock.
    SetLimit { lock: LockIndex, limit: Option<u32> },
    /// An operator closes a lock, for a time in milliseconds.
    Close { lock: LockIndex, for_ms: u32 },
    /// An operator opens a lock.
    OpenLock { lock: LockIndex },
    /// An operator revokes a lock of a lease.
    Revoke {
        lock: LockIndex,
        lease: CallKey,
        mode: RevokeMode,
    },
    /// A client begins a call.
    Acquire(Box<CallArguments>),
    /// A client sends a call once more.
    Retry { attempt: AttemptKey, broker: u8 },
    /// A client opens a stream at a broker. Its former stream breaks.
    Open { client: ClientIndex, broker: u8 },
    /// The stream of a client breaks.
    Break(ClientIndex),
    /// A client sends a heartbeat.
    Heartbeat(ClientIndex),
    /// A client attaches a lease to its stream.
    Attach { client: ClientIndex, lease: CallKey },
    /// A client drops an RPC.
    Abandon { attempt: AttemptKey, operation: u8 },
    /// A client renews a lease.
    Renew {
        client: ClientIndex,
        operation: u8,
        lease: CallKey,
        broker: u8,
    },
    /// A client releases a lease or a part of it.
    Release {
        client: ClientIndex,
        operation: u8,
        lease: CallKey,
        part: ReleasePart,
        broker: u8,
    },
}

/// Part of a lease that is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleasePart {
    /// The whole lease.
    All,
    /// One lock.
    Lock(LockIndex),
    /// The entry of one call in one lock.
    Entry(LockIndex, CallKey),
}

/// Arguments of an Acquire or AcquireAll call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallArguments {
    pub call: CallKey,
    /// Broker that receives the first attempt.
    pub broker: u8,
    /// Locks in the order of their names.
    pub targets: Vec<Target>,
    /// Lease to which the lock is added.
    pub under: Option<CallKey>,
    pub ttl_ms: u64,
    pub wait_ms: u64,
    pub lock_delay_ms: u64,
    /// Time for which the locks stay closed after the grant.
    pub at_least_ms: u64,
    /// True to send the call on the stream of the client.
    pub is_on_stream: bool,
    pub disconnect_grace_ms: Option<u64>,
    /// Longest hold. `None` for no limit.
    pub max_hold_ms: Option<u64>,
}

/// A lock of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    pub lock: LockIndex,
    pub mode: Mode,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Advance(ms) => write!(f, "{ms} ms pass"),
            Self::Deliver(message) => write!(f, "deliver {message}"),
            Self::Drop(message) => write!(f, "lose {message}"),
            Self::Repeat(message) => write!(f, "deliver {message}, which stays in flight"),
            Self::GiveUp(task) => write!(f, "the broker gives up the command of {task}"),
            Self::Kill(broker) => write!(f, "broker {broker} is killed and starts again"),
            Self::Touch { broker, lock } => write!(f, "broker {broker} touches lock {lock}"),
            Self::TimeOut(task) => write!(f, "the wait of {task} times out"),
            Self::Cancel(task) => write!(f, "{task} is sent"),
            Self::Verify(broker) => write!(f, "broker {broker} reads the era"),
            Self::Save => write!(f, "the store writes a snapshot"),
            Self::Promote { saves_ago } => {
                write!(
                    f,
                    "a replica with snapshot {saves_ago} (0 is the last) is promoted, its master runs on"
                )
            }
            Self::RollBack { saves_ago } => {
                write!(
                    f,
                    "the store loses what followed its snapshot {saves_ago} (0 is the last)"
                )
            }
            Self::Revoke { lock, lease, mode } => {
                write!(
                    f,
                    "an operator revokes lock {lock} of lease {lease}: {mode:?}"
                )
            }
            Self::SetLimit { lock, limit } => write!(f, "limit of lock {lock}: {limit:?}"),
            Self::Close { lock, for_ms } => {
                write!(f, "an operator closes lock {lock} for {for_ms} ms")
            }
            Self::OpenLock { lock } => write!(f, "an operator opens lock {lock}"),
            Self::Acquire(call) => write!(f, "{call}"),
            Self::Retry { attempt, broker } => {
                write!(
                    f,
                    "client {} repeats {attempt} at broker {broker}",
                    attempt.call.client
                )
            }
            Self::Open { client, broker } => {
                write!(f, "client {client} opens a stream at broker {broker}")
            }
            Self::Break(client) => write!(f, "the stream of client {client} breaks"),
            Self::Heartbeat(client) => write!(f, "client {client} sends a heartbeat"),
            Self::Attach { client, lease } => {
                write!(f, "client {client} attaches lease {lease} to its stream")
            }
            Self::Abandon { attempt, .. } => {
                write!(f, "client {} abandons {attempt}", attempt.call.client)
            }
            Self::Renew {
                client,
                operation,
                lease,
                broker,
            } => write!(
                f,
                "client {client} renews lease {lease} at broker {broker} (operation {client}-{operation})"
            ),
            Self::Release {
                client,
                operation,
                lease,
                part,
                broker,
            } => write!(
                f,
                "client {client} releases {part:?} of lease {lease} at broker {broker} (operation {client}-{operation})"
            ),
        }
    }
}

impl fmt::Display for CallArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} acquires", self.call.client)?;
        for target in &self.targets {
            write!(f, " lock {} ({:?})", target.lock, target.mode)?;
        }
        if let Some(lease) = self.under {
            write!(f, " under lease {lease}")?;
        }
        write!(
            f,
            " as {} at broker {}: ttl {} ms, wait {} ms, at least {} ms",
            self.call, self.broker, self.ttl_ms, self.wait_ms, self.at_least_ms
        )
    }
}
