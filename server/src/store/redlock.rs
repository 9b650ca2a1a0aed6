//! The RedLock store: several independent Redis masters, of which a quorum must hold a lock.

mod end_dedup;
mod grant_attempts;
pub mod init;
mod list;
mod local_queue;
mod local_queues;
mod merge;
#[cfg(feature = "model")]
pub mod model;
mod node_client;
mod nodes;
mod queue_worker;
mod quorum;
mod quorum_acquire;
mod start;
mod votes;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use rand::Rng as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::start::{check_addresses, nodes};
use self::{
    local_queue::{EnqueueResult, FirstReplyReceiver, LocalQueue},
    local_queues::{LocalQueues, RemovedAttempt},
    nodes::Nodes,
    quorum::{QuorumCounter, Replies},
    quorum_acquire::QuorumOutcome,
};
use super::{
    Acquired, Cancelled, Checked, Cursor, Event, LeaseReply, LimitSet, Listed, Listener,
    MovedLease, NotifyMode, RecoveryState, Released, Renewal, Revoked, Store, StoreError, Touched,
    redis::scripts::{ScriptCall, calls},
};
use crate::lock::{
    AcquireCommand, ActiveClosure, Attachment, AttemptId, BrokerId, CloseCommand, DeploymentKey,
    ExpectedAttachment, FencingToken, Filter, Grant, INSPECT_ENTRIES_MAX, LeaseBinding, LeaseRef,
    LockKey, LockState, Mode, ReleaseScope, RequestHash, RevokeCommand,
};

/// Time limit for the replies of the nodes, so that each call is answered within a second.
const REPLY_TIMEOUT: Duration = Duration::from_millis(900);
/// Random delay after the notification of a release. The nodes send this notification one after
/// another, and other brokers receive it as well.
const RELEASE_DELAY_MS: std::ops::Range<u64> = 1..10;

const EXCLUSIVE_ONLY: &str = "a RedLock store supports only exclusive locks: shared locks and \
                              semaphores need a count of all holders, which no server has";
const NO_LIMITS: &str = "a RedLock store supports only exclusive locks, which have no limit";

const NO_WATCH: &str = "a RedLock store does not support watches: no server receives the grants of \
                        the others. List the locks instead";

/// One broker's connection to the nodes.
pub struct RedlockStore(Arc<RedlockState>);

/// State shared by the tasks of the store.
struct RedlockState {
    broker: BrokerId,
    nodes: Nodes,
    queues: Arc<LocalQueues>,
    deployment_key: DeploymentKey,
    listener: Arc<OnceLock<Listener>>,
    stop: CancellationToken,
}

impl RedlockState {
    /// Queries the nodes for a grant that the call already has. Never makes a new grant.
    async fn ask(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        let acquired = self.acquire_on_quorum(acquire, false).await?;
        Ok(acquired.into_reply(self.queues.length(&acquire.lock)))
    }

    async fn acquire_on_quorum(
        &self,
        acquire: &AcquireCommand,
        allows_new_grant: bool,
    ) -> Result<QuorumOutcome, StoreError> {
        let acquired = self
            .nodes
            .acquire_on_quorum(acquire, allows_new_grant, NotifyMode::Never)
            .await?;
        if let QuorumOutcome::Granted(_, moved) = &acquired {
            self.send_moved(&acquire.lock, *moved);
        }
        Ok(acquired)
    }

    /// Runs a call that does not wait. If several calls each hold the lock at some nodes, the call
    /// retries at the head of the queue for half a second. Otherwise calls that try at the same
    /// time might all fail.
    async fn acquire_without_wait(
        self: &Arc<Self>,
        acquire: &AcquireCommand,
    ) -> Result<Acquired, StoreError> {
        let lock = &acquire.lock;
        let is_free = self.queues.length(lock) == 0;
        let acquired = self.acquire_on_quorum(acquire, is_free).await?;
        if is_free && acquired.is_split() {
            if let EnqueueResult::First(receiver) = self.enqueue(acquire) {
                return first_reply(receiver).await;
            }
            // Another call of this broker joined the queue first.
            self.queues
                .remove_attempt(lock, acquire.request, acquire.attempt);
        }
        Ok(acquired.into_reply(self.queues.length(lock)))
    }

    fn enqueue(self: &Arc<Self>, acquire: &AcquireCommand) -> EnqueueResult {
        let (joined, is_new) = self.queues.enqueue(acquire);
        if is_new {
            let worker = Arc::clone(self).run_queue(acquire.lock.clone());
            self.nodes.tasks.spawn(worker);
        }
        joined
    }

    /// Enqueues a call. The first call in the queue requests the lock from the nodes at once. A
    /// later call first checks whether it already holds the lock, and otherwise waits in the queue.
    async fn enqueue_and_wait(
        self: &Arc<Self>,
        acquire: &AcquireCommand,
    ) -> Result<Acquired, StoreError> {
        let lock = &acquire.lock;
        let queued = match self.enqueue(acquire) {
            EnqueueResult::Answered(reply) => return Ok(reply),
            EnqueueResult::First(receiver) => return first_reply(receiver).await,
            EnqueueResult::Queued(queued) => queued,
        };
        match self.ask(acquire).await {
            Ok(Acquired::Held(_)) => Ok(queued),
            Err(StoreError::Recovering { .. }) if acquire.rejoin => Ok(queued),
            result => {
                self.queues
                    .remove_attempt(lock, acquire.request, acquire.attempt);
                result
            }
        }
    }

    fn send_event(&self, event: Event) {
        send_event(&self.listener, event);
    }

    /// Sends [`Event::Moved`] for a lease that has left a stream of this broker. The nodes notify
    /// the brokers of other streams.
    fn send_moved(&self, lock: &LockKey, moved: Option<MovedLease>) {
        if let Some(moved) = moved.filter(|moved| moved.from.stream.broker == self.broker) {
            self.send_event(Event::Moved(lock.clone(), moved));
        }
    }
}

#[async_trait]
impl Store for RedlockStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        let Self(shared) = self;
        if acquire.mode != Mode::Exclusive {
            return Err(StoreError::Unsupported(EXCLUSIVE_ONLY));
        }
        if let LeaseBinding::Reentry(_) = acquire.binding {
            // A re-entry never waits and needs no new grant.
            return shared.ask(acquire).await;
        }
        match acquire.wait_ms {
            0 => shared.acquire_without_wait(acquire).await,
            _ => shared.enqueue_and_wait(acquire).await,
        }
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        let call = calls::renew(lease, renewal.ttl, renewal.expected_attachment);
        let call = match renewal.is_for_client {
            true => call.for_client(),
            false => call,
        };
        self.renew_or_attach(call).await
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.renew_or_attach(calls::attach(lease, to)).await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        let call = calls::release(lease, release, via).with_release_notification();
        let nodes = &self.0.nodes;
        let counter = QuorumCounter::new(nodes.count(), |outcome| outcome.reply);
        let result = nodes.collect(call, counter).await.result()?;
        self.0.queues.wake(&lease.lock, Duration::ZERO);
        Ok(merge::released(result))
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        let Self(shared) = self;
        let removed = shared.queues.remove_attempt(lock, request, attempt);
        if removed != RemovedAttempt::AtNodes(attempt) {
            // The attempt may nevertheless be on its way to the nodes.
            let nodes = shared.nodes.all();
            shared.nodes.cancel(nodes, lock, request, attempt);
        }
        let by = match removed {
            RemovedAttempt::WithoutGrant(cancelled) => return Ok(cancelled),
            RemovedAttempt::AtNodes(by) => by,
        };
        let call = calls::cancel(lock, request, by).with_release_notification();
        let replies = Replies::new(shared.nodes.count(), merge::is_cancel_decided);
        let cancelled = merge::cancelled(shared.nodes.collect(call, replies).await)?;
        shared.queues.wake(lock, Duration::ZERO);
        Ok(cancelled)
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        Ok(self.0.queues.touched(lock, self.0.broker))
    }

    async fn set_limit(
        &self,
        _lock: &LockKey,
        _limit: Option<u32>,
    ) -> Result<LimitSet, StoreError> {
        Err(StoreError::Unsupported(NO_LIMITS))
    }

    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        self.set_closure(calls::close(close)).await
    }

    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        let call = calls::open(lock).with_release_notification();
        let opened = self.set_closure(call).await?;
        self.0.queues.wake(lock, Duration::ZERO);
        Ok(opened)
    }

    async fn revoke(&self, revoke: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        let call = calls::revoke(revoke).with_release_notification();
        let nodes = &self.0.nodes;
        let counter = QuorumCounter::new(nodes.count(), merge::revoked_now);
        let result = nodes.collect(call, counter).await.result()?;
        let revoked = merge::revoked(result, self.0.queues.length(&revoke.lock));
        if let Ok(Revoked::Taken(lease)) = &revoked
            && let Some(revocation) = lease.to_revocation(revoke)
        {
            self.0.queues.wake(&revoke.lock, Duration::ZERO);
            if revocation.attachment.stream.broker == self.0.broker {
                self.0
                    .send_event(Event::Revoked(revoke.lock.clone(), revocation));
            }
        }
        Ok(revoked)
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        let nodes = &self.0.nodes;
        let call = calls::get(lock, INSPECT_ENTRIES_MAX);
        let replies = Replies::new(nodes.count(), merge::is_state_decided);
        let state = merge::lock_state(nodes.collect(call, replies).await)?;
        Ok(state.map(|state| self.with_waiters(lock, state)))
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        page_max: usize,
    ) -> Result<Listed, StoreError> {
        self.step(filter, from, page_max).await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        let call = calls::check(lock, token);
        let nodes = &self.0.nodes;
        let counter = QuorumCounter::new(nodes.count(), merge::liveness);
        let result = nodes.collect(call, counter).await.result()?;
        Ok(merge::checked(result))
    }

    async fn watch(&self) -> Result<(), StoreError> {
        Err(StoreError::Unsupported(NO_WATCH))
    }

    fn broker(&self) -> BrokerId {
        self.0.broker
    }

    fn recovery(&self) -> RecoveryState {
        RecoveryState::Unknown
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.0
            .nodes
            .wait_for_quorum(Instant::now() + REPLY_TIMEOUT)
            .await?;
        Ok(self.0.deployment_key.clone())
    }

    fn listen(&self, listener: Listener) {
        let _ = self.0.listener.set(listener);
    }
}

impl RedlockStore {
    async fn renew_or_attach(
        &self,
        call: ScriptCall<LeaseReply<Grant>>,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        let lock = call.lock().clone();
        let nodes = &self.0.nodes;
        let replies = nodes.collect(call, merge::renewals(nodes.count())).await;
        let renewed = merge::renewed_or_attached(replies.result()?);
        Ok(renewed.map(|(grant, moved)| {
            self.0.send_moved(&lock, moved);
            Grant {
                // Queues are local to the broker, so nodes do not return a length.
                queue_length: self.0.queues.length(&lock),
                ..grant
            }
        }))
    }

    /// Closes or opens the lock at a quorum of nodes, and returns the closure that a quorum has, or
    /// had.
    async fn set_closure(
        &self,
        call: ScriptCall<Option<ActiveClosure>>,
    ) -> Result<Option<ActiveClosure>, StoreError> {
        let nodes = &self.0.nodes;
        let replies = Replies::new(nodes.count(), |replies| {
            replies.received.len() >= replies.quorum()
        });
        let replies = nodes.collect(call, replies).await;
        let quorum = replies.quorum();
        let closures = replies.require_quorum()?;
        Ok(merge::closure(closures.iter().flatten(), quorum).cloned())
    }

    fn with_waiters(&self, lock: &LockKey, state: LockState) -> LockState {
        let waiters = |queue: &mut LocalQueue| (queue.len(), queue.waiter_infos());
        let (queue_length, waiters) = self.0.queues.with_queue(lock, waiters).unwrap_or_default();
        LockState {
            queue_length,
            waiters,
            ..state
        }
    }
}

async fn first_reply(receiver: FirstReplyReceiver) -> Result<Acquired, StoreError> {
    let stops = |_| StoreError::Unavailable("the broker stops".to_owned());
    receiver.await.map_err(stops)?
}

/// Sends an event to the listener, if one is registered.
fn send_event(listener: &OnceLock<Listener>, event: Event) {
    if let Some(listener) = listener.get() {
        listener(event);
    }
}

/// Returns the delay after a node's notification of a release.
fn release_delay() -> Duration {
    Duration::from_millis(rand::thread_rng().gen_range(RELEASE_DELAY_MS))
}
