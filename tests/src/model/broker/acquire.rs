//! The acquisition of the locks of one RPC, one after the other.

use leasehold_server::{
    lock::{
        AcquireCommand, Attachment, ExpectedAttachment, FencingToken, LeaseBinding, LeaseOptions,
        Owner, Ttl, expiry_ms,
    },
    store::{Acquired, Cancelled, LeaseRejection, Rejected},
};

use super::{
    Failure, GrantedLock, REPEAT_GRACE_US, Renewals, Task, expected_attachment, lease_ref,
    renewals::granted,
};
use crate::{
    differential::steps::{StoreCommand, StoreReply},
    model::{
        action::CallArguments,
        client::{ClientReply, PresentedLock},
        keys::{AttemptKey, CallKey, LockIndex, ProcessKey, StreamKey, TaskKey, lock_key},
        world::{Body, Reply, World},
    },
};

/// An RPC that acquires locks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AcquireTask {
    pub request: AcquireRequest,
    pub deadline_us: u64,
    /// True until the broker detects that the client has abandoned the RPC.
    pub is_connected: bool,
    pub phase: AcquirePhase,
    /// Signals that the task has not processed.
    pub signals: Vec<Signal>,
    /// Locks that were granted.
    acquired: Vec<GrantedLock>,
    /// Locks at which the attempt must be rolled back if the call fails.
    attempted: Vec<LockIndex>,
    /// True if the store may have the attempt at the current lock.
    may_be_in_store: bool,
    /// Newest token of the current lock when the attempt was queued.
    token_when_queued: u64,
    /// Time at which the last `acquire` was sent.
    acquire_sent_us: u64,
    /// Time at which the last `acquire` that queued the attempt was sent; `None` if a later one had
    /// no reply.
    queued_at_us: Option<u64>,
    /// Time at which the client had sent the newest message that the broker had read before it sent
    /// the last command that may grant.
    as_of_us: u64,
}

/// An RPC as the client sends it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AcquireRequest {
    pub attempt: AttemptKey,
    pub arguments: CallArguments,
    /// Lease to which the lock is added, as the client presents it.
    pub presented: Vec<PresentedLock>,
    pub sent_us: u64,
    /// Stream on which the RPC is sent.
    pub stream: Option<RequestStream>,
}

/// Stream of a request, with the number of the attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestStream {
    pub stream: StreamKey,
    pub number: u32,
}

/// Current step of an RPC.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AcquirePhase {
    /// Renews the lease to which the lock is added.
    Existing(Renewals),
    /// Waits for the reply to `acquire`, the command with this number.
    Acquiring(u16),
    /// Waits in the queue.
    Waiting,
    /// Claims a hand-off, by the command with this number.
    Claiming(u16),
    /// Leaves the queue after the wait has timed out, by the command with this number.
    Leaving(u16),
    /// Renews the other locks of the lease.
    Confirming(Renewals),
}

/// Notification of a waiting task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    HandOff(HandOffSignal),
    /// The queue position may be lost.
    Rejoin,
}

/// A hand-off of the lock to the request of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandOffSignal {
    pub token: u64,
    pub is_provisional: bool,
    /// Era and time of the command that granted the lock.
    pub era: u32,
    pub executed_at_us: u64,
}

impl AcquireTask {
    /// Returns true if the task is registered for signals of the lock.
    #[must_use]
    pub fn waits_for(&self, lock: LockIndex) -> bool {
        let is_at_lock = matches!(
            self.phase,
            AcquirePhase::Acquiring(_)
                | AcquirePhase::Waiting
                | AcquirePhase::Claiming(_)
                | AcquirePhase::Leaving(_)
        );
        is_at_lock && self.request.arguments.wait_ms > 0 && self.lock() == Some(lock)
    }

    /// Returns the lock that is being acquired.
    #[must_use]
    pub fn lock(&self) -> Option<LockIndex> {
        let target = self.request.arguments.targets.get(self.acquired.len());
        target.map(|target| target.lock)
    }

    /// Returns the oldest command without a reply.
    #[must_use]
    pub fn in_flight(&self) -> Option<u16> {
        match &self.phase {
            AcquirePhase::Existing(renewals) | AcquirePhase::Confirming(renewals) => {
                renewals.in_flight()
            }
            AcquirePhase::Acquiring(command)
            | AcquirePhase::Claiming(command)
            | AcquirePhase::Leaving(command) => Some(*command),
            AcquirePhase::Waiting => None,
        }
    }

    /// Returns true if a grant may have been made and have expired since the touch that was sent at
    /// `touch_sent_us`, or since the last `acquire` of the task, so that no touch reports it.
    #[must_use]
    pub fn may_miss_a_grant(&self, touch_sent_us: u64, now_us: u64) -> bool {
        let reported_for_us = expiry_ms(effective_ttl_ms(&self.request.arguments)) * 1_000 * 5 / 6;
        let is_checked =
            |queued_at_us: u64| now_us - touch_sent_us.max(queued_at_us) < reported_for_us;
        !self.queued_at_us.is_some_and(is_checked)
    }

    fn lease(&self) -> CallKey {
        let under = self.request.arguments.under;
        under.unwrap_or(self.request.attempt.call)
    }

    fn stream(&self) -> Option<StreamKey> {
        self.request.stream.map(|on| on.stream)
    }

    fn command(&self, process: ProcessKey, now_us: u64, rejoin: bool) -> AcquireCommand {
        let wait_ms = match self.request.arguments.wait_ms {
            0 => 0,
            _ => {
                let remaining_us = self.deadline_us.saturating_sub(now_us);
                remaining_us.div_ceil(1_000).max(1)
            }
        };
        let target = self.acquired.len();
        self.request.command(process, target, wait_ms, rejoin)
    }
}

impl AcquireRequest {
    /// Returns the command for the lock at index `target` of the call.
    pub fn command(
        &self,
        process: ProcessKey,
        target: usize,
        wait_ms: u64,
        rejoin: bool,
    ) -> AcquireCommand {
        let Self {
            attempt,
            arguments,
            presented,
            stream,
            ..
        } = self;
        let target = &arguments.targets[target];
        let held = presented.iter().find(|held| held.lock == target.lock);
        let lease = arguments.under.unwrap_or(attempt.call);
        AcquireCommand {
            lock: lock_key(target.lock),
            mode: target.mode,
            lease_id: lease.lease_id(),
            binding: match (held, arguments.under) {
                (Some(held), _) => {
                    LeaseBinding::Reentry(FencingToken::new(held.token).expect("a token"))
                }
                (None, Some(_)) => LeaseBinding::Existing,
                (None, None) => LeaseBinding::New,
            },
            stream: stream.map(|on| Attachment {
                stream: on.stream.id(process),
                number: on.number,
            }),
            request: attempt.call.request(),
            arguments: attempt.call.arguments(),
            attempt: attempt.id(),
            ttl: Ttl::from_stored(arguments.ttl_ms),
            options: LeaseOptions {
                max_hold_ms: arguments.max_hold_ms,
                lock_delay_ms: arguments.lock_delay_ms,
                at_least_ms: arguments.at_least_ms,
                disconnect_grace_ms: arguments.disconnect_grace_ms,
            },
            wait_ms,
            owner: Owner {
                id: attempt.call.to_string(),
                ..Owner::default()
            },
            rejoin,
        }
    }
}

impl World {
    /// Starts an RPC at a broker.
    pub(in crate::model) fn start_acquire(&mut self, broker: usize, request: AcquireRequest) {
        let key = TaskKey::Acquire(request.attempt);
        let wait_ms = request.arguments.wait_ms;
        let mut task = Box::new(AcquireTask {
            request,
            deadline_us: self.now_us + wait_ms * 1_000,
            is_connected: true,
            phase: AcquirePhase::Waiting,
            signals: Vec::new(),
            acquired: Vec::new(),
            attempted: Vec::new(),
            may_be_in_store: false,
            token_when_queued: 0,
            acquire_sent_us: 0,
            queued_at_us: Some(0),
            as_of_us: 0,
        });
        let presented = task.request.presented.clone();
        let task = if wait_ms > 0 && !presented.is_empty() {
            let renewals = self.renew_all(broker, key, &task, presented);
            task.phase = AcquirePhase::Existing(renewals);
            Some(Task::Acquire(task))
        } else {
            self.acquire_next(broker, key, task)
        };
        if let Some(task) = task {
            self.brokers[broker].tasks.insert(key, task);
        }
    }

    /// Handles the reply to a command of an RPC. Returns the task unless it has ended.
    pub(super) fn acquire_reply(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
        (command, reply): (u16, Option<&Reply>),
    ) -> Option<Task> {
        let surviving = match &mut task.phase {
            AcquirePhase::Existing(renewals) | AcquirePhase::Confirming(renewals) => {
                renewals.receive(command, reply);
                if !renewals.is_complete() {
                    return Some(Task::Acquire(task));
                }
                renewals.surviving()
            }
            AcquirePhase::Acquiring(number) if *number == command => {
                return self.acquired_reply(broker, key, task, reply);
            }
            AcquirePhase::Claiming(number) if *number == command => {
                return self.claim_reply(broker, key, task, reply);
            }
            AcquirePhase::Leaving(number) if *number == command => {
                return self.fail(broker, key, &task, left(reply));
            }
            AcquirePhase::Acquiring(_)
            | AcquirePhase::Claiming(_)
            | AcquirePhase::Leaving(_)
            | AcquirePhase::Waiting => return Some(Task::Acquire(task)),
        };
        match surviving {
            Err(failure) => self.fail(broker, key, &task, failure),
            Ok(_) if matches!(task.phase, AcquirePhase::Existing(_)) => {
                self.acquire_next(broker, key, task)
            }
            Ok(locks) => self.finish(broker, key, &task, locks),
        }
    }

    /// Processes the signals of a task that waits. Returns the task unless it has ended.
    pub(super) fn process_signals(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
    ) -> Option<Task> {
        while task.phase == AcquirePhase::Waiting && !task.signals.is_empty() {
            let lock = task.lock().expect("the current lock");
            match task.signals.remove(0) {
                Signal::Rejoin => self.send_acquire(broker, key, &mut task, true),
                // A hand-off to an earlier attempt, which was cancelled.
                Signal::HandOff(hand_off) if hand_off.token <= task.token_when_queued => {}
                // On a stream every hand-off is claimed, so that its validity counts from a heartbeat.
                Signal::HandOff(hand_off)
                    if !hand_off.is_provisional && task.request.stream.is_none() =>
                {
                    task.acquired.push(GrantedLock {
                        lock,
                        token: hand_off.token,
                        ttl_ms: effective_ttl_ms(&task.request.arguments),
                        granted_at_us: hand_off.executed_at_us,
                        era: hand_off.era,
                    });
                    return self.acquire_next(broker, key, task);
                }
                Signal::HandOff(HandOffSignal { token, .. }) => {
                    let lease = lease_ref(task.lease(), PresentedLock { lock, token });
                    let expected = match task.stream() {
                        Some(stream) => {
                            ExpectedAttachment::Stream(stream.id(self.brokers[broker].process))
                        }
                        None => ExpectedAttachment::Any,
                    };
                    task.as_of_us = self.as_of_us(broker, &task);
                    let claim = StoreCommand::Renew(lease, None, expected);
                    let command = self.send_command(broker, key, lock, claim);
                    task.phase = AcquirePhase::Claiming(command);
                }
            }
        }
        Some(Task::Acquire(task))
    }

    /// Lets a waiting RPC leave the queue if its wait has timed out. Returns true if it has.
    pub(in crate::model) fn time_out(&mut self, broker: usize, key: TaskKey) -> bool {
        let now_us = self.now_us;
        let Some(Task::Acquire(task)) = self.brokers[broker].tasks.get(&key) else {
            return false;
        };
        let is_due = task.phase == AcquirePhase::Waiting && now_us >= task.deadline_us;
        let attempt = task.request.attempt;
        let Some(lock) = task.lock().filter(|_| is_due) else {
            return false;
        };
        let cancel = StoreCommand::Cancel(attempt.call.request(), attempt.id());
        let command = self.send_command(broker, key, lock, cancel);
        if let Some(Task::Acquire(task)) = self.brokers[broker].tasks.get_mut(&key) {
            task.phase = AcquirePhase::Leaving(command);
        }
        true
    }

    /// Handles the end of the client's connection.
    pub(in crate::model) fn disconnect(&mut self, broker: usize, attempt: AttemptKey) {
        let key = TaskKey::Acquire(attempt);
        let Some(Task::Acquire(task)) = self.brokers[broker].tasks.get_mut(&key) else {
            return;
        };
        task.is_connected = false;
        if task.phase == AcquirePhase::Waiting {
            let locks = task.attempted.clone();
            self.brokers[broker].tasks.remove(&key);
            self.schedule_rollback(broker, attempt, &locks, REPEAT_GRACE_US);
        }
    }

    fn acquire_next(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
    ) -> Option<Task> {
        let Some(lock) = task.lock() else {
            return self.confirm(broker, key, task);
        };
        task.attempted.push(lock);
        task.may_be_in_store = false;
        task.token_when_queued = 0;
        task.queued_at_us = Some(self.now_us);
        task.signals.clear();
        let tasks = &self.brokers[broker].tasks;
        if !tasks
            .values()
            .any(|other| matches!(other, Task::Acquire(other) if other.waits_for(lock)))
        {
            self.brokers[broker].queues.remove(&lock);
        }
        self.send_acquire(broker, key, &mut task, false);
        Some(Task::Acquire(task))
    }

    fn send_acquire(&mut self, broker: usize, key: TaskKey, task: &mut AcquireTask, rejoin: bool) {
        let lock = task.lock().expect("the current lock");
        let command = task.command(self.brokers[broker].process, self.now_us, rejoin);
        task.as_of_us = self.as_of_us(broker, task);
        let command = StoreCommand::Acquire(Box::new(command));
        task.acquire_sent_us = self.now_us;
        task.phase = AcquirePhase::Acquiring(self.send_command(broker, key, lock, command));
    }

    fn acquired_reply(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
        reply: Option<&Reply>,
    ) -> Option<Task> {
        let was_queued = task.may_be_in_store;
        task.queued_at_us = None;
        let Some(reply) = reply else {
            task.may_be_in_store = true;
            return match was_queued {
                // The call was queued before. The next touch asks it to join again.
                true => self.wait(broker, key, task),
                false => self.fail(broker, key, &task, Failure::Unavailable),
            };
        };
        let StoreReply::Acquire(result) = &reply.reply else {
            return self.fail(broker, key, &task, Failure::Unavailable);
        };
        let acquired = match result {
            Ok(outcome) => &outcome.reply,
            Err(Rejected::DeadlinePassed | Rejected::NoEra) if was_queued => {
                return self.wait(broker, key, task);
            }
            Err(_) => return self.fail(broker, key, &task, Failure::Unavailable),
        };
        task.may_be_in_store |= matches!(acquired, Acquired::Granted(_) | Acquired::Queued { .. });
        let failure = match acquired {
            Acquired::Granted(grant) => {
                let lock = task.lock().expect("the current lock");
                task.acquired.push(granted(lock, grant, reply));
                return self.acquire_next(broker, key, task);
            }
            Acquired::Queued {
                last_fencing_token, ..
            } if task.request.arguments.wait_ms > 0 => {
                task.token_when_queued = *last_fencing_token;
                task.queued_at_us = Some(task.acquire_sent_us);
                self.record_era(broker, reply.lock, reply.verified_era);
                return self.wait(broker, key, task);
            }
            Acquired::Queued { .. } | Acquired::Held(_) => Failure::Held,
            Acquired::NotFound => Failure::LeaseNotFound,
            Acquired::Ended | Acquired::Cancelled => Failure::LeaseExpired,
            Acquired::StaleAttach => Failure::StaleAttach,
            Acquired::LimitMismatch { .. }
            | Acquired::UpgradeDenied
            | Acquired::TooManyEntries
            | Acquired::TooManyAttempts
            | Acquired::QueueFull
            | Acquired::RequestIdReused => Failure::Rejected,
        };
        self.fail(broker, key, &task, failure)
    }

    fn wait(&mut self, broker: usize, key: TaskKey, mut task: Box<AcquireTask>) -> Option<Task> {
        task.phase = AcquirePhase::Waiting;
        if !task.is_connected {
            let locks = &task.attempted;
            self.schedule_rollback(broker, task.request.attempt, locks, REPEAT_GRACE_US);
            return None;
        }
        self.process_signals(broker, key, task)
    }

    fn claim_reply(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
        reply: Option<&Reply>,
    ) -> Option<Task> {
        let renewed = reply.and_then(|reply| {
            let StoreReply::Renew(Ok(outcome)) = &reply.reply else {
                return None;
            };
            Some((reply, &outcome.reply))
        });
        match renewed {
            Some((reply, Ok(grant))) => {
                let lock = task.lock().expect("the current lock");
                task.acquired.push(granted(lock, grant, reply));
                self.acquire_next(broker, key, task)
            }
            Some((
                _,
                Err(rejection @ (LeaseRejection::Revoked { .. } | LeaseRejection::Elsewhere)),
            )) => self.fail(broker, key, &task, rejection.into()),
            // The hand-off lapsed.
            Some((
                _,
                Err(
                    LeaseRejection::MaxHold
                    | LeaseRejection::Expired
                    | LeaseRejection::Released
                    | LeaseRejection::NotFound,
                ),
            )) => {
                self.send_acquire(broker, key, &mut task, true);
                Some(Task::Acquire(task))
            }
            None => self.wait(broker, key, task),
        }
    }

    /// Renews every lock of the lease except the one that was granted last.
    fn confirm(&mut self, broker: usize, key: TaskKey, mut task: Box<AcquireTask>) -> Option<Task> {
        let newest = task.acquired.last().map(|newest| newest.lock);
        let acquired = task.acquired.iter().map(|acquired| PresentedLock {
            lock: acquired.lock,
            token: acquired.token,
        });
        let others = task.request.presented.iter().copied().chain(acquired);
        let others: Vec<_> = others.filter(|other| Some(other.lock) != newest).collect();
        if others.is_empty() {
            return self.finish(broker, key, &task, Vec::new());
        }
        task.phase = AcquirePhase::Confirming(self.renew_all(broker, key, &task, others));
        Some(Task::Acquire(task))
    }

    fn renew_all(
        &mut self,
        broker: usize,
        key: TaskKey,
        task: &AcquireTask,
        presented: Vec<PresentedLock>,
    ) -> Renewals {
        let lease = task.lease();
        let unary = expected_attachment(task.stream(), self.brokers[broker].process);
        let command =
            |held: &PresentedLock| StoreCommand::Renew(lease_ref(lease, *held), None, unary);
        let commands: Vec<_> = presented.iter().map(command).collect();
        let mut renewals = Renewals::new(presented);
        for command in commands {
            renewals.send(self, broker, key, command);
        }
        renewals
    }

    /// Sends the lease to the client, or rolls it back if the client is gone.
    fn finish(
        &mut self,
        broker: usize,
        key: TaskKey,
        task: &AcquireTask,
        mut locks: Vec<GrantedLock>,
    ) -> Option<Task> {
        let (newest, earlier) = task.acquired.split_last().expect("a lock");
        let is_kept = |acquired: &GrantedLock| locks.iter().any(|kept| kept.lock == acquired.lock);
        if !earlier.iter().all(is_kept) {
            return self.fail(broker, key, task, Failure::LeaseExpired);
        }
        let attempt = task.request.attempt;
        if !task.is_connected {
            self.schedule_rollback(broker, attempt, &task.attempted, REPEAT_GRACE_US);
            return None;
        }
        locks.push(*newest);
        if let Some(stream) = task.stream() {
            self.add_to_stream(broker, stream, task.lease(), &locks);
        }
        let reply = ClientReply::Granted {
            call: attempt.call,
            stream: task.stream(),
            sent_us: task.as_of_us,
            locks,
        };
        self.send(key, Body::ToClient(reply));
        None
    }

    /// Returns the time from which the validity of a grant counts: that of the newest heartbeat, or
    /// of the call if the call was sent later.
    fn as_of_us(&self, broker: usize, task: &AcquireTask) -> u64 {
        let streams = &self.brokers[broker].streams;
        let stream = task.stream().and_then(|stream| streams.get(&stream));
        let heartbeat_us = stream.map_or(0, |stream| stream.heartbeat_sent_us);
        heartbeat_us.max(task.request.sent_us)
    }

    /// Rolls back what was acquired, and sends the failure to the client.
    fn fail(
        &mut self,
        broker: usize,
        key: TaskKey,
        task: &AcquireTask,
        failure: Failure,
    ) -> Option<Task> {
        let is_renewing = matches!(
            task.phase,
            AcquirePhase::Existing(_) | AcquirePhase::Confirming(_)
        );
        let mut locks = &task.attempted[..];
        if !is_renewing && !task.may_be_in_store {
            locks = &locks[..locks.len() - 1];
        }
        let grace_us = match failure == Failure::Unavailable {
            true => REPEAT_GRACE_US,
            false => 0,
        };
        self.schedule_rollback(broker, task.request.attempt, locks, grace_us);
        let reply = ClientReply::Refused {
            call: task.request.attempt.call,
            presented: task.request.presented.clone(),
            failure,
        };
        self.send(key, Body::ToClient(reply));
        None
    }
}

/// Returns the failure of a call whose wait has timed out, from the reply to its cancellation.
fn left(reply: Option<&Reply>) -> Failure {
    match reply.map(|reply| &reply.reply) {
        Some(StoreReply::Cancel(Ok(outcome))) => match outcome.reply {
            Cancelled::Kept => Failure::StillQueued,
            Cancelled::Dequeued | Cancelled::Freed | Cancelled::Unknown => Failure::WaitTimeout,
        },
        _ => Failure::Unavailable,
    }
}

fn effective_ttl_ms(arguments: &CallArguments) -> u64 {
    let max_hold_ms = arguments.max_hold_ms.unwrap_or(u64::MAX);
    arguments.ttl_ms.min(max_hold_ms)
}
