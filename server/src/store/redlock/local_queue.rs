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
    store::{Acquired, StoreError},
    time::{millis, now_unix_millis},
};

/// Maximum pause between two requests to the nodes for the first call.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Time for which a call that does not wait retries while several calls each hold the lock at some
/// nodes.
const TRY_TIMEOUT: Duration = Duration::from_millis(500);

/// Sender of the first reply to a call that joined an empty queue.
pub(super) type FirstReplySender = oneshot::Sender<Result<Acquired, StoreError>>;
/// Receiver of the first reply to a call that joined an empty queue.
pub(super) type FirstReplyReceiver = oneshot::Receiver<Result<Acquired, StoreError>>;

/// A queue of waiting calls. Its worker removes the queue when it is empty.
pub(super) struct LocalQueue {
    waiters: VecDeque<Waiter>,
    last_sequence: u64,
    /// Time of the next request to the nodes, unless the worker is woken earlier.
    next_request_at: Instant,
    /// Earlier time of the next request, set by a notification.
    woken_at: Option<Instant>,
    changed: Arc<Notify>,
}

struct Waiter {
    sequence: u64,
    since_ms: u64,
    until: Instant,
    /// Command of the newest attempt.
    acquire: AcquireCommand,
    attempts: Vec<AttemptId>,
    first_reply: Option<FirstReplySender>,
}

/// Queue sequence number and queue position of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueRank {
    pub(super) sequence: u64,
    pub(super) position: u32,
}

/// Result of enqueuing a call.
pub(super) enum EnqueueResult {
    /// The call is the first. It receives the reply after the nodes have answered.
    First(FirstReplyReceiver),
    /// The call waits behind others.
    Queued(QueueRank),
    /// The call was queued already.
    AlreadyQueued(QueueRank),
    /// The call is rejected.
    Rejected(Acquired),
}

/// The first call of the queue.
pub(super) struct QueueHead {
    pub(super) sequence: u64,
    pub(super) acquire: AcquireCommand,
    pub(super) until: Instant,
    pub(super) first_reply: Option<FirstReplySender>,
    /// True if other calls wait behind this call.
    pub(super) has_followers: bool,
}

/// Result of removing an attempt from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaveResult {
    /// The attempt was the last of its call, which left the queue.
    LastAttempt,
    /// The call has other attempts and stays queued.
    OtherAttempts,
    /// The call is not in the queue.
    NotQueued,
}

impl LocalQueue {
    pub(super) fn new() -> Self {
        Self {
            waiters: VecDeque::new(),
            last_sequence: 0,
            next_request_at: Instant::now(),
            woken_at: None,
            changed: Arc::default(),
        }
    }

    /// Appends a call. A repeated call keeps its queue position, and waits until the later of the
    /// two timeouts.
    pub(super) fn enqueue(&mut self, acquire: &AcquireCommand) -> EnqueueResult {
        let until = Instant::now()
            + match acquire.wait_ms {
                0 => TRY_TIMEOUT,
                wait_ms => Duration::from_millis(wait_ms),
            };
        let same = |waiter: &Waiter| waiter.acquire.request == acquire.request;
        if let Some(at) = self.waiters.iter().position(same) {
            return self.enqueue_again(at, acquire, until);
        }
        if self.len() >= WAITERS_MAX {
            return EnqueueResult::Rejected(Acquired::QueueFull);
        }
        self.last_sequence += 1;
        let (first, receiver) = oneshot::channel();
        let is_first = self.waiters.is_empty();
        self.waiters.push_back(Waiter {
            sequence: self.last_sequence,
            since_ms: now_unix_millis(),
            until,
            acquire: acquire.clone(),
            attempts: vec![acquire.attempt],
            first_reply: is_first.then_some(first),
        });
        if !is_first {
            return EnqueueResult::Queued(self.rank(self.waiters.len() - 1));
        }
        self.wake(Duration::ZERO);
        EnqueueResult::First(receiver)
    }

    fn enqueue_again(
        &mut self,
        at: usize,
        repeated: &AcquireCommand,
        until: Instant,
    ) -> EnqueueResult {
        let rank = self.rank(at);
        let waiter = &mut self.waiters[at];
        let stored = &mut waiter.acquire;
        if stored.lease_id != repeated.lease_id || stored.arguments != repeated.arguments {
            return EnqueueResult::Rejected(Acquired::RequestIdReused);
        }
        let Ok(stream) = Attachment::supersede(stored.stream, repeated.stream) else {
            return EnqueueResult::Rejected(Acquired::StaleAttach);
        };
        if !waiter.attempts.contains(&repeated.attempt) {
            if waiter.attempts.len() == ATTEMPTS_MAX {
                return EnqueueResult::Rejected(Acquired::TooManyAttempts);
            }
            waiter.attempts.push(repeated.attempt);
        }
        stored.clone_from(repeated);
        stored.stream = stream;
        waiter.until = waiter.until.max(until);
        EnqueueResult::AlreadyQueued(rank)
    }

    /// Returns the first call together with the sender of its first reply.
    pub(super) fn head(&mut self) -> Option<QueueHead> {
        let is_followed = self.waiters.len() > 1;
        let waiter = self.waiters.front_mut()?;
        Some(QueueHead {
            sequence: waiter.sequence,
            acquire: waiter.acquire.clone(),
            until: waiter.until,
            first_reply: waiter.first_reply.take(),
            has_followers: is_followed,
        })
    }

    /// Stores the sender of the first call's reply until a later request to the nodes.
    pub(super) fn defer_reply(&mut self, sequence: u64, first: FirstReplySender) {
        let waiter = self.waiters.front_mut();
        if let Some(waiter) = waiter.filter(|waiter| waiter.sequence == sequence) {
            waiter.first_reply = Some(first);
        }
    }

    /// Removes a waiter and returns its attempts, or `None` if the waiter has left.
    pub(super) fn take(&mut self, sequence: u64) -> Option<Vec<AttemptId>> {
        let at = self
            .waiters
            .iter()
            .position(|waiter| waiter.sequence == sequence)?;
        self.waiters.remove(at).map(|waiter| waiter.attempts)
    }

    /// Removes an attempt, and with the last attempt the call.
    pub(super) fn remove_attempt(
        &mut self,
        request: RequestHash,
        attempt: AttemptId,
    ) -> LeaveResult {
        let is_request = |waiter: &Waiter| waiter.acquire.request == request;
        let Some(at) = self.waiters.iter().position(is_request) else {
            return LeaveResult::NotQueued;
        };
        let attempts = &mut self.waiters[at].attempts;
        attempts.retain(|id| *id != attempt);
        if !attempts.is_empty() {
            return LeaveResult::OtherAttempts;
        }
        self.waiters.remove(at);
        if at == 0 {
            self.wake(Duration::ZERO);
        }
        LeaveResult::LastAttempt
    }

    /// Removes waiters that have timed out, except those that still need a first reply.
    pub(super) fn remove_timed_out(&mut self) {
        let now = Instant::now();
        let stays = |waiter: &Waiter| waiter.until > now || waiter.first_reply.is_some();
        self.waiters.retain(stays);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns the queue position of the waiter with this sequence number; 0 if the waiter has
    /// left.
    pub(super) fn position(&self, sequence: u64) -> u32 {
        let at = self
            .waiters
            .iter()
            .position(|waiter| waiter.sequence == sequence);
        at.map_or(0, |at| self.rank(at).position)
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
        self.woken_at = Some(self.woken_at.map_or(at, |earlier| earlier.min(at)));
        self.changed.notify_one();
    }

    /// Schedules the next request to the nodes after `pause`. Notifications received meanwhile can
    /// still cause an earlier request.
    pub(super) fn sleep_until(&mut self, pause: Duration) {
        self.next_request_at = Instant::now() + pause.min(POLL_INTERVAL_MAX);
    }

    /// Returns the time of the next request to the nodes, and a notification of changes of this
    /// time. If the request is due, the one after it is scheduled after [`POLL_INTERVAL_MAX`],
    /// until [`Line::rest`] or [`Line::wake`] sets another time.
    pub(super) fn next_request(&mut self) -> (Instant, Arc<Notify>) {
        let at = self
            .woken_at
            .map_or(self.next_request_at, |at| at.min(self.next_request_at));
        let now = Instant::now();
        if at <= now {
            self.woken_at = None;
            self.next_request_at = now + POLL_INTERVAL_MAX;
        }
        (at, Arc::clone(&self.changed))
    }

    fn rank(&self, at: usize) -> QueueRank {
        QueueRank {
            sequence: self.waiters[at].sequence,
            position: u32::try_from(at + 1).unwrap_or(u32::MAX),
        }
    }
}
