//! Renewals, releases, attachments and cancellations at a quorum.

use leasehold_server::{
    lock::{Attachment, Grant, RequestHash},
    store::{
        Cancelled, LeaseReply, Outcome, Rejected, Released,
        redlock::model::{QuorumReply, cancelled, released, renewed_or_attached},
    },
};

use super::{
    LOCK, NODES,
    broker::{Received, Replies, Task},
    world::{Body, RedlockWorld},
};
use crate::{
    differential::steps::{StoreCommand, StoreReply},
    model::{
        broker::{
            Failure, GrantedLock, Operation, OperationKind, REPEAT_GRACE_US, expected_attachment,
            lease_ref,
        },
        client::ClientReply,
        keys::{AttemptKey, TaskKey},
    },
};

/// Pause after a rollback that failed.
const ROLLBACK_RETRY_US: u64 = 500_000;

/// A renewal, a release or an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationTask {
    pub operation: Operation,
    /// Number of restarts of nodes before the first command.
    restarts: u32,
    replies: OperationReplies,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum OperationReplies {
    RenewOrAttach(Replies<LeaseReply<Grant>>),
    Release(Replies<LeaseReply<Released>>),
}

/// The rollback of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollbackTask {
    /// Time before which the client can repeat the call.
    pub not_before_us: u64,
    pub replies: Option<Replies<Cancelled>>,
}

/// State of the cancellation of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cancellation {
    Done(Cancelled),
    Pending(Replies<Cancelled>),
}

impl OperationTask {
    pub(super) fn outstanding(&self) -> Vec<u16> {
        let outstanding = match &self.replies {
            OperationReplies::RenewOrAttach(replies) => &replies.outstanding,
            OperationReplies::Release(replies) => &replies.outstanding,
        };
        outstanding.keys().copied().collect()
    }
}

impl RollbackTask {
    pub(super) fn outstanding(&self) -> Vec<u16> {
        let replies = self.replies.iter();
        let outstanding = replies.flat_map(|replies| replies.outstanding.keys());
        outstanding.copied().collect()
    }
}

impl RedlockWorld {
    /// Starts an operation at a broker.
    pub(super) fn start_operation(&mut self, broker: usize, key: TaskKey, operation: Operation) {
        let process = self.brokers[broker].process;
        let Some(presented) = operation.presented.first() else {
            return;
        };
        let lease = lease_ref(operation.lease, *presented);
        let expected = expected_attachment(operation.stream, process);
        let replies = match operation.kind {
            OperationKind::Renew { .. } => {
                let command = StoreCommand::RenewForClient(lease, None, expected);
                OperationReplies::RenewOrAttach(self.send_to_nodes(broker, key, &command))
            }
            OperationKind::Release(scope) => {
                let command = StoreCommand::Release(lease, scope, expected);
                OperationReplies::Release(self.send_to_nodes(broker, key, &command))
            }
            OperationKind::Attach { number } => {
                let stream = operation.stream.expect("the stream of an attachment");
                let stream = stream.id(process);
                let command = StoreCommand::Attach(lease, Attachment { stream, number });
                OperationReplies::RenewOrAttach(self.send_to_nodes(broker, key, &command))
            }
        };
        let task = OperationTask {
            operation,
            restarts: self.restarts,
            replies,
        };
        let task = Task::Operation(Box::new(task));
        self.brokers[broker].tasks.insert(key, task);
    }

    pub(super) fn on_operation_answer(
        &mut self,
        key: TaskKey,
        mut task: Box<OperationTask>,
        received: Received<'_>,
    ) -> Option<Task> {
        let result = match &mut task.replies {
            OperationReplies::RenewOrAttach(replies) => {
                replies.receive(received, renewal_or_attachment);
                let quorum = renewed_or_attached(NODES, &replies.replies);
                quorum
                    .is_decided
                    .then(|| quorum_result(quorum, task.restarts))
            }
            // The client does not wait for the reply to a release.
            OperationReplies::Release(replies) => {
                replies.receive(received, release);
                if released(NODES, &replies.replies).is_decided {
                    return None;
                }
                None
            }
        };
        let Some(result) = result else {
            return Some(Task::Operation(task));
        };
        let Operation {
            lease,
            presented,
            stream,
            kind,
        } = task.operation;
        let reply = match (result, kind) {
            (Err(failure), _) => ClientReply::RenewalFailed {
                lease,
                presented,
                failure,
            },
            (Ok(grant), OperationKind::Renew { sent_us }) => ClientReply::Renewed {
                lease,
                sent_us,
                locks: vec![grant],
            },
            (Ok(_), OperationKind::Attach { .. }) => ClientReply::Attached {
                lease,
                stream: stream.expect("the stream of an attachment"),
            },
            (Ok(_), OperationKind::Release(_)) => return None,
        };
        self.send(key, Body::ToClient(reply));
        None
    }

    /// Cancels an attempt as `RedlockStore::cancel` does.
    pub(super) fn store_cancel(
        &mut self,
        broker: usize,
        key: TaskKey,
        attempt: AttemptKey,
    ) -> Cancellation {
        let request = attempt.call.request();
        if self.leave_queue(broker, attempt) {
            self.cancel_everywhere(broker, key, request, attempt);
            return Cancellation::Done(Cancelled::Dequeued);
        }
        let granted = self.brokers[broker].waiter_grants.get(&attempt).copied();
        let by = granted.map_or(attempt.id(), |granted| granted.granted_attempt);
        if by != attempt.id() {
            self.cancel_everywhere(broker, key, request, attempt);
        }
        let cancel = StoreCommand::Cancel(request, by);
        Cancellation::Pending(self.send_to_nodes(broker, key, &cancel))
    }

    /// Starts the cancellation of a rollback that is due.
    pub(super) fn start_rollback(&mut self, key: TaskKey) -> bool {
        let TaskKey::Rollback(attempt, _) = key else {
            return false;
        };
        let now_us = self.now_us;
        let is_due = |task: Option<&Task>| {
            matches!(task, Some(Task::Rollback(task))
                if task.replies.is_none() && now_us >= task.not_before_us)
        };
        let mut brokers = self.brokers.iter();
        let Some(broker) = brokers.position(|broker| is_due(broker.tasks.get(&key))) else {
            return false;
        };
        match self.store_cancel(broker, key, attempt) {
            Cancellation::Done(_) => {
                self.brokers[broker].tasks.remove(&key);
            }
            Cancellation::Pending(replies) => {
                if let Some(Task::Rollback(task)) = self.brokers[broker].tasks.get_mut(&key) {
                    task.replies = Some(replies);
                }
            }
        }
        true
    }

    pub(super) fn on_rollback_answer(
        &mut self,
        mut task: RollbackTask,
        received: Received<'_>,
    ) -> Option<Task> {
        let Some(replies) = &mut task.replies else {
            return Some(Task::Rollback(task));
        };
        replies.receive(received, cancellation);
        let quorum = cancelled(NODES, &replies.replies);
        if !quorum.is_decided {
            return Some(Task::Rollback(task));
        }
        self.observations.count("rolled back");
        task.replies = None;
        task.not_before_us = self.now_us + ROLLBACK_RETRY_US;
        quorum.result.is_err().then_some(Task::Rollback(task))
    }

    /// Rolls back an attempt after `grace_us`, in which the client can repeat the call.
    pub(super) fn schedule_rollback(
        &mut self,
        broker: usize,
        attempt: AttemptKey,
        has_grace: bool,
    ) {
        let grace_us = if has_grace { REPEAT_GRACE_US } else { 0 };
        let task = RollbackTask {
            not_before_us: self.now_us + grace_us,
            replies: None,
        };
        let key = TaskKey::Rollback(attempt, LOCK);
        let tasks = &mut self.brokers[broker].tasks;
        tasks.entry(key).or_insert(Task::Rollback(task));
    }

    fn cancel_everywhere(
        &mut self,
        broker: usize,
        key: TaskKey,
        request: RequestHash,
        attempt: AttemptKey,
    ) {
        for node in 0..NODES {
            let cancel = StoreCommand::Cancel(request, attempt.id());
            self.send_to_node(broker, key, node, cancel);
        }
    }
}

type Reply<T> = Option<Result<Outcome<T>, Rejected>>;

/// Returns the reply to a renewal or an attachment.
pub(super) fn renewal_or_attachment(reply: &StoreReply) -> Reply<LeaseReply<Grant>> {
    if let StoreReply::Renew(reply) | StoreReply::Attach(reply) = reply {
        return Some(reply.clone());
    }
    None
}

/// Returns the reply to a cancellation.
pub(super) fn cancellation(reply: &StoreReply) -> Reply<Cancelled> {
    if let StoreReply::Cancel(cancelled) = reply {
        return Some(cancelled.clone());
    }
    None
}

fn release(reply: &StoreReply) -> Reply<LeaseReply<Released>> {
    if let StoreReply::Release(released) = reply {
        return Some(released.clone());
    }
    None
}

/// Returns the renewed or attached lock, or the reason for which the command was not applied.
pub(super) fn quorum_result(
    quorum: QuorumReply<LeaseReply<Grant>>,
    restarts: u32,
) -> Result<GrantedLock, Failure> {
    match quorum.result {
        Ok(Ok(grant)) => Ok(granted_lock(&grant, restarts)),
        Ok(Err(rejection)) => Err(Failure::from(&rejection)),
        Err(_) => Err(Failure::Unavailable),
    }
}

/// Returns the lock of a grant that was requested after `restarts` restarts of nodes.
pub(super) fn granted_lock(grant: &Grant, restarts: u32) -> GrantedLock {
    GrantedLock {
        lock: LOCK,
        token: grant.fencing_token.get(),
        ttl_ms: grant.ttl.as_millis(),
        granted_at_us: grant.acquired_ms * 1_000,
        era: restarts,
    }
}
