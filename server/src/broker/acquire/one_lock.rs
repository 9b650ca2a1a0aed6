//! Acquisition of one lock of a call, from the first command to the grant.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Broker, ResultSender, StreamCallContext, queue_position::QueuePositionTracker,
    spans::QueueWaitSpan,
};
use crate::{
    broker::waiters::{Registration, Signal},
    lock::{
        AcquireCommand, CONTENTION_HOLDERS_MAX, Contention, ExpectedAttachment, FencingToken,
        Grant, LeaseBinding, LeaseRef, LockError, Mode, SPAN_MIN_MS, Ttl, span_ms,
    },
    metrics::AcquireTimer,
    store::{Acquired, Cancelled, LeaseRejection, Renewal, StoreError},
    time::now_unix_millis,
};

/// Acquisition of one lock of a call.
pub(super) struct LockAcquisition<'a> {
    pub(super) broker: &'a Broker,
    pub(super) acquire: AcquireCommand,
    pub(super) deadline: Instant,
    pub(super) stream: Option<&'a StreamCallContext>,
    pub(super) timer: &'a AcquireTimer,
    /// Sequence number of the newest heartbeat received before the last command was sent.
    pub(super) as_of: i64,
    /// Queue position, if the call came on a stream.
    pub(super) position: Option<QueuePositionTracker>,
    /// Span of the wait in the queue.
    pub(super) wait_span: QueueWaitSpan,
    /// True if the store may have this attempt, so that a failed call must cancel it.
    pub(super) may_be_in_store: bool,
    /// Newest fencing token of the lock when the call was queued.
    pub(super) token_when_queued: u64,
    pub(super) started_at: Instant,
}

/// Outcome of one `acquire` command.
enum AcquireStep {
    Granted(Grant),
    /// The call is in the queue of the lock.
    Queued,
    Rejected(LockError),
}

/// Outcome of a wait.
enum WaitOutcome {
    Granted(Grant),
    Failed(LockError),
    Abandoned,
    /// The queue position may be lost, so that `acquire` must be sent again.
    Rejoin,
}

impl LockAcquisition<'_> {
    /// Acquires the lock. Returns `Ok(None)` if the caller has disconnected.
    pub(super) async fn run(
        &mut self,
        result_sender: &mut ResultSender,
    ) -> Result<Option<Grant>, LockError> {
        let grant = match self.acquire.wait_ms {
            0 => self.acquire_at_once().await.map(Some),
            _ => self.wait_in_queue(result_sender).await,
        };
        self.wait_span.end(&grant);
        if self.acquire.binding != LeaseBinding::New && matches!(grant, Ok(Some(_))) {
            let AcquireCommand { lock, lease_id, .. } = &self.acquire;
            self.broker.waiters.signal_reentry(lock, *lease_id);
        }
        grant
    }

    async fn acquire_at_once(&mut self) -> Result<Grant, LockError> {
        match self.request().await {
            AcquireStep::Granted(grant) => Ok(grant),
            // The store queues only calls that wait.
            AcquireStep::Queued => Err(LockError::Held(Contention::default())),
            AcquireStep::Rejected(error) => Err(error),
        }
    }

    /// Sends `acquire` to the store once.
    async fn request(&mut self) -> AcquireStep {
        self.note_heartbeat();
        let sent_at = Instant::now();
        let store_call = self.broker.quotas.begin_store_call();
        let result = self.broker.store.acquire(&self.acquire).await;
        drop(store_call);
        self.may_be_in_store |= match &result {
            Ok(acquired) => matches!(acquired, Acquired::Granted(_) | Acquired::Queued { .. }),
            Err(error) => error.may_have_executed(),
        };
        let waiters = &self.broker.waiters;
        if !matches!(result, Ok(Acquired::Queued { .. })) {
            waiters.record_not_queued(&self.acquire);
        }
        let acquired = match result {
            Ok(acquired) => acquired,
            Err(error) => return AcquireStep::Rejected(error.into()),
        };
        AcquireStep::Rejected(match acquired {
            Acquired::Granted(grant) => return AcquireStep::Granted(grant),
            Acquired::Queued {
                next_event_ms,
                sequence,
                position,
                last_fencing_token,
                era,
            } => {
                self.token_when_queued = last_fencing_token;
                waiters.record_queued(&self.acquire, sent_at, era);
                self.broker
                    .schedule_touch(&self.acquire.lock, next_event_ms);
                if self.wait_span.is_not_recording() {
                    self.wait_span = QueueWaitSpan::start(self.broker, &self.acquire, position);
                }
                if let Some(tracker) = &mut self.position {
                    tracker.on_queued(sequence, position);
                    self.broker.snapshot_soon(&self.acquire.lock);
                }
                return AcquireStep::Queued;
            }
            Acquired::Held(contention) => LockError::Held(contention),
            Acquired::LimitMismatch { limit } => LockError::LimitMismatch { limit },
            Acquired::StaleAttach => LockError::StaleAttach,
            Acquired::UpgradeDenied => LockError::UpgradeDenied,
            Acquired::TooManyEntries => LockError::TooManyEntries,
            Acquired::TooManyAttempts => LockError::TooManyAttempts,
            Acquired::NotFound => LockError::LeaseNotFound,
            Acquired::QueueFull => LockError::QueueFull,
            Acquired::RequestIdReused => LockError::RequestIdReused,
            Acquired::Ended | Acquired::Cancelled => LockError::LeaseExpired,
        })
    }

    /// Waits in the queue for the grant. Returns `Ok(None)` if the caller has disconnected.
    async fn wait_in_queue(
        &mut self,
        result_sender: &mut ResultSender,
    ) -> Result<Option<Grant>, LockError> {
        let acquire = &self.acquire;
        let mut registration = self.broker.waiters.register(acquire);
        self.position = self.stream.and_then(|stream| {
            Some(QueuePositionTracker::new(
                stream,
                acquire,
                registration.subscribe_snapshots()?,
                Arc::clone(&self.broker.store),
            ))
        });
        let mut wait_timer = None;
        loop {
            match self.request().await {
                AcquireStep::Granted(grant) => return Ok(Some(grant)),
                AcquireStep::Queued => {
                    let AcquireCommand { lock, mode, .. } = &self.acquire;
                    wait_timer = wait_timer.or_else(|| self.timer.start_wait(lock, *mode));
                }
                // The call was queued before. The next touch signals it to send `acquire` again.
                AcquireStep::Rejected(LockError::StoreUnavailable | LockError::StoreFull)
                    if self.acquire.rejoin => {}
                AcquireStep::Rejected(error) => return Err(error),
            }
            match self.wait(&mut registration, result_sender).await {
                WaitOutcome::Granted(grant) => return Ok(Some(grant)),
                WaitOutcome::Failed(error) => return Err(error),
                WaitOutcome::Abandoned => return Ok(None),
                WaitOutcome::Rejoin => {
                    self.acquire.wait_ms = left_ms(self.deadline);
                    self.acquire.rejoin = true;
                }
            }
        }
    }

    fn note_heartbeat(&mut self) {
        self.as_of = self.stream.map_or(0, |stream| stream.heartbeats.latest());
    }

    async fn wait(
        &mut self,
        registration: &mut Registration,
        result_sender: &mut ResultSender,
    ) -> WaitOutcome {
        loop {
            let signal = tokio::select! {
                biased;
                // Polled before `result_sender.closed()`: a stream that ends may cancel its waits
                // first, and then the queue position must not be kept.
                () = given_up(self.stream) => return self.cancel_wait(LockError::Cancelled).await,
                () = result_sender.closed() => return WaitOutcome::Abandoned,
                // Polled before the end of the wait, so that a grant that has arrived is not lost.
                signal = registration.signal() => signal,
                () = refresh_snapshot(&mut self.position) => continue,
                () = self.wait_span.refresh_snapshot() => continue,
                () = drained(self.stream, self.broker) => {
                    return WaitOutcome::Failed(LockError::Draining);
                }
                () = tokio::time::sleep_until(self.deadline) => return self.time_out().await,
            };
            match signal {
                Signal::Rejoin if self.must_end() => {}
                Signal::Rejoin => return WaitOutcome::Rejoin,
                // A hand-off to an earlier attempt, which was cancelled before this attempt was
                // queued.
                Signal::HandOff { fencing_token, .. }
                    if fencing_token.get() <= self.token_when_queued => {}
                Signal::HandOff {
                    fencing_token,
                    limit,
                    provisional: false,
                    sent,
                    received_at: notified_at,
                } if self.can_skip_claim(sent) => {
                    self.timer.handed_over(notified_at);
                    return WaitOutcome::Granted(self.grant_without_claim(fencing_token, limit));
                }
                Signal::HandOff {
                    fencing_token,
                    received_at: notified_at,
                    ..
                } => {
                    match self.claim(fencing_token).await {
                        // Each claim and each repeat may last until the deadline of a command.
                        None | Some(WaitOutcome::Rejoin) if Instant::now() >= self.deadline => {
                            return self.time_out().await;
                        }
                        None => {}
                        Some(outcome) => {
                            if let WaitOutcome::Granted(_) = outcome {
                                self.timer.handed_over(notified_at);
                            }
                            return outcome;
                        }
                    }
                }
            }
        }
    }

    /// Returns true if the wait is over, or must continue at another broker.
    fn must_end(&self) -> bool {
        let is_drained = self.stream.is_none() && self.broker.draining.is_cancelled();
        is_drained || Instant::now() >= self.deadline
    }

    /// Claims a provisional hand-off. The grant is reported to the caller only after the store has
    /// confirmed the claim. Returns `None` if the store could not be reached.
    async fn claim(&mut self, fencing_token: FencingToken) -> Option<WaitOutcome> {
        let lease = LeaseRef {
            lock: self.acquire.lock.clone(),
            lease_id: self.acquire.lease_id,
            fencing_token,
        };
        let expected_attachment = self.stream.map_or(ExpectedAttachment::Any, |stream| {
            ExpectedAttachment::Stream(stream.attachment.stream)
        });
        self.note_heartbeat();
        let renewal = Renewal::undelivered(expected_attachment);
        match self.broker.store.renew(&lease, renewal).await {
            Ok(Ok(grant)) => Some(WaitOutcome::Granted(grant)),
            // The hand-off lapsed. The request is back at its queue position, but is skipped until
            // this broker touches the lock.
            Ok(Err(
                LeaseRejection::MaxHold
                | LeaseRejection::Expired
                | LeaseRejection::Released
                | LeaseRejection::NotFound,
            )) => Some(WaitOutcome::Rejoin),
            // If the lease is elsewhere, a newer attempt of the call waits on another stream.
            Ok(Err(rejection @ (LeaseRejection::Revoked { .. } | LeaseRejection::Elsewhere))) => {
                Some(WaitOutcome::Failed(rejection.into()))
            }
            Err(
                error @ (StoreError::Corrupt(_)
                | StoreError::InvalidReply(_)
                | StoreError::Unsupported(_)),
            ) => Some(WaitOutcome::Failed(error.into())),
            Err(
                StoreError::Unavailable(_)
                | StoreError::NotExecuted(_)
                | StoreError::Full(_)
                | StoreError::Overloaded
                | StoreError::Recovering { .. },
            ) => None,
        }
    }

    async fn cancel(&mut self) -> Result<Cancelled, StoreError> {
        let acquire = &self.acquire;
        let store = &self.broker.store;
        let cancelled = store
            .cancel(&acquire.lock, acquire.request, acquire.attempt)
            .await?;
        self.may_be_in_store = false;
        Ok(cancelled)
    }

    /// Cancels the wait. Returns the error of the store if the cancellation is not confirmed.
    async fn cancel_wait(&mut self, error: LockError) -> WaitOutcome {
        WaitOutcome::Failed(self.cancel().await.map_or_else(LockError::from, |_| error))
    }

    /// Cancels the wait after its timeout. `WAIT_TIMEOUT` promises that the caller has left the
    /// queue, which only the store can confirm.
    async fn time_out(&mut self) -> WaitOutcome {
        match self.cancel().await {
            Ok(Cancelled::Kept) => return WaitOutcome::Failed(LockError::StillQueued),
            Ok(Cancelled::Dequeued | Cancelled::Freed | Cancelled::Unknown) => {}
            Err(error) => return WaitOutcome::Failed(error.into()),
        }
        let store = &self.broker.store;
        let state = store.get(&self.acquire.lock).await.ok().flatten();
        WaitOutcome::Failed(LockError::WaitTimeout(state.map_or_else(
            Contention::default,
            |state| {
                Contention {
                    holders: state
                        .holders
                        .into_iter()
                        .take(CONTENTION_HOLDERS_MAX)
                        .collect(),
                    queue_length: state.queue_length,
                    closure: state.closure,
                }
            },
        )))
    }

    /// Returns true if the grant of a hand-off is complete without a further command. A semaphore
    /// with the limit 0 uses the limit in the store, so its grant is not. On a stream, validity
    /// counts from the last heartbeat received before the granting command was sent. If more than
    /// half of the TTL had passed at that time, a renewal with a newer heartbeat is better. The
    /// limit of spans may have cut the validity of a long span, which only the store can return.
    fn can_skip_claim(&mut self, sent: Option<Instant>) -> bool {
        if matches!(self.acquire.mode, Mode::Semaphore { limit: 0, .. })
            || self.span_ms() > SPAN_MIN_MS
        {
            return false;
        }
        let Some(stream) = self.stream else {
            return true;
        };
        let heartbeat = sent.and_then(|sent| Some((sent, stream.heartbeats.latest_before(sent)?)));
        let Some((sent, heartbeat)) = heartbeat else {
            return false;
        };
        let start = heartbeat
            .read_at
            .unwrap_or(self.started_at)
            .max(self.started_at);
        let half_ttl = Duration::from_millis(self.granted_ttl().as_millis() / 2);
        self.as_of = heartbeat.sequence;
        sent.saturating_duration_since(start) <= half_ttl
    }

    fn granted_ttl(&self) -> Ttl {
        self.acquire.options.effective_ttl(self.acquire.ttl)
    }

    fn span_ms(&self) -> u64 {
        let AcquireCommand { ttl, options, .. } = &self.acquire;
        span_ms(ttl.as_millis(), options.lock_delay_ms)
    }

    fn grant_without_claim(&self, fencing_token: FencingToken, limit: u32) -> Grant {
        Grant {
            fencing_token,
            mode: Mode::from_stored(self.acquire.mode.weight(), limit),
            ttl: self.granted_ttl(),
            acquired_ms: now_unix_millis(),
            hold_count: 1,
            queue_length: 0,
            disconnect_grace_ms: self.acquire.options.disconnect_grace_ms,
            span_ms: self.span_ms(),
        }
    }
}

async fn refresh_snapshot(tracker: &mut Option<QueuePositionTracker>) {
    match tracker {
        Some(tracker) => tracker.next_snapshot().await,
        None => std::future::pending().await,
    }
}

async fn given_up(stream: Option<&StreamCallContext>) {
    match stream {
        Some(stream) => stream.cancellation.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Completes when a unary call must be repeated at another broker because of a drain. A call on a
/// stream continues until its client has moved it to another stream.
async fn drained(stream: Option<&StreamCallContext>, broker: &Broker) {
    match stream {
        Some(_) => std::future::pending().await,
        None => broker.draining.cancelled().await,
    }
}

/// Returns the remaining wait in milliseconds, at least 1, because 0 means not to wait at all.
pub(super) fn left_ms(deadline: Instant) -> u64 {
    let remaining = deadline.saturating_duration_since(Instant::now());
    u64::try_from(remaining.as_micros().div_ceil(1_000))
        .unwrap_or(0)
        .max(1)
}
