//! Acquire and AcquireAll: one call, from its admission to its result. The call runs in a task of
//! its own or in the task of its stream, because the future of the caller may be dropped at any
//! time and the acquire must still be completed or rolled back.

mod one_lock;
mod queue_position;
pub(super) mod rollback;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::oneshot::{self, error::RecvError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::error;

use self::{
    one_lock::{LockAcquisition, left_ms},
    rollback::{Attempt, REPEAT_GRACE, RollbackQueue},
};
use super::{
    Broker, expiry,
    heartbeats::Heartbeats,
    lease_stream::{EventSink, QUEUE_GRACE},
    spans::{self, QueueWaitSpan},
};
use crate::{
    lock::{
        AcquireCall, AcquireCommand, Attachment, AttemptId, ExpectedAttachment, HeldLock,
        LOCKS_MAX, Lease, LeaseBinding, LeaseId, LeaseRef, LeaseToken, LockError, LockFailure,
        LockKey, Target,
    },
    metrics::AcquireTimer,
    quotas::QuotaPermit,
    trace::{LinkedSpan, Span},
};

/// Result of a call.
pub(super) type AcquireResult = Result<UndeliveredLease, LockFailure>;
/// Sender of the result.
pub(super) type ResultSender = oneshot::Sender<AcquireResult>;
/// Receiver of the result.
pub(super) type ResultReceiver = oneshot::Receiver<AcquireResult>;

/// Context of a call that arrived on a lease stream.
pub(super) struct StreamCallContext {
    pub(super) call_id: i64,
    pub(super) attachment: Attachment,
    /// Heartbeats of the client of the stream.
    pub(super) heartbeats: Arc<Heartbeats>,
    pub(super) events: EventSink,
    /// Cancelled when the client cancels the call.
    pub(super) cancellation: CancellationToken,
    pub(super) span: Span,
}

/// The lease that a call creates or extends, and a quota permit for each lock of the call.
struct AdmittedLease {
    lease_id: LeaseId,
    lease_token: LeaseToken,
    permits: Vec<QuotaPermit>,
}

/// An acquire call in progress.
struct AcquireTask {
    broker: Broker,
    call: AcquireCall,
    lease_id: LeaseId,
    lease_token: LeaseToken,
    attempt: AttemptId,
    deadline: Instant,
    stream: Option<StreamCallContext>,
    timer: AcquireTimer,
}

/// A granted lease that has not been delivered to the caller. If dropped before delivery, what the
/// call acquired is rolled back.
#[derive(Debug)]
pub(super) struct UndeliveredLease {
    lease: Lease,
    /// Sequence number of the newest heartbeat received before the command was sent that granted
    /// the lease.
    as_of: i64,
    undelivered: RollbackOnDrop,
    /// Quota permits of the locks of the call.
    permits: Vec<QuotaPermit>,
    /// Span of the call, if it came on a stream.
    origin: Option<Box<LinkedSpan>>,
}

/// A lease that has not been delivered to its caller yet. If dropped before [`Self::confirm`], it
/// is rolled back after a grace period, unless the call has been repeated by then.
pub struct Delivery {
    lease: UndeliveredLease,
    broker: Broker,
}

/// Attempts that are rolled back when dropped.
#[derive(Debug)]
struct RollbackOnDrop(RollbackQueue, Vec<Attempt>);

impl Broker {
    /// Acquires all locks of the call for `caller`, or none, waiting in the queues for at most
    /// `call.wait_ms`.
    ///
    /// # Cancel safety
    /// The call continues in a separate task. Dropping this future cancels the wait: the queue
    /// position, or a grant that was not delivered, is rolled back after a grace period, unless the
    /// call has been repeated by then.
    pub async fn acquire(
        &self,
        caller: &Arc<str>,
        call: AcquireCall,
    ) -> Result<Lease, LockFailure> {
        let delivery = self.acquire_undelivered(caller, call).await?;
        let lease = delivery.lease().clone();
        delivery.confirm();
        Ok(lease)
    }

    /// Acquires like [`Broker::acquire`], for a caller that may disconnect before the lease is
    /// delivered.
    pub async fn acquire_undelivered(
        &self,
        caller: &Arc<str>,
        call: AcquireCall,
    ) -> Result<Delivery, LockFailure> {
        let lock = call.first().clone();
        let (task, receiver) = self.start_acquire(caller, call, None);
        self.tasks.spawn(task);
        Ok(Delivery {
            lease: result_or_internal(&lock, receiver.await)?,
            broker: self.clone(),
        })
    }

    /// Returns a future that runs the call to completion, and the receiver of its result. If the
    /// receiver is dropped, the call continues and rolls back what it has acquired.
    pub(super) fn start_acquire(
        &self,
        caller: &Arc<str>,
        mut call: AcquireCall,
        stream: Option<StreamCallContext>,
    ) -> (impl Future<Output = ()> + Send + use<>, ResultReceiver) {
        let (sender, receiver) = oneshot::channel();
        let (broker, caller) = (self.clone(), Arc::clone(caller));
        let timer = self.metrics.start_acquire(&call);
        let span = stream.as_ref().map(|stream| stream.span.clone());
        let span = span.unwrap_or_else(Span::current);
        spans::record_request(&span, &call);
        call.owner.trace = span.parent();
        let task = async move {
            match broker.admit(&caller, &call).await {
                Ok(admitted) => {
                    let task = AcquireTask {
                        attempt: AttemptId::from_bytes(broker.random.bytes()),
                        broker,
                        lease_id: admitted.lease_id,
                        lease_token: admitted.lease_token,
                        deadline: Instant::now() + Duration::from_millis(call.wait_ms),
                        call,
                        stream,
                        timer,
                    };
                    task.run(admitted.permits, sender).await;
                }
                Err(failure) => {
                    timer.failed(&failure.error);
                    // The receiver is gone if the caller has disconnected.
                    drop(sender.send(Err(failure)));
                }
            }
        };
        (span.run(task), receiver)
    }

    /// Returns the lease that the call creates or extends, and a quota permit for each of its
    /// locks. Rejects calls during a drain, beyond a quota, or for a lease with too many locks.
    async fn admit(
        &self,
        caller: &Arc<str>,
        call: &AcquireCall,
    ) -> Result<AdmittedLease, LockFailure> {
        let lock = call.first();
        if self.is_draining() {
            return Err(LockError::Draining.for_lock(lock));
        }
        let permits = self.quotas.admit(caller, call);
        let permits = permits.inspect_err(|error| self.metrics.over_quota(error));
        let permits = permits.map_err(|error| error.for_lock(lock))?;
        let Some(lease) = &call.under else {
            let key = self.store.deployment_key().await;
            let key = key.map_err(|error| LockError::from(error).for_lock(lock))?;
            let mut locks: Vec<_> = call.targets.iter().map(|target| &target.lock).collect();
            locks.sort();
            // The same for every attempt of the call at every broker.
            let lease_token = key.lease_token(caller, &call.owner.id, &call.request_id, &locks);
            return Ok(AdmittedLease {
                lease_id: lease_token.lease_id(caller),
                lease_token,
                permits,
            });
        };
        if lease.locks.len() >= LOCKS_MAX && lease.locks.iter().all(|held| held.lock != *lock) {
            return Err(LockError::TooManyLocks.for_lock(lock));
        }
        Ok(AdmittedLease {
            lease_id: lease.lease_id,
            lease_token: lease.lease_token.clone(),
            permits,
        })
    }

    /// Counts these locks as held, and records each hold in the quota permit of its lock.
    pub(super) fn count_held(&self, permits: &mut [QuotaPermit], locks: &[HeldLock]) {
        for permit in permits {
            let is_same_lock = |held: &&HeldLock| held.lock == *permit.lock();
            let grant = locks.iter().find(is_same_lock).map(|held| held.grant);
            let held = grant.and_then(|grant| self.metrics.hold(permit.lock(), grant.mode));
            permit.mark_held(held);
        }
    }
}

impl AcquireTask {
    /// Runs the call and sends its result exactly once, unless the caller has disconnected. The
    /// call owns the quota `permits` until then, and its lease owns them afterwards.
    async fn run(self, permits: Vec<QuotaPermit>, mut result_sender: ResultSender) {
        let mut attempts = Vec::new();
        let result = self.acquire_locks(&mut attempts, &mut result_sender).await;
        let rollback = self.broker.rollback.clone();
        let span = Span::current();
        match result {
            Ok(Some((lease, as_of))) => {
                self.timer.granted();
                self.log_grants(&lease);
                let stream = self.stream.as_ref();
                // If the result cannot be sent, the offer is dropped, which rolls the call back.
                let undelivered = RollbackOnDrop(rollback, attempts);
                let result = Ok(UndeliveredLease {
                    lease,
                    as_of,
                    undelivered,
                    permits,
                    origin: stream.and_then(|_| span.origin()),
                });
                spans::record_result(&span, &result);
                let _ = result_sender.send(result);
            }
            Ok(None) => {
                self.timer.abandoned();
                attempts
                    .into_iter()
                    .for_each(|attempt| rollback.schedule(attempt));
            }
            Err(failure) => {
                self.timer.failed(&failure.error);
                if failure.error == LockError::StoreUnavailable {
                    attempts
                        .into_iter()
                        .for_each(|attempt| rollback.schedule(attempt));
                } else if failure.error != LockError::Draining {
                    // A drain never cancels: the same call continues at another broker.
                    self.roll_back(attempts).await;
                }
                let result = Err(failure);
                spans::record_result(&span, &result);
                let _ = result_sender.send(result);
            }
        }
    }

    fn log_grants(&self, lease: &Lease) {
        for held in &lease.locks {
            tracing::debug!(
                lease_id = %lease.lease_id,
                namespace = held.lock.namespace(),
                lock = held.lock.name(),
                owner = self.call.owner.id,
                fencing_token = held.grant.fencing_token.get(),
                ttl_ms = held.grant.ttl.as_millis(),
                "a lock was granted"
            );
        }
    }

    /// Acquires the locks one after the other, in the order of their names. The order is the same
    /// for all callers, which prevents deadlocks between callers. Returns `Ok(None)` if the caller
    /// has disconnected.
    async fn acquire_locks(
        &self,
        attempts: &mut Vec<Attempt>,
        result_sender: &mut ResultSender,
    ) -> Result<Option<(Lease, i64)>, LockFailure> {
        if self.call.wait_ms > 0 && self.call.under.is_some() {
            // Fail early if the lease has ended already, rather than after a long wait.
            self.broker
                .renew_undelivered(self.existing_locks(), self.expected_attachment())
                .await?;
        }
        let mut targets: Vec<_> = self.call.targets.iter().collect();
        targets.sort_by(|left, right| left.lock.cmp(&right.lock));
        let (mut acquired, mut as_of) = (Vec::new(), 0);
        for target in targets {
            let acquire = self.acquire(target);
            let lock = acquire.lock.clone();
            attempts.push(Attempt::new(&acquire, self.reconnect_grace()));
            let mut acquisition = LockAcquisition {
                broker: &self.broker,
                acquire,
                deadline: self.deadline,
                stream: self.stream.as_ref(),
                timer: &self.timer,
                as_of: 0,
                position: None,
                wait_span: QueueWaitSpan::default(),
                may_be_in_store: false,
                token_when_queued: 0,
                started_at: Instant::now(),
            };
            let granted = tokio::select! {
                biased;
                granted = acquisition.run(result_sender) => granted,
                failure = self.renew_while_waiting(&acquired) => return Err(failure),
            };
            match granted {
                Ok(Some(grant)) => {
                    as_of = acquisition.as_of;
                    acquired.push(HeldLock { lock, grant });
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    if !acquisition.may_be_in_store {
                        attempts.pop();
                    }
                    return Err(LockFailure { lock, error });
                }
            }
        }
        let is_only_lock = self.call.under.is_none() && acquired.len() == 1;
        let locks = match is_only_lock {
            true => acquired,
            false => self.confirm(acquired).await?,
        };
        let lease = Lease {
            lease_id: self.lease_id,
            lease_token: self.lease_token.clone(),
            locks,
        };
        Ok(Some((lease, as_of)))
    }

    /// Renews the locks acquired so far while the call waits for the others, as long as its client
    /// sends heartbeats. Returns when a renewal finds that one of these locks was lost.
    async fn renew_while_waiting(&self, acquired: &[HeldLock]) -> LockFailure {
        let Some(stream) = self.stream.as_ref().filter(|_| !acquired.is_empty()) else {
            return std::future::pending().await;
        };
        let leases: Vec<_> = acquired.iter().map(|held| self.reference(held)).collect();
        let interval = Duration::from_millis(self.call.ttl.heartbeat_interval_ms());
        let mut renewed_sequence = stream.heartbeats.latest();
        loop {
            tokio::time::sleep(interval).await;
            let latest = stream.heartbeats.latest();
            if latest == renewed_sequence {
                continue;
            }
            match self
                .broker
                .renew_undelivered(&leases, self.expected_attachment())
                .await
            {
                Err(failure) if !failure.error.is_indeterminate() => return failure,
                Ok(_) => renewed_sequence = latest,
                Err(_) => {}
            }
        }
    }

    /// Returns all locks of the lease, after renewing every lock except the one granted last. The
    /// renewals confirm that no other lock was lost before the last grant.
    async fn confirm(&self, mut acquired: Vec<HeldLock>) -> Result<Vec<HeldLock>, LockFailure> {
        let newest = acquired.pop();
        let is_other = |held: &&LeaseRef| newest.iter().all(|newest| newest.lock != held.lock);
        let acquired_refs: Vec<_> = acquired.iter().map(|held| self.reference(held)).collect();
        let others = self
            .existing_locks()
            .iter()
            .filter(is_other)
            .chain(&acquired_refs)
            .cloned();
        let others: Vec<_> = others.collect();
        let mut locks = self
            .broker
            .renew_undelivered(&others, self.expected_attachment())
            .await?;
        // A lock that this call acquired can have been released only if an earlier attempt of the
        // call was answered.
        let is_released = |lease: &&LeaseRef| locks.iter().all(|held| held.lock != lease.lock);
        if let Some(lease) = acquired_refs.iter().find(is_released) {
            let (lock, error) = (lease.lock.clone(), LockError::LeaseExpired);
            return Err(LockFailure { lock, error });
        }
        locks.extend(newest);
        let existing = self.existing_locks().iter().map(|held| &held.lock);
        let order = existing.chain(self.call.targets.iter().map(|target| &target.lock));
        let order: Vec<_> = order.collect();
        locks.sort_by_key(|held| order.iter().position(|lock| **lock == held.lock));
        Ok(locks)
    }

    fn expected_attachment(&self) -> ExpectedAttachment {
        let stream = self.stream.as_ref();
        stream.map_or(ExpectedAttachment::None, |stream| {
            ExpectedAttachment::Stream(stream.attachment.stream)
        })
    }

    /// Returns the time in which the caller can repeat the call before an abandoned attempt is
    /// rolled back.
    fn reconnect_grace(&self) -> Duration {
        match self.stream {
            Some(_) => QUEUE_GRACE,
            None => REPEAT_GRACE,
        }
    }

    /// Returns the locks that the lease had before this call.
    fn existing_locks(&self) -> &[LeaseRef] {
        let under = self.call.under.as_ref();
        under.map_or(&[], |lease| &lease.locks)
    }

    fn reference(&self, held: &HeldLock) -> LeaseRef {
        LeaseRef {
            lock: held.lock.clone(),
            lease_id: self.lease_id,
            fencing_token: held.grant.fencing_token,
        }
    }

    fn acquire(&self, target: &Target) -> AcquireCommand {
        let call = &self.call;
        let held = self
            .existing_locks()
            .iter()
            .find(|held| held.lock == target.lock);
        AcquireCommand {
            lock: target.lock.clone(),
            mode: target.mode,
            lease_id: self.lease_id,
            binding: match (held, &call.under) {
                (Some(held), _) => LeaseBinding::Reentry(held.fencing_token),
                (None, Some(_)) => LeaseBinding::Existing,
                (None, None) => LeaseBinding::New,
            },
            stream: self.stream.as_ref().map(|stream| stream.attachment),
            request: call.request_id.hash(),
            arguments: call.arguments,
            attempt: self.attempt,
            ttl: call.ttl,
            options: call.options,
            wait_ms: match call.wait_ms {
                0 => 0,
                _ => left_ms(self.deadline),
            },
            owner: call.owner.clone(),
            rejoin: false,
        }
    }

    /// Rolls back what was acquired, before the caller receives the error.
    async fn roll_back(&self, attempts: Vec<Attempt>) {
        let store = &self.broker.store;
        let cancellations = attempts.into_iter().map(|attempt| async move {
            if attempt.cancel(&**store).await.is_err() {
                self.broker.rollback.schedule(attempt);
            }
        });
        join_all(cancellations).await;
    }
}

impl UndeliveredLease {
    pub(super) fn as_of(&self) -> i64 {
        self.as_of
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn origin(&mut self) -> Option<Box<LinkedSpan>> {
        self.origin.take()
    }

    pub(super) fn locks(&self) -> impl Iterator<Item = &LockKey> {
        self.lease.locks.iter().map(|held| &held.lock)
    }

    /// Rolls back at once, without the grace period, because the lease will not be delivered.
    pub(super) fn roll_back(mut self) {
        for attempt in &mut self.undelivered.1 {
            attempt.grace = Duration::ZERO;
        }
    }

    /// Marks the lease as delivered to the caller.
    pub(super) fn accept(mut self) -> (Lease, Vec<QuotaPermit>) {
        self.undelivered.1.clear();
        (self.lease, self.permits)
    }
}

impl Delivery {
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.lease.lease()
    }

    /// Marks the lease as delivered, after the response was sent.
    pub fn confirm(self) {
        let Self {
            lease: undelivered,
            broker,
        } = self;
        let (lease, mut permits) = undelivered.accept();
        broker.count_held(&mut permits, &lease.locks);
        let ttl_ms = lease.locks.iter().map(|held| held.grant.ttl.as_millis());
        let ttl_ms = ttl_ms.min().unwrap_or(0);
        broker
            .quotas
            .track_detached(lease.lease_id, permits, expiry(ttl_ms));
    }
}

impl Drop for RollbackOnDrop {
    fn drop(&mut self) {
        for attempt in self.1.drain(..) {
            self.0.schedule(attempt);
        }
    }
}

/// Returns the result of a call, or [`LockError::Internal`] if the task of the call ended without
/// one.
pub(super) fn result_or_internal(
    lock: &LockKey,
    result: Result<AcquireResult, RecvError>,
) -> AcquireResult {
    result.unwrap_or_else(|_| {
        error!(
            lock = lock.to_string(),
            "internal error: an acquire ended without a result"
        );
        Err(LockError::Internal.for_lock(lock))
    })
}
