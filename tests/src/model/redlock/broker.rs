//! Brokers of a RedLock store: their tasks, and the routing of the nodes' replies to them.

use std::collections::BTreeMap;

use leasehold_server::{
    lock::AttemptId,
    store::{Outcome, Rejected, StoreError, redlock::model::NodeReply},
};

use super::{
    LOCK, NODES,
    calls::AcquireTask,
    election::LateVote,
    operations::{OperationTask, RollbackTask},
    waiters::Waiter,
    world::{Body, RedlockWorld},
};
use crate::{
    differential::steps::{StoreCommand, StoreReply},
    model::{
        keys::{AttemptKey, MessageKey, ProcessKey, StreamKey, TaskKey},
        store::ModelStep,
    },
};

/// Time after its sending at which a node rejects a command.
const COMMAND_DEADLINE_MS: u64 = 800;

/// A broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedlockBroker {
    pub process: ProcessKey,
    /// Eras that the broker has verified, by node.
    pub eras: Vec<VerifiedEra>,
    pub tasks: BTreeMap<TaskKey, Task>,
    /// Calls in the local queue, by the attempt that joined it.
    pub waiters: BTreeMap<AttemptKey, Waiter>,
    /// Grants to calls in the queue.
    pub waiter_grants: BTreeMap<AttemptKey, WaiterGrant>,
    /// Votes that were outstanding at the end of their round, by their commands.
    pub late_votes: BTreeMap<MessageKey, LateVote>,
    /// Time at which the newest heartbeat was sent that the broker has read, by stream.
    pub heartbeats: BTreeMap<StreamKey, u64>,
}

/// A grant to a call in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaiterGrant {
    pub token: u64,
    /// The attempt that the nodes store.
    pub granted_attempt: AttemptId,
}

/// An era of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedEra {
    pub era: u32,
    pub no_grants_before_ms: u64,
}

/// A task of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    Acquire(Box<AcquireTask>),
    Operation(Box<OperationTask>),
    Rollback(RollbackTask),
}

/// Reply of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAnswer {
    pub reply: StoreReply,
    /// False if the era allowed no grants when the broker received the reply.
    pub is_reliable: bool,
}

/// The reply to a command, or the end of the wait for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received<'a> {
    /// Number of the command.
    pub(super) command: u16,
    /// `None` if the broker does not wait any longer.
    pub(super) answer: Option<&'a NodeAnswer>,
}

/// Replies of the nodes to one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replies<T> {
    /// Nodes without a reply, by the numbers of the commands.
    pub outstanding: BTreeMap<u16, u8>,
    pub replies: Vec<NodeReply<T>>,
}

impl RedlockBroker {
    #[must_use]
    pub fn new(process: ProcessKey, eras: Vec<VerifiedEra>) -> Self {
        Self {
            process,
            eras,
            tasks: BTreeMap::new(),
            waiters: BTreeMap::new(),
            waiter_grants: BTreeMap::new(),
            late_votes: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
        }
    }

    /// Returns the commands for whose replies the broker waits.
    #[must_use]
    pub fn outstanding(&self) -> Vec<MessageKey> {
        let mut all: Vec<_> = self.late_votes.keys().copied().collect();
        let mut add = |task: TaskKey, numbers: Vec<u16>| {
            let keys = numbers.into_iter();
            all.extend(keys.map(|number| MessageKey { task, number }));
        };
        for (key, task) in &self.tasks {
            add(*key, task.outstanding());
        }
        for (attempt, waiter) in &self.waiters {
            if let Some(election) = &waiter.election {
                add(
                    TaskKey::Election(*attempt),
                    election.outstanding().collect(),
                );
            }
        }
        all
    }
}

impl Task {
    fn outstanding(&self) -> Vec<u16> {
        match self {
            Self::Acquire(task) => task.outstanding(),
            Self::Operation(task) => task.outstanding(),
            Self::Rollback(task) => task.outstanding(),
        }
    }
}

impl NodeAnswer {
    /// Returns the reply as the evaluation of a quorum expects it; an error if there is none.
    pub fn read<T>(
        answer: Option<&Self>,
        node: u8,
        read: impl Fn(&StoreReply) -> Option<Result<Outcome<T>, Rejected>>,
    ) -> NodeReply<T> {
        let unavailable = || StoreError::Unavailable("no reply".to_owned());
        let outcome = answer.and_then(|answer| read(&answer.reply));
        NodeReply {
            node: usize::from(node),
            is_reliable: answer.is_some_and(|answer| answer.is_reliable),
            outcome: match outcome {
                Some(outcome) => outcome.map_err(StoreError::from),
                None => Err(unavailable()),
            },
        }
    }
}

impl<T> Replies<T> {
    /// Adds the reply of a node, or its absence, if it was not added before.
    pub(super) fn receive(
        &mut self,
        received: Received<'_>,
        read: impl Fn(&StoreReply) -> Option<Result<Outcome<T>, Rejected>>,
    ) {
        if let Some(node) = self.outstanding.remove(&received.command) {
            let reply = NodeAnswer::read(received.answer, node, read);
            self.replies.push(reply);
        }
    }
}

impl RedlockWorld {
    /// Sends a command of a broker's task to a node. Returns its number.
    pub(super) fn send_to_node(
        &mut self,
        broker: usize,
        task: TaskKey,
        node: usize,
        command: StoreCommand,
    ) -> u16 {
        let RedlockBroker { process, eras, .. } = &self.brokers[broker];
        let (process, verified) = (*process, eras[node]);
        let step = ModelStep {
            now_us: 0,
            lock: LOCK,
            broker: process.id(),
            not_after_ms: self.nodes[node].clock_us(self.now_us) / 1_000 + COMMAND_DEADLINE_MS,
            era: verified.era,
            command,
        };
        let node = u8::try_from(node).expect("few nodes");
        let command = Body::Command {
            process,
            node,
            era: verified,
            step: Box::new(step),
        };
        self.send(task, command)
    }

    /// Sends a command to all nodes.
    pub(super) fn send_to_nodes<T>(
        &mut self,
        broker: usize,
        task: TaskKey,
        command: &StoreCommand,
    ) -> Replies<T> {
        let mut outstanding = BTreeMap::new();
        for node in 0..NODES {
            let number = self.send_to_node(broker, task, node, command.clone());
            outstanding.insert(number, u8::try_from(node).expect("few nodes"));
        }
        Replies {
            outstanding,
            replies: Vec::new(),
        }
    }

    /// Handles the reply to a command, or its absence (`None`).
    pub(super) fn on_answer(
        &mut self,
        broker: usize,
        message: MessageKey,
        answer: Option<&NodeAnswer>,
    ) {
        let key = message.task;
        let received = Received {
            command: message.number,
            answer,
        };
        if let Some(late) = self.brokers[broker].late_votes.remove(&message) {
            return self.on_late_vote(broker, key, &late, answer);
        }
        if let TaskKey::Election(attempt) = key {
            return self.on_waiter_vote(broker, attempt, received);
        }
        let Some(task) = self.brokers[broker].tasks.remove(&key) else {
            return;
        };
        let task = match task {
            Task::Acquire(task) => self.on_acquire_answer(broker, key, task, received),
            Task::Operation(task) => self.on_operation_answer(key, task, received),
            Task::Rollback(task) => self.on_rollback_answer(task, received),
        };
        if let Some(task) = task {
            self.brokers[broker].tasks.insert(key, task);
        }
    }
}
