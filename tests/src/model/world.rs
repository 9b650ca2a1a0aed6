//! The whole state of the model, and the effect of each action on it.

use std::collections::BTreeMap;

use leasehold_server::{
    lock::ReleaseScope,
    store::{HandOff, memory::context::Bounds},
};

use super::{
    ModelWorld,
    action::{Action, CallArguments, ReleasePart},
    broker::{
        AcquireRequest, ModelBroker, Operation, OperationKind, RequestStream, Task, TouchTask,
    },
    client::{
        CallState, ClientCall, ClientReply, LeaseState, ModelClient, OpenStream, PresentedLock,
    },
    keys::{
        AttemptKey, CallKey, ClientIndex, LockIndex, MessageKey, ProcessKey, StreamKey, TaskKey,
    },
    properties::{Executor, Observations},
    store::{ModelStep, ModelStore, START_US},
};
use crate::differential::steps::{StoreCommand, StoreReply};

/// Time after its sending at which the store rejects a command.
const COMMAND_DEADLINE_MS: u64 = 800;

/// Sizes of a world.
#[derive(Debug, Clone, Copy)]
pub struct WorldSize {
    pub clients: u8,
    pub brokers: u8,
    pub locks: u8,
    pub bounds: Bounds,
    /// True if the commands of the store are recorded.
    pub has_journal: bool,
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub now_us: u64,
    pub store: ModelStore,
    pub brokers: Vec<ModelBroker>,
    pub clients: Vec<ModelClient>,
    /// Messages in flight.
    pub messages: BTreeMap<MessageKey, Body>,
    pub observations: Observations,
    /// Numbers of the last messages of the tasks.
    last_numbers: BTreeMap<TaskKey, u16>,
    bounds: Bounds,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Body {
    ToBroker(u8, Request),
    /// A command of a broker process to the store.
    Command(ProcessKey, Box<ModelStep>),
    /// A reply of the store to a broker process.
    Reply(ProcessKey, Box<Reply>),
    /// A hand-off to a call at another broker process.
    HandOff(ProcessKey, LockIndex, HandOff, (u32, u64)),
    ToClient(ClientReply),
}

/// Request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    Acquire(Box<AcquireRequest>),
    /// The connection of an RPC has ended.
    Disconnect(AttemptKey),
    Renew {
        lease: CallKey,
        presented: Vec<PresentedLock>,
        sent_us: u64,
    },
    Release {
        lease: CallKey,
        presented: Vec<PresentedLock>,
        part: ReleasePart,
        stream: Option<StreamKey>,
    },
    Heartbeat {
        stream: StreamKey,
        sent_us: u64,
    },
    Attach {
        stream: StreamKey,
        number: u32,
        lease: CallKey,
        presented: Vec<PresentedLock>,
    },
    /// The stream has broken.
    StreamBroken(StreamKey),
}

/// Reply of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reply {
    pub lock: LockIndex,
    /// Number of the command.
    pub command: u16,
    pub reply: StoreReply,
    pub executed_at_us: u64,
    /// Era of the store at that time.
    pub era: u32,
    /// Era that the broker had verified when it sent the command.
    pub verified_era: u32,
}

impl ModelWorld for World {
    type Action = Action;

    fn apply(&mut self, action: &Action) -> Result<bool, String> {
        let applied = self.act(action)?;
        if applied {
            self.check()?;
        }
        Ok(applied)
    }
}

impl World {
    /// Creates a world in which nothing has happened. The clocks of the clients run at different
    /// speeds within assumption A2.
    #[must_use]
    pub fn new(size: WorldSize) -> Self {
        let broker = |broker| ModelBroker::new(ProcessKey { broker, start: 0 }, 0);
        let clocks = [10, 12, 8];
        let client = |client: u8| ModelClient::new(clocks[usize::from(client) % clocks.len()]);
        Self {
            now_us: START_US,
            store: ModelStore::new(usize::from(size.locks), size.has_journal),
            brokers: (0..size.brokers).map(broker).collect(),
            clients: (0..size.clients).map(client).collect(),
            messages: BTreeMap::new(),
            observations: Observations::new(usize::from(size.locks)),
            last_numbers: BTreeMap::new(),
            bounds: size.bounds,
        }
    }

    fn act(&mut self, action: &Action) -> Result<bool, String> {
        let applied = match action {
            Action::Advance(ms) => {
                self.advance(u64::from(*ms))?;
                true
            }
            Action::Deliver(message) => match self.messages.remove(message) {
                Some(body) => {
                    self.deliver(*message, body)?;
                    true
                }
                None => false,
            },
            Action::Repeat(message) => match self.messages.get(message).cloned() {
                Some(body) if is_repeatable(&body) => {
                    self.deliver(*message, body)?;
                    true
                }
                Some(_) | None => false,
            },
            Action::Drop(message) => self.messages.remove(message).is_some(),
            Action::Acquire(arguments) => self.acquire(arguments),
            Action::Retry { attempt, broker } => self.retry(*attempt, *broker),
            Action::Open { client, broker } => self.open_stream(*client, *broker),
            Action::Break(client) => self.break_stream(*client),
            Action::Heartbeat(client) => self.heartbeat(*client),
            Action::Attach { client, lease } => self.attach(*client, *lease),
            Action::Abandon { attempt, operation } => self.abandon(*attempt, *operation),
            Action::Renew {
                client,
                operation,
                lease,
                broker,
            } => self.renew((*client, *operation), *lease, *broker),
            Action::Release {
                client,
                operation,
                lease,
                part,
                broker,
            } => self.release((*client, *operation), *lease, *part, *broker),
            Action::GiveUp(task) => self.give_up(*task),
            Action::Kill(broker) => self.kill(*broker),
            Action::Touch { broker, lock } => self.touch(*broker, *lock),
            Action::TimeOut(task) => {
                let brokers = 0..self.brokers.len();
                brokers
                    .into_iter()
                    .any(|broker| self.time_out(broker, *task))
            }
            Action::Cancel(task) => self.cancel(*task),
            Action::Verify(broker) => {
                let broker = self.brokers.get_mut(usize::from(*broker));
                let stale = broker.filter(|broker| broker.era != self.store.era);
                stale.is_some_and(|broker| {
                    broker.era = self.store.era;
                    true
                })
            }
            Action::Save => {
                self.store.save();
                true
            }
            Action::RollBack { saves_ago } => self.roll_back(*saves_ago),
            Action::Promote { saves_ago } => self.store.promote(*saves_ago, self.now_us),
            Action::SetLimit { lock, limit } => self.set_limit(*lock, *limit)?,
            Action::Close { lock, for_ms } => self.close(*lock, *for_ms)?,
            Action::OpenLock { lock } => self.open(*lock)?,
            Action::Revoke { lock, lease, mode } => self.revoke(*lock, *lease, *mode)?,
        };
        Ok(applied)
    }

    /// Sends a message in the name of a task.
    pub(super) fn send(&mut self, task: TaskKey, body: Body) -> u16 {
        let number = self.last_numbers.entry(task).or_default();
        *number += 1;
        let number = *number;
        self.messages.insert(MessageKey { task, number }, body);
        number
    }

    /// Sends a command of a broker's task to the store. Returns its number.
    pub(super) fn send_command(
        &mut self,
        broker: usize,
        task: TaskKey,
        lock: LockIndex,
        command: StoreCommand,
    ) -> u16 {
        let ModelBroker { process, era, .. } = self.brokers[broker];
        let step = ModelStep {
            now_us: 0,
            lock,
            broker: process.id(),
            not_after_ms: self.now_us / 1_000 + COMMAND_DEADLINE_MS,
            era,
            command,
        };
        self.send(task, Body::Command(process, Box::new(step)))
    }

    fn deliver(&mut self, message: MessageKey, body: Body) -> Result<(), String> {
        match body {
            Body::ToBroker(broker, request) => {
                self.on_request(usize::from(broker), message, request)
            }
            Body::Command(process, step) => self.execute(process, message, *step)?,
            Body::Reply(process, reply) => {
                if let Some(broker) = self.live_broker(process) {
                    let executed = (reply.era, reply.executed_at_us);
                    for hand_off in reply.reply.hand_offs() {
                        if hand_off.broker == process.id() {
                            self.signal_hand_off(broker, reply.lock, hand_off, executed);
                        }
                    }
                    self.on_reply(broker, message.task, reply.command, Some(&reply));
                }
            }
            Body::HandOff(process, lock, hand_off, executed) => {
                if let Some(broker) = self.live_broker(process) {
                    self.signal_hand_off(broker, lock, &hand_off, executed);
                }
            }
            Body::ToClient(reply) => self.on_client_reply(&reply)?,
        }
        Ok(())
    }

    /// Executes a command, and sends its reply and its hand-offs.
    pub(super) fn execute(
        &mut self,
        process: ProcessKey,
        message: MessageKey,
        mut step: ModelStep,
    ) -> Result<(), String> {
        step.now_us = self.now_us;
        let lock = step.lock;
        let (command, verified_era) = (step.command.clone(), step.era);
        let (record, era) = self.store.record_at(verified_era, lock, self.now_us);
        let before = record.get(self.now_us);
        let (reply, _) = self.store.execute(step, self.bounds);
        let executor = Executor {
            process,
            verified_era,
            era,
        };
        self.observe(executor, lock, &command, (&before, &reply))?;
        let executed = (era, self.now_us);
        for hand_off in reply.hand_offs() {
            let receiver = self.process_of(hand_off);
            if let Some(receiver) = receiver.filter(|receiver| *receiver != process) {
                let hand_off = hand_off.clone();
                self.send(
                    message.task,
                    Body::HandOff(receiver, lock, hand_off, executed),
                );
            }
        }
        let reply = Reply {
            lock,
            command: message.number,
            reply,
            executed_at_us: self.now_us,
            era,
            verified_era,
        };
        self.send(message.task, Body::Reply(process, Box::new(reply)));
        Ok(())
    }

    fn on_request(&mut self, broker: usize, message: MessageKey, request: Request) {
        match request {
            Request::Acquire(request) => self.start_acquire(broker, *request),
            Request::Disconnect(attempt) => self.disconnect(broker, attempt),
            Request::Renew {
                lease,
                presented,
                sent_us,
            } => {
                let operation = Operation {
                    lease,
                    presented,
                    stream: None,
                    kind: OperationKind::Renew { sent_us },
                };
                self.start_operation(broker, message.task, operation);
            }
            Request::Heartbeat { stream, sent_us } => self.on_heartbeat(broker, stream, sent_us),
            Request::StreamBroken(stream) => self.on_stream_broken(broker, stream),
            Request::Attach {
                stream,
                number,
                lease,
                presented,
            } => {
                let operation = Operation {
                    lease,
                    presented,
                    stream: Some(stream),
                    kind: OperationKind::Attach { number },
                };
                self.start_operation(broker, message.task, operation);
            }
            Request::Release {
                lease,
                presented,
                part,
                stream,
            } => {
                let scope = match part {
                    ReleasePart::All => ReleaseScope::All,
                    ReleasePart::Lock(_) => ReleaseScope::Lock,
                    ReleasePart::Entry(_, call) => ReleaseScope::Entry(call.request()),
                };
                let operation = Operation {
                    lease,
                    presented,
                    stream,
                    kind: OperationKind::Release(scope),
                };
                self.start_operation(broker, message.task, operation);
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
                let client = self.client(call.client);
                client.on_granted(*call, *stream, *sent_us, locks);
            }
            ClientReply::Attached { lease, stream } => {
                let client = self.client(lease.client);
                let current = client.stream.map(|current| current.key);
                if let Some(lease) = client.leases.get_mut(lease) {
                    lease.stream = Some(*stream);
                    lease.may_lapse |= current != Some(*stream);
                }
            }
            ClientReply::Renewed {
                lease,
                sent_us,
                locks,
            } => self
                .client(lease.client)
                .on_renewed(*lease, *sent_us, locks),
            ClientReply::Refused {
                call,
                presented,
                failure,
            } => {
                self.check_refused(*call, presented, *failure)?;
                let is_over = !matches!(
                    failure,
                    super::broker::Failure::Unavailable | super::broker::Failure::StillQueued
                );
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

    fn process_of(&self, hand_off: &HandOff) -> Option<ProcessKey> {
        let mut processes = self.brokers.iter().map(|broker| broker.process);
        processes.find(|process| process.id() == hand_off.broker)
    }

    fn acquire(&mut self, arguments: &CallArguments) -> bool {
        let call = arguments.call;
        let now_us = self.now_us;
        let is_held = |lease: CallKey| {
            let lease = self.clients[usize::from(call.client)].leases.get(&lease);
            lease.is_some_and(|lease| lease.state == LeaseState::Held)
        };
        if arguments.under.is_some_and(|lease| !is_held(lease))
            || self.client(call.client).calls.contains_key(&call.number)
        {
            return false;
        }
        self.observations.requests.insert(call.request(), call);
        let known = ClientCall {
            arguments: arguments.clone(),
            presented: Vec::new(),
            attempts: BTreeMap::new(),
            state: CallState::Open,
        };
        let client = self.client(call.client);
        let presented = arguments.under.and_then(|lease| client.leases.get(&lease));
        let presented = presented.map(|lease| lease.presented(now_us));
        let known = ClientCall {
            presented: presented.unwrap_or_default(),
            ..known
        };
        client.calls.insert(call.number, known);
        self.send_attempt(AttemptKey { call, number: 0 }, arguments.broker)
    }

    fn retry(&mut self, attempt: AttemptKey, broker: u8) -> bool {
        let call = self
            .client(attempt.call.client)
            .calls
            .get(&attempt.call.number);
        let is_new = call.is_some_and(|call| !call.attempts.contains_key(&attempt.number));
        is_new && self.send_attempt(attempt, broker)
    }

    fn send_attempt(&mut self, attempt: AttemptKey, broker: u8) -> bool {
        let now_us = self.now_us;
        let Some(call) = self
            .client(attempt.call.client)
            .calls
            .get_mut(&attempt.call.number)
        else {
            return false;
        };
        call.attempts.insert(attempt.number, broker);
        let (arguments, presented) = (call.arguments.clone(), call.presented.clone());
        let number = u32::try_from(call.attempts.len()).unwrap_or(u32::MAX);
        let client = self.client(attempt.call.client);
        let open = client.stream.filter(|_| arguments.is_on_stream);
        if arguments.is_on_stream && open.is_none() {
            return false;
        }
        let request = AcquireRequest {
            attempt,
            arguments,
            presented,
            sent_us: now_us,
            stream: open.map(|open| RequestStream {
                stream: open.key,
                number,
            }),
        };
        let broker = open.map_or(broker, |open| open.broker);
        let request = Request::Acquire(Box::new(request));
        self.send(TaskKey::Acquire(attempt), Body::ToBroker(broker, request));
        true
    }

    fn open_stream(&mut self, client: ClientIndex, broker: u8) -> bool {
        self.break_stream(client);
        let known = self.client(client);
        known.streams_opened += 1;
        known.stream = Some(OpenStream {
            key: StreamKey {
                client,
                number: known.streams_opened,
            },
            broker,
        });
        true
    }

    fn break_stream(&mut self, client: ClientIndex) -> bool {
        let Some(open) = self.client(client).stream else {
            return false;
        };
        self.client(client).on_broken();
        let broken = Request::StreamBroken(open.key);
        self.send(
            TaskKey::Stream(open.key),
            Body::ToBroker(open.broker, broken),
        );
        true
    }

    fn heartbeat(&mut self, client: ClientIndex) -> bool {
        let sent_us = self.now_us;
        let Some(open) = self.client(client).stream else {
            return false;
        };
        let stream = open.key;
        let heartbeat = Request::Heartbeat { stream, sent_us };
        self.send(
            TaskKey::Stream(stream),
            Body::ToBroker(open.broker, heartbeat),
        );
        true
    }

    fn attach(&mut self, client: ClientIndex, lease: CallKey) -> bool {
        let now_us = self.now_us;
        let known = self.client(client);
        let Some(open) = known.stream else {
            return false;
        };
        let held = known.leases.get_mut(&lease);
        let Some(held) =
            held.filter(|held| held.state == LeaseState::Held && held.stream != Some(open.key))
        else {
            return false;
        };
        held.attachments += 1;
        let request = Request::Attach {
            stream: open.key,
            number: held.attachments,
            lease,
            presented: held.presented(now_us),
        };
        self.send(
            TaskKey::Stream(open.key),
            Body::ToBroker(open.broker, request),
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

    fn renew(&mut self, (client, operation): (u8, u8), lease: CallKey, broker: u8) -> bool {
        let sent_us = self.now_us;
        let known = self.client(client).leases.get(&lease);
        let Some(known) = known.filter(|known| known.state == LeaseState::Held) else {
            return false;
        };
        let presented = known.presented(sent_us);
        if presented.is_empty() || known.stream.is_some() {
            return false;
        }
        let request = Request::Renew {
            lease,
            presented,
            sent_us,
        };
        let task = TaskKey::Operation(client, operation);
        self.send(task, Body::ToBroker(broker, request));
        true
    }

    fn release(
        &mut self,
        (client, operation): (u8, u8),
        lease: CallKey,
        part: ReleasePart,
        broker: u8,
    ) -> bool {
        let now_us = self.now_us;
        let ModelClient {
            calls,
            leases,
            stream: open,
            ..
        } = self.client(client);
        let open = *open;
        let is_open = |call: &ClientCall| {
            call.state == CallState::Open && call.arguments.under == Some(lease)
        };
        let has_open_calls = calls.values().any(is_open);
        let known = leases.get_mut(&lease);
        let Some(known) = known.filter(|known| known.state == LeaseState::Held) else {
            return false;
        };
        // A lease on a stream is changed on that stream only.
        if known.stream.is_some() && known.stream != open.map(|open| open.key) {
            return false;
        }
        let stream = known.stream;
        let presented = known.release(part, now_us, has_open_calls);
        if presented.is_empty() {
            return false;
        }
        let request = Request::Release {
            lease,
            presented,
            part,
            stream,
        };
        let broker = stream.and(open).map_or(broker, |open| open.broker);
        let task = TaskKey::Operation(client, operation);
        self.send(task, Body::ToBroker(broker, request));
        true
    }

    fn give_up(&mut self, key: TaskKey) -> bool {
        let brokers = 0..self.brokers.len();
        let found = brokers.into_iter().find_map(|broker| {
            let command = match self.brokers[broker].tasks.get(&key)? {
                Task::Acquire(task) => task.in_flight(),
                Task::Operation(task) => task.in_flight(),
                Task::Rollback(task) => task.in_flight,
                Task::Touch(touch) => Some(touch.command),
            };
            Some((broker, command?))
        });
        if let Some((broker, command)) = found {
            self.on_reply(broker, key, command, None);
        }
        found.is_some()
    }

    fn kill(&mut self, broker: u8) -> bool {
        let era = self.store.era;
        let Some(killed) = self.brokers.get_mut(usize::from(broker)) else {
            return false;
        };
        let start = killed.process.start + 1;
        *killed = ModelBroker::new(ProcessKey { broker, start }, era);
        true
    }

    fn touch(&mut self, broker: u8, lock: LockIndex) -> bool {
        let broker = usize::from(broker);
        let key = TaskKey::Touch(self.brokers[broker].process, lock);
        let tasks = &self.brokers[broker].tasks;
        let has_waiters = tasks
            .values()
            .any(|task| matches!(task, Task::Acquire(task) if task.waits_for(lock)));
        if tasks.contains_key(&key) || !has_waiters {
            return false;
        }
        let command = self.send_command(broker, key, lock, StoreCommand::Touch(1));
        let sent_us = self.now_us;
        let touch = TouchTask { command, sent_us };
        self.brokers[broker].tasks.insert(key, Task::Touch(touch));
        true
    }

    fn cancel(&mut self, key: TaskKey) -> bool {
        if let TaskKey::Lapse(stream, lease) = key {
            return self.end_grace(stream, lease);
        }
        let TaskKey::Rollback(attempt, lock) = key else {
            return false;
        };
        let now_us = self.now_us;
        let is_due = |broker: &ModelBroker| {
            matches!(
                broker.tasks.get(&key),
                Some(Task::Rollback(task))
                    if task.in_flight.is_none() && now_us >= task.not_before_us
            )
        };
        let Some(broker) = self.brokers.iter().position(is_due) else {
            return false;
        };
        let cancel = StoreCommand::Cancel(attempt.call.request(), attempt.id());
        let command = self.send_command(broker, key, lock, cancel);
        if let Some(Task::Rollback(task)) = self.brokers[broker].tasks.get_mut(&key) {
            task.in_flight = Some(command);
        }
        true
    }

    fn end_grace(&mut self, stream: StreamKey, lease: CallKey) -> bool {
        let now_us = self.now_us;
        let key = TaskKey::Lapse(stream, lease);
        let is_due = |broker: &ModelBroker| {
            let task = broker.tasks.get(&key);
            matches!(task, Some(Task::Rollback(task)) if now_us >= task.not_before_us)
        };
        match self.brokers.iter().position(is_due) {
            Some(broker) => self.lapse(broker, stream, lease),
            None => false,
        }
    }

    fn roll_back(&mut self, saves_ago: u8) -> bool {
        if !self.store.roll_back(saves_ago, self.now_us) {
            return false;
        }
        // Connections end with the server, and with them the commands that it did not receive.
        self.messages
            .retain(|_, body| !matches!(body, Body::Command(..)));
        true
    }
}

impl Request {
    /// Returns the lease or call that the request concerns; `None` for a whole stream.
    #[must_use]
    pub fn call(&self) -> Option<CallKey> {
        match self {
            Self::Acquire(request) => Some(request.arguments.under.unwrap_or(request.attempt.call)),
            Self::Disconnect(attempt) => Some(attempt.call),
            Self::Renew { lease, .. }
            | Self::Release { lease, .. }
            | Self::Attach { lease, .. } => Some(*lease),
            Self::Heartbeat { .. } | Self::StreamBroken(_) => None,
        }
    }
}

/// Returns true if the network may repeat the message. An RPC is repeated by its client only, as
/// another attempt.
fn is_repeatable(body: &Body) -> bool {
    match body {
        Body::Command(..) | Body::Reply(..) | Body::HandOff(..) => true,
        Body::ToBroker(..) | Body::ToClient(_) => false,
    }
}
