//! RPCs that acquire the lock: what a broker asks its store for, and what it makes of the replies.

use leasehold_server::{
    lock::{ExpectedAttachment, Grant},
    store::{
        Acquired, Cancelled, LeaseReply, StoreError,
        redlock::model::{LostVote, cancelled, renewed_or_attached},
    },
};

use super::{
    LOCK, NODES,
    broker::{Received, Replies, Task},
    election::{Elected, Election, RoundTimeout},
    operations::{Cancellation, cancellation, quorum_result, renewal_or_attachment},
    waiters::{TRY_TIMEOUT_US, Waiter},
    world::{Body, RedlockWorld},
};
use crate::{
    differential::steps::StoreCommand,
    model::{
        broker::{AcquireRequest, Failure, GrantedLock, expected_attachment, lease_ref},
        client::{ClientReply, PresentedLock},
        keys::{AttemptKey, CallKey, StreamKey, TaskKey},
    },
};

/// An RPC that acquires the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireTask {
    pub request: AcquireRequest,
    pub deadline_us: u64,
    /// True until the broker detects that the client has abandoned the RPC.
    is_connected: bool,
    pub phase: AcquirePhase,
    /// Signals that the task has not processed.
    signals: Vec<Signal>,
    /// True if the nodes or the queue may have the attempt.
    may_be_in_store: bool,
    /// Time at which the client had sent the newest message that the broker had read before it sent
    /// the last commands that may grant.
    as_of_us: u64,
}

/// Current step of an RPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquirePhase {
    /// Requests the lock, or the grant that the call has, from the nodes.
    Electing(Box<Election>),
    /// Waits in the queue for its first reply.
    Joining,
    /// Waits behind others, and asks the nodes for a grant that the call has.
    Asking(Box<Election>),
    Waiting,
    /// Claims a hand-off.
    Claiming {
        replies: Replies<LeaseReply<Grant>>,
        restarts: u32,
    },
    /// Leaves the queue after the wait has timed out.
    Leaving(Replies<Cancelled>),
}

/// Notification of a waiting task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    /// The call has the lock with this token.
    HandOff(u64),
    /// The queue position may be lost.
    Rejoin,
}

/// Reply of the store to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JoinReply {
    Granted(GrantedLock),
    Rejected(Acquired),
    Held,
    Queued,
    Failed(StoreError),
}

impl AcquireTask {
    pub(super) fn outstanding(&self) -> Vec<u16> {
        match &self.phase {
            AcquirePhase::Electing(election) | AcquirePhase::Asking(election) => {
                election.outstanding().collect()
            }
            AcquirePhase::Claiming { replies, .. } => replies.outstanding.keys().copied().collect(),
            AcquirePhase::Leaving(replies) => replies.outstanding.keys().copied().collect(),
            AcquirePhase::Joining | AcquirePhase::Waiting => Vec::new(),
        }
    }

    fn lease(&self) -> CallKey {
        let under = self.request.arguments.under;
        under.unwrap_or(self.request.attempt.call)
    }

    fn stream(&self) -> Option<StreamKey> {
        self.request.stream.map(|on| on.stream)
    }

    fn waits(&self) -> bool {
        self.request.arguments.wait_ms > 0 && self.request.arguments.under.is_none()
    }
}

impl RedlockWorld {
    /// Starts an RPC at a broker.
    pub(super) fn start_acquire(&mut self, broker: usize, request: AcquireRequest) {
        let key = TaskKey::Acquire(request.attempt);
        let call = request.attempt.call;
        let deadline_us = self.now_us + request.arguments.wait_ms * 1_000;
        let task = Box::new(AcquireTask {
            request,
            deadline_us,
            is_connected: true,
            phase: AcquirePhase::Waiting,
            signals: Vec::new(),
            may_be_in_store: false,
            as_of_us: 0,
        });
        // Two RPCs of a call that waits at one broker would share a place in its queue, which is not
        // modelled.
        let mut queued = self.brokers[broker].waiters.keys();
        if queued.any(|queued| queued.call == call) {
            self.reply_failure(key, &task, Failure::Unavailable);
            return;
        }
        if let Some(task) = self.store_acquire(broker, key, task, false) {
            self.brokers[broker].tasks.insert(key, Task::Acquire(task));
            if let TaskKey::Acquire(attempt) = key
                && self.needs_first_try(broker, attempt)
            {
                self.try_waiter(broker, attempt);
            }
        }
    }

    /// Handles the reply of a node to a command of an RPC. Returns the task unless it has ended.
    pub(super) fn on_acquire_answer(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
        received: Received<'_>,
    ) -> Option<Task> {
        let task = match &mut task.phase {
            AcquirePhase::Electing(election) | AcquirePhase::Asking(election) => {
                match self.on_vote(broker, key, election, received) {
                    Some(elected) => self.on_elected(broker, key, task, elected),
                    None => Some(task),
                }
            }
            AcquirePhase::Claiming { replies, restarts } => {
                replies.receive(received, renewal_or_attachment);
                let (quorum, restarts) = (renewed_or_attached(NODES, &replies.replies), *restarts);
                match quorum.is_decided {
                    false => Some(task),
                    true => {
                        let result = quorum_result(quorum, restarts);
                        self.on_claimed(broker, key, task, result)
                    }
                }
            }
            AcquirePhase::Leaving(replies) => {
                replies.receive(received, cancellation);
                let quorum = cancelled(NODES, &replies.replies);
                match quorum.is_decided {
                    false => Some(task),
                    true => self.on_left(broker, key, &task, quorum.result.ok()),
                }
            }
            AcquirePhase::Joining | AcquirePhase::Waiting => Some(task),
        };
        task.map(Task::Acquire)
    }

    /// Ends the wait for votes for an RPC, if the time of the round is up.
    pub(super) fn time_out_call_round(&mut self, broker: usize, key: TaskKey) -> bool {
        let tasks = &mut self.brokers[broker].tasks;
        if !matches!(tasks.get(&key), Some(Task::Acquire(_))) {
            return false;
        }
        let Some(Task::Acquire(mut task)) = tasks.remove(&key) else {
            return false;
        };
        let timeout = match &mut task.phase {
            AcquirePhase::Electing(election) | AcquirePhase::Asking(election) => {
                self.time_out_round(broker, key, election)
            }
            AcquirePhase::Joining
            | AcquirePhase::Waiting
            | AcquirePhase::Claiming { .. }
            | AcquirePhase::Leaving(_) => RoundTimeout::NotDue,
        };
        let is_due = timeout != RoundTimeout::NotDue;
        let task = match timeout {
            RoundTimeout::Elected(elected) => self.on_elected(broker, key, task, elected),
            RoundTimeout::NotDue | RoundTimeout::NextRound => Some(task),
        };
        self.keep(broker, key, task);
        is_due
    }

    /// Delivers the first reply of the queue to an RPC. Returns false if the RPC has ended.
    pub(super) fn on_join_reply(
        &mut self,
        broker: usize,
        attempt: AttemptKey,
        reply: JoinReply,
    ) -> bool {
        let key = TaskKey::Acquire(attempt);
        let tasks = &mut self.brokers[broker].tasks;
        let is_joining = matches!(
            tasks.get(&key),
            Some(Task::Acquire(task)) if task.phase == AcquirePhase::Joining
        );
        if !is_joining {
            return false;
        }
        let Some(Task::Acquire(task)) = tasks.remove(&key) else {
            return false;
        };
        let task = self.on_store_reply(broker, key, task, reply);
        self.keep(broker, key, task);
        true
    }

    /// Notifies the waiting RPCs of a call of a grant.
    pub(super) fn signal_hand_off(&mut self, broker: usize, call: CallKey, token: u64) {
        self.signal(broker, Some(call), Signal::HandOff(token));
    }

    /// Asks the waiting RPCs to repeat their requests.
    pub(super) fn signal_rejoin(&mut self, broker: usize) {
        self.signal(broker, None, Signal::Rejoin);
    }

    /// Notifies waiting RPCs of the grants that they have missed, or that the queue is gone.
    pub(super) fn touch(&mut self, broker: usize) -> bool {
        let grants = self.brokers[broker].waiter_grants.clone();
        for (attempt, granted) in grants {
            self.signal_hand_off(broker, attempt.call, granted.token);
        }
        if !self.has_waiters(broker) {
            self.signal_rejoin(broker);
        }
        true
    }

    /// Lets a waiting RPC leave the queue if its wait has timed out.
    pub(super) fn time_out(&mut self, broker: usize, attempt: AttemptKey) -> bool {
        let key = TaskKey::Acquire(attempt);
        let now_us = self.now_us;
        let is_due = matches!(
            self.brokers[broker].tasks.get(&key),
            Some(Task::Acquire(task))
                if task.phase == AcquirePhase::Waiting && now_us >= task.deadline_us
        );
        if !is_due {
            return false;
        }
        let Some(Task::Acquire(mut task)) = self.brokers[broker].tasks.remove(&key) else {
            return false;
        };
        let task = match self.store_cancel(broker, key, attempt) {
            Cancellation::Done(cancelled) => self.on_left(broker, key, &task, Some(cancelled)),
            Cancellation::Pending(replies) => {
                task.phase = AcquirePhase::Leaving(replies);
                Some(task)
            }
        };
        self.keep(broker, key, task);
        true
    }

    /// Handles the end of the client's connection.
    pub(super) fn disconnect(&mut self, broker: usize, attempt: AttemptKey) {
        let key = TaskKey::Acquire(attempt);
        let Some(Task::Acquire(task)) = self.brokers[broker].tasks.get_mut(&key) else {
            return;
        };
        task.is_connected = false;
        if task.phase == AcquirePhase::Waiting {
            self.brokers[broker].tasks.remove(&key);
            self.schedule_rollback(broker, attempt, true);
        }
    }

    fn keep(&mut self, broker: usize, key: TaskKey, task: Option<Box<AcquireTask>>) {
        if let Some(task) = task {
            self.brokers[broker].tasks.insert(key, Task::Acquire(task));
        }
    }

    fn signal(&mut self, broker: usize, call: Option<CallKey>, signal: Signal) {
        let is_meant = |key: &TaskKey| {
            matches!(key, TaskKey::Acquire(attempt)
                if call.is_none_or(|call| call == attempt.call))
        };
        let tasks = &self.brokers[broker].tasks;
        let keys: Vec<_> = tasks.keys().copied().filter(is_meant).collect();
        for key in keys {
            let Some(Task::Acquire(mut task)) = self.brokers[broker].tasks.remove(&key) else {
                continue;
            };
            if task.waits() && !task.signals.contains(&signal) {
                task.signals.push(signal);
            }
            let task = self.process_signals(broker, key, task);
            self.keep(broker, key, task);
        }
    }

    fn process_signals(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
    ) -> Option<Box<AcquireTask>> {
        if task.phase != AcquirePhase::Waiting || task.signals.is_empty() {
            return Some(task);
        }
        match task.signals.remove(0) {
            Signal::Rejoin => self.store_acquire(broker, key, task, true),
            Signal::HandOff(token) => {
                let lease = lease_ref(task.lease(), PresentedLock { lock: LOCK, token });
                let expected = match task.stream() {
                    Some(_) => expected_attachment(task.stream(), self.brokers[broker].process),
                    None => ExpectedAttachment::Any,
                };
                task.as_of_us = self.as_of_us(broker, &task);
                let claim = StoreCommand::Renew(lease, None, expected);
                task.phase = AcquirePhase::Claiming {
                    replies: self.send_to_nodes(broker, key, &claim),
                    restarts: self.restarts,
                };
                Some(task)
            }
        }
    }

    /// Requests the lock as `RedlockStore::acquire` does.
    fn store_acquire(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
        rejoin: bool,
    ) -> Option<Box<AcquireTask>> {
        let process = self.brokers[broker].process;
        let remaining_us = task.deadline_us.saturating_sub(self.now_us);
        let wait_ms = match task.request.arguments.wait_ms {
            0 => 0,
            _ => remaining_us.div_ceil(1_000).max(1),
        };
        let acquire = task.request.command(process, 0, wait_ms, rejoin);
        let attempt = task.request.attempt;
        task.as_of_us = self.as_of_us(broker, &task);
        let has_waiters = self.has_waiters(broker);
        if !task.waits() {
            let is_new = task.request.arguments.under.is_none() && !has_waiters;
            let election = self.start_election(broker, key, acquire, is_new);
            task.phase = AcquirePhase::Electing(Box::new(election));
            return Some(task);
        }
        let until_us = self.now_us + wait_ms * 1_000;
        let waiters = &mut self.brokers[broker].waiters;
        if let Some(queued) = waiters.get_mut(&attempt).filter(|queued| !queued.has_left) {
            queued.acquire = acquire;
            queued.until_us = queued.until_us.max(until_us);
            return self.on_store_reply(broker, key, task, JoinReply::Queued);
        }
        let waiter = Waiter::new(acquire.clone(), until_us, !has_waiters);
        waiters.insert(attempt, waiter);
        if has_waiters {
            let election = self.start_election(broker, key, acquire, false);
            task.phase = AcquirePhase::Asking(Box::new(election));
        } else {
            task.phase = AcquirePhase::Joining;
        }
        Some(task)
    }

    fn needs_first_try(&self, broker: usize, attempt: AttemptKey) -> bool {
        let waiter = self.brokers[broker].waiters.get(&attempt);
        waiter.is_some_and(|waiter| waiter.needs_reply && waiter.tries == 0)
    }

    fn on_elected(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
        elected: Elected,
    ) -> Option<Box<AcquireTask>> {
        let attempt = task.request.attempt;
        let is_asking = matches!(task.phase, AcquirePhase::Asking(_));
        let is_split = elected == Elected::Lost(LostVote::Contended { is_split: true });
        let may_try_again = !is_asking && task.request.arguments.under.is_none();
        if is_split && may_try_again && !self.has_waiters(broker) {
            let process = self.brokers[broker].process;
            let acquire = task.request.command(process, 0, 0, false);
            let waiter = Waiter::new(acquire, self.now_us + TRY_TIMEOUT_US, true);
            self.brokers[broker].waiters.insert(attempt, waiter);
            task.phase = AcquirePhase::Joining;
            return Some(task);
        }
        let reply = match elected {
            Elected::Granted(granted) => JoinReply::Granted(granted),
            Elected::Lost(LostVote::Rejected(rejection)) => JoinReply::Rejected(rejection),
            Elected::Lost(LostVote::Contended { .. }) if is_asking => JoinReply::Queued,
            Elected::Lost(LostVote::Contended { .. }) => JoinReply::Held,
            Elected::Failed(StoreError::Recovering { .. })
                if is_asking && self.rejoins(broker, attempt) =>
            {
                JoinReply::Queued
            }
            Elected::Failed(error) => JoinReply::Failed(error),
        };
        if is_asking && reply != JoinReply::Queued {
            self.leave_queue(broker, attempt);
        }
        self.on_store_reply(broker, key, task, reply)
    }

    fn rejoins(&self, broker: usize, attempt: AttemptKey) -> bool {
        let waiter = self.brokers[broker].waiters.get(&attempt);
        waiter.is_some_and(|waiter| waiter.acquire.rejoin)
    }

    fn on_store_reply(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
        reply: JoinReply,
    ) -> Option<Box<AcquireTask>> {
        let was_queued = task.may_be_in_store;
        let is_in_store = matches!(
            reply,
            JoinReply::Granted(_) | JoinReply::Queued | JoinReply::Failed(_)
        );
        task.may_be_in_store |= is_in_store;
        let failure = match reply {
            JoinReply::Granted(granted) => {
                self.deliver_grant(broker, key, &task, granted);
                return None;
            }
            JoinReply::Failed(_) if !was_queued => Failure::Unavailable,
            JoinReply::Queued | JoinReply::Failed(_) => return self.wait(broker, key, task),
            JoinReply::Held => Failure::Held,
            JoinReply::Rejected(rejection) => failure_of(&rejection),
        };
        self.fail(broker, key, &task, failure);
        None
    }

    fn on_claimed(
        &mut self,
        broker: usize,
        key: TaskKey,
        task: Box<AcquireTask>,
        result: Result<GrantedLock, Failure>,
    ) -> Option<Box<AcquireTask>> {
        match result {
            Ok(granted) => {
                self.deliver_grant(broker, key, &task, granted);
                None
            }
            Err(Failure::Unavailable) => self.wait(broker, key, task),
            Err(failure @ (Failure::StaleAttach | Failure::LeaseRevoked)) => {
                self.fail(broker, key, &task, failure);
                None
            }
            // The hand-off has ended.
            Err(_) => self.store_acquire(broker, key, task, true),
        }
    }

    fn on_left(
        &mut self,
        broker: usize,
        key: TaskKey,
        task: &AcquireTask,
        cancelled: Option<Cancelled>,
    ) -> Option<Box<AcquireTask>> {
        let failure = match cancelled {
            Some(Cancelled::Kept) => Failure::StillQueued,
            Some(Cancelled::Dequeued | Cancelled::Freed | Cancelled::Unknown) => {
                Failure::WaitTimeout
            }
            None => Failure::Unavailable,
        };
        self.fail(broker, key, task, failure);
        None
    }

    fn wait(
        &mut self,
        broker: usize,
        key: TaskKey,
        mut task: Box<AcquireTask>,
    ) -> Option<Box<AcquireTask>> {
        task.phase = AcquirePhase::Waiting;
        if !task.is_connected {
            self.schedule_rollback(broker, task.request.attempt, true);
            return None;
        }
        self.process_signals(broker, key, task)
    }

    /// Sends the lease to the client, or rolls it back if the client is gone.
    fn deliver_grant(
        &mut self,
        broker: usize,
        key: TaskKey,
        task: &AcquireTask,
        granted: GrantedLock,
    ) {
        let attempt = task.request.attempt;
        if !task.is_connected {
            self.schedule_rollback(broker, attempt, true);
            return;
        }
        let reply = ClientReply::Granted {
            call: attempt.call,
            stream: task.stream(),
            sent_us: task.as_of_us,
            locks: vec![granted],
        };
        self.send(key, Body::ToClient(reply));
    }

    /// Returns the time from which the validity of a grant counts: that of the newest heartbeat, or
    /// of the call if the call was sent later.
    fn as_of_us(&self, broker: usize, task: &AcquireTask) -> u64 {
        let heartbeats = &self.brokers[broker].heartbeats;
        let heartbeat = task.stream().and_then(|stream| heartbeats.get(&stream));
        heartbeat.copied().unwrap_or(0).max(task.request.sent_us)
    }

    fn fail(&mut self, broker: usize, key: TaskKey, task: &AcquireTask, failure: Failure) {
        if task.may_be_in_store {
            let has_grace = failure == Failure::Unavailable;
            self.schedule_rollback(broker, task.request.attempt, has_grace);
        }
        self.reply_failure(key, task, failure);
    }

    fn reply_failure(&mut self, key: TaskKey, task: &AcquireTask, failure: Failure) {
        let reply = ClientReply::Refused {
            call: task.request.attempt.call,
            presented: task.request.presented.clone(),
            failure,
        };
        self.send(key, Body::ToClient(reply));
    }
}

fn failure_of(rejection: &Acquired) -> Failure {
    match rejection {
        Acquired::NotFound => Failure::LeaseNotFound,
        Acquired::Ended | Acquired::Cancelled => Failure::LeaseExpired,
        Acquired::StaleAttach => Failure::StaleAttach,
        Acquired::Granted(_) | Acquired::Queued { .. } | Acquired::Held(_) => Failure::Held,
        Acquired::LimitMismatch { .. }
        | Acquired::UpgradeDenied
        | Acquired::TooManyEntries
        | Acquired::TooManyAttempts
        | Acquired::QueueFull
        | Acquired::RequestIdReused => Failure::Rejected,
    }
}
