//! Brokers of the model: the commands that a broker sends for a call, and what it makes of their
//! replies. The same steps as those of `broker::acquire_call` and its neighbours in the server.

mod acquire;
mod renewals;

use std::collections::BTreeMap;

use leasehold_server::{
    lock::{ExpectedAttachment, FencingToken, LeaseRef, ReleaseScope},
    store::HandOff,
};

pub use self::{
    acquire::{AcquirePhase, AcquireRequest, AcquireTask, HandOffSignal, Signal},
    renewals::Renewals,
};
use super::{
    client::{ClientReply, PresentedLock},
    keys::{AttemptKey, CallKey, LockIndex, ProcessKey, TaskKey, lock_key},
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
    lease: CallKey,
    /// Time at which the client sent a renewal; `None` for a release.
    renewal_sent_us: Option<u64>,
    renewals: Renewals,
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
        self.lease
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
        }
    }
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
    /// Starts a renewal, or a release with `scope`, at a broker.
    pub(super) fn start_operation(
        &mut self,
        broker: usize,
        key: TaskKey,
        lease: CallKey,
        operation: (Vec<PresentedLock>, Option<ReleaseScope>, u64),
    ) {
        let (presented, scope, sent_us) = operation;
        let commands = presented.iter().map(|presented| {
            let lease = lease_ref(lease, *presented);
            let unary = ExpectedAttachment::None;
            match scope {
                Some(scope) => StoreCommand::Release(lease, scope, unary),
                None => StoreCommand::Renew(lease, None, unary),
            }
        });
        let commands: Vec<_> = commands.collect();
        let mut renewals = Renewals::new(presented);
        for command in commands {
            renewals.send(self, broker, key, command);
        }
        let task = OperationTask {
            lease,
            renewal_sent_us: scope.is_none().then_some(sent_us),
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
            Task::Operation(task) => self.operation_reply(key, task, command, reply),
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
        key: TaskKey,
        mut task: OperationTask,
        command: u16,
        reply: Option<&Reply>,
    ) -> Option<Task> {
        task.renewals.receive(command, reply);
        if !task.renewals.is_complete() {
            return Some(Task::Operation(task));
        }
        let lease = task.lease;
        if let Some(sent_us) = task.renewal_sent_us {
            let reply = match task.renewals.surviving() {
                Ok(locks) => ClientReply::Renewed {
                    lease,
                    sent_us,
                    locks,
                },
                Err(failure) => ClientReply::RenewalFailed {
                    lease,
                    presented: task.renewals.presented(),
                    failure,
                },
            };
            self.send(key, Body::ToClient(reply));
        }
        None
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
