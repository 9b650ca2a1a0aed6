//! Brokers of the model: the commands that a broker sends for a call, and what it makes of their
//! replies. The same steps as those of `broker::acquire` in the server.

mod acquire;
mod renewals;

use std::collections::BTreeMap;

use leasehold_server::{
    lock::{Attachment, ExpectedAttachment, FencingToken, LeaseRef, ReleaseScope},
    store::{HandOff, LeaseRejection},
};

pub use self::{
    acquire::{AcquirePhase, AcquireRequest, AcquireTask, HandOffSignal, RequestStream, Signal},
    renewals::Renewals,
};
use super::{
    client::{ClientReply, PresentedLock},
    keys::{AttemptKey, CallKey, LockIndex, ProcessKey, StreamKey, TaskKey, lock_key},
    world::{Body, Reply, World},
};
use crate::differential::steps::{StoreCommand, StoreReply};

/// Time in which a client can repeat an RPC before its attempt is rolled back.
pub const REPEAT_GRACE_US: u64 = 1_000_000;
/// Pause after a rollback that failed.
const ROLLBACK_RETRY_US: u64 = 500_000;

/// A broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelBroker {
    pub process: ProcessKey,
    /// Era of the store that the broker has verified.
    pub era: u32,
    pub tasks: BTreeMap<TaskKey, Task>,
    /// Locks for which calls wait.
    pub queues: BTreeMap<LockIndex, BrokerQueue>,
    pub streams: BTreeMap<StreamKey, BrokerStream>,
}

/// A lease stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct BrokerStream {
    /// True if the broker has detected that the stream is broken.
    pub is_broken: bool,
    /// Time at which the newest heartbeat was sent that the broker has read.
    pub heartbeat_sent_us: u64,
    pub leases: BTreeMap<CallKey, StreamLease>,
}

/// A lease that is attached to a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct StreamLease {
    pub locks: Vec<PresentedLock>,
    pub disconnect_grace_ms: Option<u64>,
}

/// State of a broker for a lock for which calls wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BrokerQueue {
    /// Time at which the last touch with a reply was sent.
    pub touch_sent_us: u64,
    /// Era in which the calls are queued.
    pub era: Option<u32>,
}

/// A task of a broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Task {
    Acquire(Box<AcquireTask>),
    Operation(OperationTask),
    Rollback(RollbackTask),
    Touch(TouchTask),
}

/// A renewal or a release.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OperationTask {
    pub operation: Operation,
    renewals: Renewals,
}

/// An operation on the locks of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operation {
    pub lease: CallKey,
    pub presented: Vec<PresentedLock>,
    /// Stream on which the operation was requested.
    pub stream: Option<StreamKey>,
    pub kind: OperationKind,
}

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// A renewal for a message that was sent at this time.
    Renew {
        sent_us: u64,
    },
    Release(ReleaseScope),
    /// An attachment with this number.
    Attach {
        number: u32,
    },
}

/// A touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TouchTask {
    /// Number of the command.
    pub command: u16,
    pub sent_us: u64,
}

/// The rollback of an attempt at one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RollbackTask {
    /// Time before which the client can repeat the call.
    pub not_before_us: u64,
    /// Number of the command in flight.
    pub in_flight: Option<u16>,
}

/// A lock that the store granted or renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrantedLock {
    pub lock: LockIndex,
    pub token: u64,
    pub ttl_ms: u64,
    /// Time at which the lock was granted first.
    pub granted_at_us: u64,
    /// Era of the store at that time.
    pub era: u32,
}

/// Error of a call, as far as the model distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    LeaseExpired,
    LeaseNotFound,
    LeaseRevoked,
    MaxHold,
    StaleAttach,
    LeaseReleased,
    Held,
    WaitTimeout,
    StillQueued,
    /// Another rejection, after which the client gives up.
    Rejected,
    /// The outcome is unknown, or a repeat can succeed.
    Unavailable,
}

impl From<&LeaseRejection> for Failure {
    fn from(rejection: &LeaseRejection) -> Self {
        match rejection {
            LeaseRejection::Elsewhere => Self::StaleAttach,
            LeaseRejection::MaxHold => Self::MaxHold,
            LeaseRejection::Revoked { .. } => Self::LeaseRevoked,
            LeaseRejection::Expired => Self::LeaseExpired,
            LeaseRejection::Released => Self::LeaseReleased,
            LeaseRejection::NotFound => Self::LeaseNotFound,
        }
    }
}

impl Failure {
    /// Returns true if the lease to which the failure refers has ended.
    #[must_use]
    pub fn ends_lease(self) -> bool {
        matches!(
            self,
            Self::LeaseExpired
                | Self::LeaseNotFound
                | Self::LeaseRevoked
                | Self::MaxHold
                | Self::LeaseReleased
        )
    }
}

impl OperationTask {
    /// Returns the lease of the renewal or release.
    #[must_use]
    pub fn lease(&self) -> CallKey {
        self.operation.lease
    }

    /// Returns the oldest command without a reply.
    #[must_use]
    pub fn in_flight(&self) -> Option<u16> {
        self.renewals.in_flight()
    }
}

impl ModelBroker {
    #[must_use]
    pub fn new(process: ProcessKey, era: u32) -> Self {
        Self {
            process,
            era,
            tasks: BTreeMap::new(),
            queues: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }
}

/// Returns the attachment that a command for a call or operation requires.
pub(super) fn expected_attachment(
    stream: Option<StreamKey>,
    process: ProcessKey,
) -> ExpectedAttachment {
    stream.map_or(ExpectedAttachment::None, |stream| {
        ExpectedAttachment::Stream(stream.id(process))
    })
}

/// Returns the reference to a lock of a lease.
pub(super) fn lease_ref(lease: CallKey, presented: PresentedLock) -> LeaseRef {
    LeaseRef {
        lock: lock_key(presented.lock),
        lease_id: lease.lease_id(),
        fencing_token: FencingToken::new(presented.token).expect("a token"),
    }
}

impl World {
    /// Starts an operation at a broker.
    pub(super) fn start_operation(&mut self, broker: usize, key: TaskKey, operation: Operation) {
        let Operation {
            lease,
            presented,
            stream,
            kind,
        } = &operation;
        let process = self.brokers[broker].process;
        let expected = expected_attachment(*stream, process);
        let commands = presented.iter().map(|presented| {
            let lease = lease_ref(*lease, *presented);
            match (kind, stream) {
                (OperationKind::Renew { .. }, _) => StoreCommand::Renew(lease, None, expected),
                (OperationKind::Release(scope), _) => {
                    StoreCommand::Release(lease, *scope, expected)
                }
                (OperationKind::Attach { number }, stream) => {
                    let stream = stream.expect("the stream of an attachment").id(process);
                    let number = *number;
                    StoreCommand::Attach(lease, Attachment { stream, number })
                }
            }
        });
        let commands: Vec<_> = commands.collect();
        let mut renewals = Renewals::new(presented.clone());
        for command in commands {
            renewals.send(self, broker, key, command);
        }
        let task = OperationTask {
            operation,
            renewals,
        };
        self.brokers[broker]
            .tasks
            .insert(key, Task::Operation(task));
    }

    /// Handles the reply to a command, or the end of the wait for it (`None`).
    pub(super) fn on_reply(
        &mut self,
        broker: usize,
        key: TaskKey,
        command: u16,
        reply: Option<&Reply>,
    ) {
        let Some(task) = self.brokers[broker].tasks.remove(&key) else {
            return;
        };
        let task = match task {
            Task::Acquire(task) => self.acquire_reply(broker, key, task, (command, reply)),
            Task::Operation(task) => self.operation_reply(broker, key, task, (command, reply)),
            Task::Rollback(task) => self.rollback_reply(task, command, reply),
            Task::Touch(touch) if touch.command == command => {
                self.touch_reply(broker, touch, reply);
                None
            }
            Task::Touch(touch) => Some(Task::Touch(touch)),
        };
        if let Some(task) = task {
            self.brokers[broker].tasks.insert(key, task);
        }
    }

    fn operation_reply(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: OperationTask,
        (command, reply): (u16, Option<&Reply>),
    ) -> Option<Task> {
        task.renewals.receive(command, reply);
        if !task.renewals.is_complete() {
            return Some(Task::Operation(task));
        }
        let Operation {
            lease,
            stream,
            kind,
            ..
        } = task.operation;
        let surviving = task.renewals.surviving();
        let reply = match (kind, surviving, stream) {
            (OperationKind::Release(_), ..) | (_, Err(Failure::Unavailable), Some(_)) => None,
            (_, Err(failure), _) => {
                if let Some(stream) = stream {
                    self.detach(broker, stream, lease);
                }
                let presented = task.renewals.presented();
                Some(ClientReply::RenewalFailed {
                    lease,
                    presented,
                    failure,
                })
            }
            (OperationKind::Renew { sent_us }, Ok(locks), _) => Some(ClientReply::Renewed {
                lease,
                sent_us,
                locks,
            }),
            (OperationKind::Attach { .. }, Ok(locks), stream) => {
                let stream = stream.expect("the stream of an attachment");
                self.add_to_stream(broker, stream, lease, &locks);
                Some(ClientReply::Attached { lease, stream })
            }
        };
        if let Some(reply) = reply {
            self.send(key, Body::ToClient(reply));
        }
        None
    }

    /// Adds locks to a lease of a stream.
    pub(super) fn add_to_stream(
        &mut self,
        broker: usize,
        stream: StreamKey,
        lease: CallKey,
        locks: &[GrantedLock],
    ) {
        let known = &self.clients[usize::from(lease.client)].calls[&lease.number];
        let disconnect_grace_ms = known.arguments.disconnect_grace_ms;
        let now_us = self.now_us;
        let streams = &mut self.brokers[broker].streams;
        let stream_state = streams.entry(stream).or_default();
        let held = stream_state.leases.entry(lease).or_default();
        held.disconnect_grace_ms = disconnect_grace_ms;
        for granted in locks {
            held.locks.retain(|held| held.lock != granted.lock);
            held.locks.push(PresentedLock {
                lock: granted.lock,
                token: granted.token,
            });
        }
        if stream_state.is_broken {
            self.schedule_lapse(broker, stream, lease, now_us);
        }
    }

    fn detach(&mut self, broker: usize, stream: StreamKey, lease: CallKey) {
        if let Some(stream) = self.brokers[broker].streams.get_mut(&stream) {
            stream.leases.remove(&lease);
        }
    }

    /// Handles a heartbeat: renews every lease of the stream that is not being renewed.
    pub(super) fn on_heartbeat(&mut self, broker: usize, stream: StreamKey, sent_us: u64) {
        let known = self.brokers[broker].streams.entry(stream).or_default();
        if known.is_broken {
            return;
        }
        known.heartbeat_sent_us = known.heartbeat_sent_us.max(sent_us);
        for (lease, held) in known.leases.clone() {
            let key = TaskKey::Renewal(stream, lease);
            if self.brokers[broker].tasks.contains_key(&key) || held.locks.is_empty() {
                continue;
            }
            let operation = Operation {
                lease,
                presented: held.locks,
                stream: Some(stream),
                kind: OperationKind::Renew { sent_us },
            };
            self.start_operation(broker, key, operation);
        }
    }

    /// Handles the end of a stream: its leases with a `disconnect_grace` end after it, and its calls
    /// are rolled back unless they are repeated.
    pub(super) fn on_stream_broken(&mut self, broker: usize, stream: StreamKey) {
        let known = self.brokers[broker].streams.entry(stream).or_default();
        if std::mem::replace(&mut known.is_broken, true) {
            return;
        }
        let leases: Vec<_> = known.leases.keys().copied().collect();
        let now_us = self.now_us;
        for lease in leases {
            self.schedule_lapse(broker, stream, lease, now_us);
        }
        let tasks = self.brokers[broker].tasks.values();
        let of_stream = tasks.filter_map(|task| match task {
            Task::Acquire(task) if task.request.stream.is_some_and(|on| on.stream == stream) => {
                Some(task.request.attempt)
            }
            Task::Acquire(_) | Task::Operation(_) | Task::Rollback(_) | Task::Touch(_) => None,
        });
        let attempts: Vec<_> = of_stream.collect();
        for attempt in attempts {
            self.disconnect(broker, attempt);
        }
    }

    fn schedule_lapse(&mut self, broker: usize, stream: StreamKey, lease: CallKey, now_us: u64) {
        let streams = &self.brokers[broker].streams;
        let held = streams
            .get(&stream)
            .and_then(|stream| stream.leases.get(&lease));
        if let Some(grace_ms) = held.and_then(|held| held.disconnect_grace_ms) {
            let task = RollbackTask {
                not_before_us: now_us + grace_ms * 1_000,
                in_flight: None,
            };
            let key = TaskKey::Lapse(stream, lease);
            self.brokers[broker].tasks.insert(key, Task::Rollback(task));
        }
    }

    /// Ends a lease whose grace has passed. Returns false if the lease has left the stream.
    pub(super) fn lapse(&mut self, broker: usize, stream: StreamKey, lease: CallKey) -> bool {
        let key = TaskKey::Lapse(stream, lease);
        self.brokers[broker].tasks.remove(&key);
        let streams = &self.brokers[broker].streams;
        let held = streams
            .get(&stream)
            .and_then(|stream| stream.leases.get(&lease));
        let Some(presented) = held.map(|held| held.locks.clone()) else {
            return false;
        };
        let operation = Operation {
            lease,
            presented,
            stream: Some(stream),
            kind: OperationKind::Release(ReleaseScope::ExpireNow),
        };
        self.start_operation(broker, key, operation);
        true
    }

    fn rollback_reply(
        &mut self,
        mut task: RollbackTask,
        command: u16,
        reply: Option<&Reply>,
    ) -> Option<Task> {
        if task.in_flight != Some(command) {
            return Some(Task::Rollback(task));
        }
        task.in_flight = None;
        let is_done = matches!(
            reply.map(|reply| &reply.reply),
            Some(StoreReply::Cancel(Ok(_)))
        );
        task.not_before_us = self.now_us + ROLLBACK_RETRY_US;
        (!is_done).then_some(Task::Rollback(task))
    }

    fn touch_reply(&mut self, broker: usize, touch: TouchTask, reply: Option<&Reply>) {
        let Some(reply) = reply else {
            return;
        };
        let StoreReply::Touch(Ok(touched)) = &reply.reply else {
            return;
        };
        for held in &touched.reply.held {
            self.signal_hand_off(broker, reply.lock, held, (reply.era, reply.executed_at_us));
        }
        if touched.reply.rejoin {
            self.signal(broker, reply.lock, |_| true, Signal::Rejoin);
        }
        self.record_era(broker, reply.lock, reply.verified_era);
        let queue = self.brokers[broker].queues.entry(reply.lock).or_default();
        let previous_us = std::mem::replace(&mut queue.touch_sent_us, touch.sent_us);
        let now_us = self.now_us;
        let may_have_expired = |task: &AcquireTask| task.may_miss_a_grant(previous_us, now_us);
        self.signal(broker, reply.lock, may_have_expired, Signal::Rejoin);
    }

    /// Notifies the tasks that wait for the request of a hand-off.
    /// `executed` is the era and the time of the command that granted the lock.
    pub(super) fn signal_hand_off(
        &mut self,
        broker: usize,
        lock: LockIndex,
        hand_off: &HandOff,
        (era, executed_at_us): (u32, u64),
    ) {
        let request = hand_off.request;
        let signal = Signal::HandOff(HandOffSignal {
            token: hand_off.fencing_token.get(),
            is_provisional: hand_off.is_provisional,
            era,
            executed_at_us,
        });
        let is_meant = |task: &AcquireTask| task.request.attempt.call.request() == request;
        self.signal(broker, lock, is_meant, signal);
    }

    /// Records the era in which the store answered for a lock. In a new era the store may have lost
    /// queue positions.
    pub(super) fn record_era(&mut self, broker: usize, lock: LockIndex, era: u32) {
        let queue = self.brokers[broker].queues.entry(lock).or_default();
        let previous = queue.era.replace(era);
        if previous.is_some_and(|previous| previous != era) {
            self.signal(broker, lock, |_| true, Signal::Rejoin);
        }
    }

    fn signal(
        &mut self,
        broker: usize,
        lock: LockIndex,
        is_meant: impl Fn(&AcquireTask) -> bool,
        signal: Signal,
    ) {
        let tasks = self.brokers[broker].tasks.iter_mut();
        let mut signalled = Vec::new();
        for (key, task) in tasks {
            if let Task::Acquire(task) = task
                && task.waits_for(lock)
                && is_meant(task)
            {
                task.signals.push(signal);
                signalled.push(*key);
            }
        }
        for key in signalled {
            let task = self.brokers[broker].tasks.remove(&key);
            if let Some(Task::Acquire(task)) = task
                && let Some(task) = self.process_signals(broker, key, task)
            {
                self.brokers[broker].tasks.insert(key, task);
            }
        }
    }

    /// Schedules the rollback of an attempt at these locks.
    pub(super) fn schedule_rollback(
        &mut self,
        broker: usize,
        attempt: AttemptKey,
        locks: &[LockIndex],
        grace_us: u64,
    ) {
        for lock in locks {
            let task = RollbackTask {
                not_before_us: self.now_us + grace_us,
                in_flight: None,
            };
            let key = TaskKey::Rollback(attempt, *lock);
            let tasks = &mut self.brokers[broker].tasks;
            tasks.entry(key).or_insert(Task::Rollback(task));
        }
    }
}
