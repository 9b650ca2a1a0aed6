//! Actions of clients, brokers and the adversary of a RedLock store.

use std::fmt;

use crate::model::{
    action::{CallArguments, ReleasePart},
    keys::{AttemptKey, CallKey, ClientIndex, MessageKey, TaskKey},
};

/// Change of the world. An action that does not apply changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedlockAction {
    /// Time passes, in milliseconds.
    Advance(u32),
    /// A message in flight arrives.
    Deliver(MessageKey),
    /// A message in flight is lost.
    Drop(MessageKey),
    /// A message in flight arrives, and remains in flight.
    Repeat(MessageKey),
    /// A broker stops to wait for the reply of a node to this command.
    GiveUp(MessageKey),
    /// A broker stops to wait for the votes of a round, because its time is up.
    EndRound(TaskKey),
    /// A broker is killed, and starts again as another process.
    Kill(u8),
    /// A broker requests the lock for a call in its queue.
    Try(AttemptKey),
    /// A broker looks for grants that its waiting calls have missed.
    Touch(u8),
    /// A broker detects that a waiting call has waited for its whole time.
    TimeOut(AttemptKey),
    /// A broker sends the cancellation of a rollback.
    Cancel(TaskKey),
    /// A broker reads the era of a node.
    Verify { broker: u8, node: u8 },
    /// A node writes a snapshot.
    Save(u8),
    /// A node restarts with the data of a snapshot, and does not vote for `Q`.
    Restart { node: u8, saves_ago: u8 },
    /// A client begins a call.
    Acquire(Box<CallArguments>),
    /// A client sends a call once more.
    Retry { attempt: AttemptKey, broker: u8 },
    /// A client opens a stream at a broker, in place of its former stream.
    Open { client: ClientIndex, broker: u8 },
    /// A client sends a heartbeat.
    Heartbeat(ClientIndex),
    /// A client attaches a lease to its stream.
    Attach {
        client: ClientIndex,
        operation: u8,
        lease: CallKey,
    },
    /// A client drops an RPC.
    Abandon { attempt: AttemptKey, operation: u8 },
    /// A client renews a lease.
    Renew {
        client: ClientIndex,
        operation: u8,
        lease: CallKey,
        broker: u8,
    },
    /// A client releases a lease or the entry of a call.
    Release {
        client: ClientIndex,
        operation: u8,
        lease: CallKey,
        part: ReleasePart,
        broker: u8,
    },
}

impl fmt::Display for RedlockAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Advance(ms) => write!(f, "{ms} ms pass"),
            Self::Deliver(message) => write!(f, "deliver {message}"),
            Self::Drop(message) => write!(f, "lose {message}"),
            Self::Repeat(message) => write!(f, "deliver {message}, which stays in flight"),
            Self::GiveUp(message) => write!(f, "the broker gives up {message}"),
            Self::EndRound(task) => write!(f, "the time of a round of {task} is up"),
            Self::Kill(broker) => write!(f, "broker {broker} is killed and starts again"),
            Self::Try(attempt) => write!(f, "the broker requests the lock for {attempt}"),
            Self::Touch(broker) => write!(f, "broker {broker} looks for missed grants"),
            Self::TimeOut(attempt) => write!(f, "the wait of {attempt} times out"),
            Self::Cancel(task) => write!(f, "{task} is sent"),
            Self::Verify { broker, node } => {
                write!(f, "broker {broker} reads the era of node {node}")
            }
            Self::Save(node) => write!(f, "node {node} writes a snapshot"),
            Self::Restart { node, saves_ago } => write!(
                f,
                "node {node} restarts with its snapshot {saves_ago} (0 is the last)"
            ),
            Self::Acquire(call) => write!(f, "{call}"),
            Self::Retry { attempt, broker } => write!(
                f,
                "client {} repeats {attempt} at broker {broker}",
                attempt.call.client
            ),
            Self::Open { client, broker } => {
                write!(f, "client {client} opens a stream at broker {broker}")
            }
            Self::Heartbeat(client) => write!(f, "client {client} sends a heartbeat"),
            Self::Attach {
                client,
                operation,
                lease,
            } => write!(
                f,
                "client {client} attaches lease {lease} to its stream (operation {client}-{operation})"
            ),
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
