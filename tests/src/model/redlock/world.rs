//! The whole state of the model of a RedLock store, and the effect of each action on it.

use std::collections::BTreeMap;

use leasehold_server::lock::ReleaseScope;

use super::{
    LOCK, NODES,
    action::RedlockAction,
    broker::{NodeAnswer, RedlockBroker, Task, VerifiedEra},
    node::{MAX_CLOCK_SKEW_MS, Node},
    properties::Observations,
};
use crate::{
    differential::steps::StoreReply,
    model::{
        ModelWorld,
        action::{CallArguments, ReleasePart},
        broker::{AcquireRequest, Failure, Operation, OperationKind, RequestStream},
        client::{
            CallState, ClientCall, ClientLease, ClientReply, LeaseState, ModelClient, OpenStream,
        },
        keys::{AttemptKey, CallKey, ClientIndex, MessageKey, ProcessKey, StreamKey, TaskKey},
        random::LOW_BOUNDS,
        store::{ModelStep, ModelStore, START_US},
    },
};

/// Number of brokers.
pub const BROKERS: u8 = 2;

/// Sizes of a world.
#[derive(Debug, Clone, Copy)]
pub struct RedlockSize {
    pub clients: u8,
    /// Times by which the clocks of the nodes are ahead, in thousandths of the largest skew.
    pub clock_offsets: [i16; NODES],
    /// True if the commands of the nodes are recorded.
    pub has_journal: bool,
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedlockWorld {
    pub now_us: u64,
    pub nodes: Vec<Node>,
    pub brokers: Vec<RedlockBroker>,
    pub clients: Vec<ModelClient>,
    /// Messages in flight.
    pub messages: BTreeMap<MessageKey, Body>,
    /// Number of restarts of nodes.
    pub restarts: u32,
    pub observations: Observations,
    /// Numbers of the last messages of the tasks.
    last_numbers: BTreeMap<TaskKey, u16>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    ToBroker(u8, Request),
    /// A command of a broker process to a node.
    Command {
        process: ProcessKey,
        node: u8,
        era: VerifiedEra,
        step: Box<ModelStep>,
    },
    /// A reply of a node to a broker process.
    Reply {
        process: ProcessKey,
        node: u8,
        command: u16,
        era: VerifiedEra,
        reply: Box<StoreReply>,
    },
    ToClient(ClientReply),
}

/// Request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Acquire(Box<AcquireRequest>),
    /// The connection of an RPC has ended.
    Disconnect(AttemptKey),
    Operate(Operation),
    Heartbeat {
        stream: StreamKey,
        sent_us: u64,
    },
}

impl ModelWorld for RedlockWorld {
    type Action = RedlockAction;

    fn apply(&mut self, action: &RedlockAction) -> Result<bool, String> {
        let applied = self.act(action)?;
        if applied {
            self.check()?;
        }
        Ok(applied)
    }
}

impl RedlockWorld {
    /// Creates a world in which nothing has happened. The clocks of the clients run at different
    /// speeds within assumption A2.
    #[must_use]
    pub fn new(size: RedlockSize) -> Self {
        let eras = vec![
            VerifiedEra {
                era: 0,
                no_grants_before_ms: 0
            };
            NODES
        ];
        let broker = |broker| RedlockBroker::new(ProcessKey { broker, start: 0 }, eras.clone());
        let skew_ms = i64::try_from(MAX_CLOCK_SKEW_MS).expect("a short time");
        let node = |offset: i16| Node {
            store: ModelStore::new(1, size.has_journal),
            clock_offset_us: i64::from(offset) * skew_ms,
            restarted_at_us: None,
        };
        let clocks = [10, 12, 8];
        let client = |client: u8| ModelClient::new(clocks[usize::from(client) % clocks.len()]);
        Self {
            now_us: START_US,
            nodes: size.clock_offsets.map(node).into(),
            brokers: (0..BROKERS).map(broker).collect(),
            clients: (0..size.clients).map(client).collect(),
            messages: BTreeMap::new(),
            restarts: 0,
            observations: Observations::default(),
            last_numbers: BTreeMap::new(),
        }
    }

    fn act(&mut self, action: &RedlockAction) -> Result<bool, String> {
        Ok(match action {
            RedlockAction::Advance(ms) => {
                self.advance(u64::from(*ms))?;
                true
            }
            RedlockAction::Deliver(message) => match self.messages.remove(message) {
                Some(body) => {
                    self.deliver(*message, body)?;
                    true
                }
                None => false,
            },
            RedlockAction::Repeat(message) => match self.messages.get(message).cloned() {
                Some(body @ (Body::Command { .. } | Body::Reply { .. })) => {
                    self.deliver(*message, body)?;
                    true
                }
                Some(Body::ToBroker(..) | Body::ToClient(_)) | None => false,
            },
            RedlockAction::Drop(message) => self.messages.remove(message).is_some(),
            RedlockAction::GiveUp(message) => self.give_up(*message),
            RedlockAction::EndRound(task) => self.end_rounds(*task),
            RedlockAction::Kill(broker) => self.kill(*broker),
            RedlockAction::Try(attempt) => {
                let mut brokers = 0..self.brokers.len();
                brokers.any(|broker| self.try_waiter(broker, *attempt))
            }
            RedlockAction::Touch(broker) => self.touch(usize::from(*broker)),
            RedlockAction::TimeOut(attempt) => {
                let mut brokers = 0..self.brokers.len();
                brokers.any(|broker| self.time_out(broker, *attempt))
            }
            RedlockAction::Cancel(task) => self.start_rollback(*task),
            RedlockAction::Verify { broker, node } => self.verify(*broker, *node),
            RedlockAction::Save(node) => {
                self.nodes[usize::from(*node)].store.save();
                true
            }
            RedlockAction::Restart { node, saves_ago } => self.restart(*node, *saves_ago),
            RedlockAction::Acquire(arguments) => self.acquire(arguments),
            RedlockAction::Retry { attempt, broker } => self.retry(*attempt, *broker),
            RedlockAction::Open { client, broker } => self.open_stream(*client, *broker),
            RedlockAction::Heartbeat(client) => self.heartbeat(*client),
            RedlockAction::Attach {
                client,
                operation,
                lease,
            } => self.attach(*client, *operation, *lease),
            RedlockAction::Abandon { attempt, operation } => self.abandon(*attempt, *operation),
            RedlockAction::Renew {
                client,
                operation,
                lease,
                broker,
            } => self.renew(*client, *operation, *lease, *broker),
            RedlockAction::Release {
                client,
                operation,
                lease,
                part,
                broker,
            } => self.release(*client, *operation, *lease, *part, *broker),
        })
    }

    /// Sends a message in the name of a task.
    pub(super) fn send(&mut self, task: TaskKey, body: Body) -> u16 {
        let number = self.last_numbers.entry(task).or_default();
        *number += 1;
        let number = *number;
        self.messages.insert(MessageKey { task, number }, body);
        number
    }

    fn deliver(&mut self, message: MessageKey, body: Body) -> Result<(), String> {
        match body {
            Body::ToBroker(broker, request) => {
                self.on_request(usize::from(broker), message.task, request);
            }
            Body::Command {
                process,
                node,
                era,
                mut step,
            } => {
                let target = &mut self.nodes[usize::from(node)];
                step.now_us = target.clock_us(self.now_us);
                self.observations.observe_command(node, &step.command);
                let (reply, _) = target.store.execute(*step, LOW_BOUNDS);
                self.observations.count_reply(&reply);
                let reply = Body::Reply {
                    process,
                    node,
                    command: message.number,
                    era,
                    reply: Box::new(reply),
                };
                self.send(message.task, reply);
            }
            Body::Reply {
                process,
                node,
                command,
                era,
                reply,
            } => {
                if let Some(broker) = self.live_broker(process) {
                    let clock_ms = self.nodes[usize::from(node)].clock_us(self.now_us) / 1_000;
                    let answer = NodeAnswer {
                        reply: *reply,
                        is_reliable: clock_ms >= era.no_grants_before_ms,
                    };
                    let command = MessageKey {
                        number: command,
                        ..message
                    };
                    self.on_answer(broker, command, Some(&answer));
                }
            }
            Body::ToClient(reply) => self.on_client_reply(&reply)?,
        }
        Ok(())
    }

    fn on_request(&mut self, broker: usize, task: TaskKey, request: Request) {
        match request {
            Request::Acquire(request) => self.start_acquire(broker, *request),
            Request::Disconnect(attempt) => self.disconnect(broker, attempt),
            Request::Operate(operation) => self.start_operation(broker, task, operation),
            Request::Heartbeat { stream, sent_us } => {
                let newest = self.brokers[broker].heartbeats.entry(stream).or_default();
                *newest = (*newest).max(sent_us);
            }
        }
    }

    fn on_client_reply(&mut self, reply: &ClientReply) -> Result<(), String> {
        match reply {
            ClientReply::Granted {
                call,
                stream,
                sent_us,
                locks,
            } => {
                self.check_delivered(*call, locks)?;
                let client = self.client(call.client);
                client.on_granted(*call, *stream, *sent_us, locks);
            }
            ClientReply::Attached { lease, stream } => {
                if let Some(lease) = self.client(lease.client).leases.get_mut(lease) {
                    lease.stream = Some(*stream);
                }
            }
            ClientReply::Renewed {
                lease,
                sent_us,
                locks,
            } => {
                let client = self.client(lease.client);
                client.on_renewed(*lease, *sent_us, locks);
            }
            ClientReply::Refused { call, failure, .. } => {
                let is_over = !matches!(failure, Failure::Unavailable | Failure::StillQueued);
                let known = self.client(call.client).calls.get_mut(&call.number);
                if let Some(call) = known.filter(|call| is_over && call.state == CallState::Open) {
                    call.state = CallState::Ended;
                }
            }
            ClientReply::RenewalFailed {
                lease,
                presented,
                failure,
            } => {
                if failure.ends_lease() {
                    self.check_loss(*lease, presented, *failure)?;
                    let lease = self.client(lease.client).leases.get_mut(lease);
                    if let Some(lease) = lease.filter(|lease| lease.state == LeaseState::Held) {
                        lease.state = LeaseState::Lost;
                        lease.locks.clear();
                    }
                }
            }
        }
        Ok(())
    }

    fn client(&mut self, client: ClientIndex) -> &mut ModelClient {
        &mut self.clients[usize::from(client)]
    }

    fn live_broker(&self, process: ProcessKey) -> Option<usize> {
        self.brokers
            .iter()
            .position(|broker| broker.process == process)
    }

    fn give_up(&mut self, message: MessageKey) -> bool {
        let mut brokers = self.brokers.iter();
        let Some(broker) = brokers.position(|broker| broker.outstanding().contains(&message))
        else {
            return false;
        };
        self.on_answer(broker, message, None);
        true
    }

    fn end_rounds(&mut self, task: TaskKey) -> bool {
        let mut brokers = 0..self.brokers.len();
        brokers.any(|broker| {
            if let TaskKey::Election(attempt) = task {
                return self.time_out_waiter_round(broker, attempt);
            }
            self.time_out_call_round(broker, task)
        })
    }

    fn kill(&mut self, broker: u8) -> bool {
        for client in &mut self.clients {
            if client.stream.is_some_and(|open| open.broker == broker) {
                client.on_broken();
            }
        }
        let eras = self.nodes.iter().map(Node::era).collect();
        let killed = &mut self.brokers[usize::from(broker)];
        let start = killed.process.start + 1;
        *killed = RedlockBroker::new(ProcessKey { broker, start }, eras);
        true
    }

    fn verify(&mut self, broker: u8, node: u8) -> bool {
        let node = usize::from(node);
        let current = self.nodes[node].era();
        let verified = &mut self.brokers[usize::from(broker)].eras[node];
        std::mem::replace(verified, current) != current
    }

    /// Restarts a node, unless another one may still lack data: fewer than a quorum of nodes lose
    /// data within one `Q`.
    fn restart(&mut self, node: u8, saves_ago: u8) -> bool {
        let now_us = self.now_us;
        let mut others = (0_u8..)
            .zip(&self.nodes)
            .filter(|(other, _)| *other != node);
        if others.any(|(_, other)| other.is_recovering(now_us)) {
            return false;
        }
        let restarted = &mut self.nodes[usize::from(node)];
        let clock_us = restarted.clock_us(now_us);
        if !restarted.store.roll_back(saves_ago, clock_us) {
            return false;
        }
        restarted.restarted_at_us = Some(now_us);
        self.restarts += 1;
        self.observations.count("restart");
        self.observations.forget_node(node);
        // Connections end with the server, and with them the commands that it did not receive.
        self.messages.retain(
            |_, body| !matches!(body, Body::Command { node: target, .. } if *target == node),
        );
        true
    }

    fn acquire(&mut self, arguments: &CallArguments) -> bool {
        let call = arguments.call;
        let now_us = self.now_us;
        let client = self.client(call.client);
        let under = arguments.under.map(|lease| client.leases.get(&lease));
        let presented = match under {
            Some(Some(lease)) if lease.state == LeaseState::Held => lease.presented(now_us),
            Some(_) => return false,
            None => Vec::new(),
        };
        let has_lock = presented.iter().any(|held| held.lock == LOCK);
        if client.calls.contains_key(&call.number) || under.is_some() && !has_lock {
            return false;
        }
        let known = ClientCall {
            arguments: arguments.clone(),
            presented,
            attempts: BTreeMap::new(),
            state: CallState::Open,
        };
        client.calls.insert(call.number, known);
        self.observations.begin_call(call, self.now_us);
        self.send_attempt(AttemptKey { call, number: 0 }, arguments.broker)
    }

    fn retry(&mut self, attempt: AttemptKey, broker: u8) -> bool {
        let calls = &self.client(attempt.call.client).calls;
        let call = calls.get(&attempt.call.number);
        let is_new = call.is_some_and(|call| !call.attempts.contains_key(&attempt.number));
        is_new && self.send_attempt(attempt, broker)
    }

    fn send_attempt(&mut self, attempt: AttemptKey, broker: u8) -> bool {
        let now_us = self.now_us;
        let client = self.client(attempt.call.client);
        let open = client.stream;
        let Some(call) = client.calls.get_mut(&attempt.call.number) else {
            return false;
        };
        let open = open.filter(|_| call.arguments.is_on_stream);
        if call.arguments.is_on_stream && open.is_none() {
            return false;
        }
        let broker = open.map_or(broker, |open| open.broker);
        call.attempts.insert(attempt.number, broker);
        let number = u32::try_from(call.attempts.len()).unwrap_or(u32::MAX);
        let request = AcquireRequest {
            attempt,
            arguments: call.arguments.clone(),
            presented: call.presented.clone(),
            sent_us: now_us,
            stream: open.map(|open| RequestStream {
                stream: open.key,
                number,
            }),
        };
        let request = Request::Acquire(Box::new(request));
        self.send(TaskKey::Acquire(attempt), Body::ToBroker(broker, request));
        true
    }

    fn open_stream(&mut self, client: ClientIndex, broker: u8) -> bool {
        let known = self.client(client);
        known.on_broken();
        known.streams_opened += 1;
        let number = known.streams_opened;
        let key = StreamKey { client, number };
        known.stream = Some(OpenStream { key, broker });
        true
    }

    fn heartbeat(&mut self, client: ClientIndex) -> bool {
        let sent_us = self.now_us;
        let Some(OpenStream { key, broker }) = self.client(client).stream else {
            return false;
        };
        let stream = key;
        let heartbeat = Request::Heartbeat { stream, sent_us };
        self.send(TaskKey::Stream(key), Body::ToBroker(broker, heartbeat));
        true
    }

    fn attach(&mut self, client: ClientIndex, operation: u8, lease: CallKey) -> bool {
        let now_us = self.now_us;
        let known = self.client(client);
        let Some(open) = known.stream else {
            return false;
        };
        let held = known.leases.get_mut(&lease);
        let is_elsewhere = |held: &&mut ClientLease| {
            held.state == LeaseState::Held && held.stream != Some(open.key)
        };
        let Some(held) = held.filter(is_elsewhere) else {
            return false;
        };
        held.attachments += 1;
        let operation_kind = OperationKind::Attach {
            number: held.attachments,
        };
        let requested = Operation {
            lease,
            presented: held.presented(now_us),
            stream: Some(open.key),
            kind: operation_kind,
        };
        let task = TaskKey::Operation(client, operation);
        self.send(
            task,
            Body::ToBroker(open.broker, Request::Operate(requested)),
        );
        true
    }

    fn abandon(&mut self, attempt: AttemptKey, operation: u8) -> bool {
        let call = attempt.call;
        let Some(known) = self.client(call.client).calls.get_mut(&call.number) else {
            return false;
        };
        let Some(&broker) = known.attempts.get(&attempt.number) else {
            return false;
        };
        if known.state == CallState::Open {
            known.state = CallState::Ended;
        }
        let task = TaskKey::Operation(call.client, operation);
        self.send(task, Body::ToBroker(broker, Request::Disconnect(attempt)));
        true
    }

    /// Returns the broker and the stream at which a client changes a lease: those of its stream, or
    /// any broker. `None` if the lease is on a stream that is not open.
    fn home(
        &mut self,
        client: ClientIndex,
        lease: CallKey,
        broker: u8,
    ) -> Option<(u8, Option<StreamKey>)> {
        let known = self.client(client);
        let lease = known.leases.get(&lease)?;
        if lease.state != LeaseState::Held {
            return None;
        }
        match lease.stream {
            None => Some((broker, None)),
            Some(stream) => {
                let open = known.stream.filter(|open| open.key == stream)?;
                Some((open.broker, Some(stream)))
            }
        }
    }

    fn renew(&mut self, client: ClientIndex, operation: u8, lease: CallKey, broker: u8) -> bool {
        let sent_us = self.now_us;
        let Some((broker, stream)) = self.home(client, lease, broker) else {
            return false;
        };
        let known = &self.client(client).leases[&lease];
        let presented = known.presented(sent_us);
        if presented.is_empty() {
            return false;
        }
        let renewal = Operation {
            lease,
            presented,
            stream,
            kind: OperationKind::Renew { sent_us },
        };
        let task = TaskKey::Operation(client, operation);
        self.send(task, Body::ToBroker(broker, Request::Operate(renewal)));
        true
    }

    fn release(
        &mut self,
        client: ClientIndex,
        operation: u8,
        lease: CallKey,
        part: ReleasePart,
        broker: u8,
    ) -> bool {
        let now_us = self.now_us;
        let Some((broker, stream)) = self.home(client, lease, broker) else {
            return false;
        };
        let known = self.client(client);
        let is_open = |call: &ClientCall| {
            call.state == CallState::Open && call.arguments.under == Some(lease)
        };
        let has_open_calls = known.calls.values().any(is_open);
        let Some(held) = known.leases.get_mut(&lease) else {
            return false;
        };
        let presented = held.release(part, now_us, has_open_calls);
        if presented.is_empty() {
            return false;
        }
        let scope = match part {
            ReleasePart::All => ReleaseScope::All,
            ReleasePart::Lock(_) => ReleaseScope::Lock,
            ReleasePart::Entry(_, call) => ReleaseScope::Entry(call.request()),
        };
        let release = Operation {
            lease,
            presented,
            stream,
            kind: OperationKind::Release(scope),
        };
        let task = TaskKey::Operation(client, operation);
        self.send(task, Body::ToBroker(broker, Request::Operate(release)));
        true
    }

    /// Returns the rollbacks that are due, and those whose command has no reply.
    pub(super) fn rollbacks(&self) -> impl Iterator<Item = TaskKey> {
        let tasks = self.brokers.iter().flat_map(|broker| &broker.tasks);
        tasks.filter_map(|(key, task)| match task {
            Task::Rollback(task) if task.replies.is_none() => {
                (self.now_us >= task.not_before_us).then_some(*key)
            }
            Task::Rollback(_) | Task::Acquire(_) | Task::Operation(_) => None,
        })
    }
}
