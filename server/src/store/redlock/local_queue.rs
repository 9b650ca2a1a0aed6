//! Local queue of one lock: the waiting calls of this broker in the order of their arrival.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{
    lock::{
        ATTEMPTS_MAX, AcquireCommand, Attachment, AttemptId, INSPECT_ENTRIES_MAX, RequestHash,
        WAITERS_MAX, WaiterInfo,
    },
    store::{Acquired, Cancelled, StoreError},
    time::{millis, now_unix_millis},
};

/// Time for which a call that does not wait retries while several calls each hold the lock at some
/// nodes.
const TRY_TIMEOUT: Duration = Duration::from_millis(500);

/// Receiver of the first reply to a call that joined an empty queue.
pub(super) type FirstReplyReceiver = oneshot::Receiver<Result<Acquired, StoreError>>;

/// A queue of waiting calls. Its worker removes the queue when it is empty.
#[derive(Default)]
pub(super) struct LocalQueue {
    waiters: VecDeque<Waiter>,
    last_sequence: u64,
    /// Time of the next request to the nodes. `None` while a request is under way, until a
    /// notification is received.
    next_request_at: Option<Instant>,
    /// Notification of changes of the time of the next request.
    pub(super) changed: Arc<Notify>,
}

/// A call in the queue.
pub(super) struct Waiter {
    sequence: u64,
    since_ms: u64,
    until: Instant,
    /// Command of the newest attempt.
    pub(super) acquire: AcquireCommand,
    pub(super) attempts: Vec<AttemptId>,
    /// Sender of the first reply, until it is sent. Only a call that joined an empty queue has it.
    pub(super) first_reply: Option<oneshot::Sender<Result<Acquired, StoreError>>>,
}

/// Result of enqueuing a call.
pub(super) enum EnqueueResult {
    /// The call is the first. It receives the reply after the nodes have answered.
    First(FirstReplyReceiver),
    /// The call waits behind others. Contains its queue position.
    Queued(Acquired),
    /// The call was queued already, or is rejected.
    Answered(Acquired),
}

/// The first call of the queue.
pub(super) struct QueueHead {
    pub(super) sequence: u64,
    pub(super) acquire: AcquireCommand,
    pub(super) until: Instant,
    /// True if the call has no reply yet.
    pub(super) needs_reply: bool,
    /// True if other calls wait behind this call.
    pub(super) has_followers: bool,
}

impl LocalQueue {
    /// Appends a call. A repeated call keeps its queue position, and waits until the later of the
    /// two timeouts.
    pub(super) fn enqueue(&mut self, acquire: &AcquireCommand) -> EnqueueResult {
        let until = Instant::now()
            + match acquire.wait_ms {
                0 => TRY_TIMEOUT,
                wait_ms => Duration::from_millis(wait_ms),
            };
        if let Some(at) = self.index_of(acquire.request) {
            return EnqueueResult::Answered(self.enqueue_again(at, acquire, until));
        }
        if self.len() >= WAITERS_MAX {
            return EnqueueResult::Answered(Acquired::QueueFull);
        }
        self.last_sequence += 1;
        let (first_reply, receiver) = oneshot::channel();
        let is_first = self.waiters.is_empty();
        self.waiters.push_back(Waiter {
            sequence: self.last_sequence,
            since_ms: now_unix_millis(),
            until,
            acquire: acquire.clone(),
            attempts: vec![acquire.attempt],
            first_reply: is_first.then_some(first_reply),
        });
        if !is_first {
            return EnqueueResult::Queued(self.queued(self.waiters.len() - 1));
        }
        self.wake(Duration::ZERO);
        EnqueueResult::First(receiver)
    }

    fn enqueue_again(&mut self, at: usize, repeated: &AcquireCommand, until: Instant) -> Acquired {
        let waiter = &mut self.waiters[at];
        let stored = &mut waiter.acquire;
        if stored.lease_id != repeated.lease_id || stored.arguments != repeated.arguments {
            return Acquired::RequestIdReused;
        }
        let Ok(stream) = Attachment::supersede(stored.stream, repeated.stream) else {
            return Acquired::StaleAttach;
        };
        if !waiter.attempts.contains(&repeated.attempt) {
            if waiter.attempts.len() == ATTEMPTS_MAX {
                return Acquired::TooManyAttempts;
            }
            waiter.attempts.push(repeated.attempt);
        }
        stored.clone_from(repeated);
        stored.stream = stream;
        waiter.until = waiter.until.max(until);
        self.queued(at)
    }

    /// Returns the first call, or `None` if the queue is empty.
    pub(super) fn head(&self) -> Option<QueueHead> {
        let waiter = self.waiters.front()?;
        Some(QueueHead {
            sequence: waiter.sequence,
            acquire: waiter.acquire.clone(),
            until: waiter.until,
            needs_reply: waiter.first_reply.is_some(),
            has_followers: self.waiters.len() > 1,
        })
    }

    /// Sends the first call its queue position, unless the call has a reply already or has left.
    pub(super) fn reply_queued(&mut self, sequence: u64) {
        let Some(waiter) = self.waiters.front_mut() else {
            return;
        };
        if waiter.sequence == sequence
            && let Some(first_reply) = waiter.first_reply.take()
        {
            // Sending fails if the call has ended. Its cancel then removes it from the queue.
            let _ = first_reply.send(Ok(self.queued(0)));
        }
    }

    /// Removes a waiter, or returns `None` if the waiter has left.
    pub(super) fn take(&mut self, sequence: u64) -> Option<Waiter> {
        let mut waiters = self.waiters.iter();
        let at = waiters.position(|waiter| waiter.sequence == sequence)?;
        self.waiters.remove(at)
    }

    /// Removes an attempt, and with the last attempt the call. Returns `None` if the call is not in
    /// the queue.
    pub(super) fn remove_attempt(
        &mut self,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Option<Cancelled> {
        let at = self.index_of(request)?;
        let attempts = &mut self.waiters[at].attempts;
        attempts.retain(|id| *id != attempt);
        if !attempts.is_empty() {
            return Some(Cancelled::Kept);
        }
        self.waiters.remove(at);
        if at == 0 {
            self.wake(Duration::ZERO);
        }
        Some(Cancelled::Dequeued)
    }

    /// Removes waiters that have timed out, except those that still need a first reply.
    pub(super) fn remove_timed_out(&mut self) {
        let now = Instant::now();
        let stays = |waiter: &Waiter| waiter.until > now || waiter.first_reply.is_some();
        self.waiters.retain(stays);
    }

    /// Returns the number of waiters.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.waiters.len()).unwrap_or(u32::MAX)
    }

    /// Returns the first waiters as reported to other callers.
    pub(super) fn waiter_infos(&self) -> Vec<WaiterInfo> {
        let now = Instant::now();
        let first = self.waiters.iter().take(INSPECT_ENTRIES_MAX);
        let waiters = first.map(|waiter| WaiterInfo {
            sequence: waiter.sequence,
            owner: waiter.acquire.owner.clone(),
            mode: waiter.acquire.mode,
            since_ms: waiter.since_ms,
            remaining_ms: millis(waiter.until.saturating_duration_since(now)),
        });
        waiters.collect()
    }

    /// Schedules the next request to the nodes after `delay`, unless an earlier one is scheduled.
    pub(super) fn wake(&mut self, delay: Duration) {
        let at = Instant::now() + delay;
        let earlier = self.next_request_at.filter(|earlier| *earlier < at);
        self.next_request_at = Some(earlier.unwrap_or(at));
        self.changed.notify_one();
    }

    /// Returns the time of the next request to the nodes, or `None` if the request is due. The
    /// caller then sends the request, and schedules the next one with [`LocalQueue::wake`].
    pub(super) fn next_request(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.next_request_at = self.next_request_at.filter(|at| *at > now);
        self.next_request_at
    }

    fn index_of(&self, request: RequestHash) -> Option<usize> {
        let mut waiters = self.waiters.iter();
        waiters.position(|waiter| waiter.acquire.request == request)
    }

    /// Returns the reply to a waiting call. The queue stores no fencing tokens, so every hand-off
    /// must be claimed.
    fn queued(&self, at: usize) -> Acquired {
        Acquired::Queued {
            next_event_ms: None,
            sequence: Some(self.waiters[at].sequence),
            position: Some(u32::try_from(at + 1).unwrap_or(u32::MAX)),
            last_fencing_token: 0,
            era: None,
        }
    }
}
