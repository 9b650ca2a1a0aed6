//! The calls of this broker that wait for one lock, in the order in which they came.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{
    lock::{
        ATTEMPTS_MAX, Acquire, Attachment, AttemptId, RequestHash, SHOWN_MAX, WAITERS_MAX, Waiting,
    },
    store::{Acquired, StoreError},
};

/// How long the first in line waits at most before it looks again.
const LOOK: Duration = Duration::from_secs(1);
/// How long a call that does not wait tries on while only parts of the lock are taken.
const TRY_ON: Duration = Duration::from_millis(500);

/// Where the first answer to a call goes that had nobody before it.
pub(super) type First = oneshot::Sender<Result<Acquired, StoreError>>;
/// Where it comes from.
pub(super) type Answer = oneshot::Receiver<Result<Acquired, StoreError>>;

/// Never without waiters for long: who looks after it removes it then.
pub(super) struct Line {
    waiters: VecDeque<Waiter>,
    last_place: u64,
    /// When the first in line asks the nodes again, unless it is woken before.
    rests_until: Instant,
    /// When it is to ask because of what was heard meanwhile.
    woken_for: Option<Instant>,
    changed: Arc<Notify>,
}

struct Waiter {
    place: u64,
    since_ms: u64,
    until: Instant,
    /// As the newest attempt asked.
    acquire: Acquire,
    attempts: Vec<AttemptId>,
    first: Option<First>,
}

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) place: u64,
    pub(super) position: u32,
}

/// What became of a call that wants to wait.
pub(super) enum Joined {
    /// It is the first, and its answer comes when the nodes were asked.
    First(Answer),
    /// It is behind others.
    Behind(Standing),
    /// It was there.
    Again(Standing),
    /// It is refused.
    Refused(Acquired),
}

/// The first in line.
pub(super) struct Head {
    pub(super) place: u64,
    pub(super) acquire: Acquire,
    pub(super) until: Instant,
    pub(super) first: Option<First>,
    /// Others wait behind it.
    pub(super) is_followed: bool,
}

/// What became of an attempt that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The last one: its call is out of the line.
    Line,
    /// The call has others.
    Others,
    /// It is not in line.
    NotHere,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            waiters: VecDeque::new(),
            last_place: 0,
            rests_until: Instant::now(),
            woken_for: None,
            changed: Arc::default(),
        }
    }

    /// Joins at the end. A repeat keeps its place, and waits as long as the longer of both.
    pub(super) fn join(&mut self, acquire: &Acquire) -> Joined {
        let until = Instant::now()
            + match acquire.wait_ms {
                0 => TRY_ON,
                wait_ms => Duration::from_millis(wait_ms),
            };
        let same = |waiter: &Waiter| waiter.acquire.request == acquire.request;
        if let Some(at) = self.waiters.iter().position(same) {
            return self.join_again(at, acquire, until);
        }
        if self.len() >= WAITERS_MAX {
            return Joined::Refused(Acquired::QueueFull);
        }
        self.last_place += 1;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since_ms = since.unwrap_or_default().as_millis();
        let (first, answer) = oneshot::channel();
        let is_first = self.waiters.is_empty();
        self.waiters.push_back(Waiter {
            place: self.last_place,
            since_ms: u64::try_from(since_ms).unwrap_or(u64::MAX),
            until,
            acquire: acquire.clone(),
            attempts: vec![acquire.attempt],
            first: is_first.then_some(first),
        });
        if !is_first {
            return Joined::Behind(self.standing(self.waiters.len() - 1));
        }
        self.wake(Duration::ZERO);
        Joined::First(answer)
    }

    fn join_again(&mut self, at: usize, again: &Acquire, until: Instant) -> Joined {
        let standing = self.standing(at);
        let waiter = &mut self.waiters[at];
        let known = &mut waiter.acquire;
        if known.lease_id != again.lease_id || known.arguments != again.arguments {
            return Joined::Refused(Acquired::RequestIdReused);
        }
        let Some(stream) = Attachment::moved(known.stream, again.stream) else {
            return Joined::Refused(Acquired::StaleAttach);
        };
        if !waiter.attempts.contains(&again.attempt) {
            if waiter.attempts.len() == ATTEMPTS_MAX {
                return Joined::Refused(Acquired::TooManyAttempts);
            }
            waiter.attempts.push(again.attempt);
        }
        known.clone_from(again);
        known.stream = stream;
        waiter.until = waiter.until.max(until);
        Joined::Again(standing)
    }

    /// The first in line, with whom it falls to ask the nodes.
    pub(super) fn head(&mut self) -> Option<Head> {
        let is_followed = self.waiters.len() > 1;
        let waiter = self.waiters.front_mut()?;
        Some(Head {
            place: waiter.place,
            acquire: waiter.acquire.clone(),
            until: waiter.until,
            first: waiter.first.take(),
            is_followed,
        })
    }

    /// Keeps where the answer to the first in line goes.
    pub(super) fn answer_later(&mut self, place: u64, first: First) {
        let waiter = self.waiters.front_mut();
        if let Some(waiter) = waiter.filter(|waiter| waiter.place == place) {
            waiter.first = Some(first);
        }
    }

    /// Takes a waiter out; `None` if it is gone. Its attempts.
    pub(super) fn take(&mut self, place: u64) -> Option<Vec<AttemptId>> {
        let at = self
            .waiters
            .iter()
            .position(|waiter| waiter.place == place)?;
        self.waiters.remove(at).map(|waiter| waiter.attempts)
    }

    /// Takes an attempt out, and its call with the last one.
    pub(super) fn leave(&mut self, request: RequestHash, attempt: AttemptId) -> Left {
        let is_it = |waiter: &Waiter| waiter.acquire.request == request;
        let Some(at) = self.waiters.iter().position(is_it) else {
            return Left::NotHere;
        };
        let attempts = &mut self.waiters[at].attempts;
        attempts.retain(|known| *known != attempt);
        if !attempts.is_empty() {
            return Left::Others;
        }
        self.waiters.remove(at);
        if at == 0 {
            self.wake(Duration::ZERO);
        }
        Left::Line
    }

    /// Drops those whose time is over. One that has no answer at all gets its turn first.
    pub(super) fn drop_late(&mut self) {
        let now = Instant::now();
        let stays = |waiter: &Waiter| waiter.until > now || waiter.first.is_some();
        self.waiters.retain(stays);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many wait up to and with the one of this place; 0: it has left.
    pub(super) fn position(&self, place: u64) -> u32 {
        let at = self.waiters.iter().position(|waiter| waiter.place == place);
        at.map_or(0, |at| self.standing(at).position)
    }

    /// How many wait.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.waiters.len()).unwrap_or(u32::MAX)
    }

    /// The first of them as others may see them.
    pub(super) fn shown(&self) -> Vec<Waiting> {
        let now = Instant::now();
        let first = self.waiters.iter().take(SHOWN_MAX);
        let shown = first.map(|waiter| Waiting {
            place: waiter.place,
            owner: waiter.acquire.owner.clone(),
            mode: waiter.acquire.mode,
            since_ms: waiter.since_ms,
            remaining_ms: millis(waiter.until.saturating_duration_since(now)),
        });
        shown.collect()
    }

    /// Has the first in line ask again after `delay`, unless it does so sooner.
    pub(super) fn wake(&mut self, delay: Duration) {
        let at = Instant::now() + delay;
        self.woken_for = Some(self.woken_for.map_or(at, |earlier| earlier.min(at)));
        self.changed.notify_one();
    }

    /// Has it rest after it has asked. What it heard meanwhile still wakes it.
    pub(super) fn rest(&mut self, pause: Duration) {
        self.rests_until = Instant::now() + pause.min(LOOK);
    }

    /// When to ask, and what tells that this has changed. If that is now, it will not be again
    /// before [`Line::rest`] has said so, or it is woken.
    pub(super) fn due(&mut self) -> (Instant, Arc<Notify>) {
        let at = self
            .woken_for
            .map_or(self.rests_until, |at| at.min(self.rests_until));
        let now = Instant::now();
        if at <= now {
            self.woken_for = None;
            self.rests_until = now + LOOK;
        }
        (at, Arc::clone(&self.changed))
    }

    fn standing(&self, at: usize) -> Standing {
        Standing {
            place: self.waiters[at].place,
            position: u32::try_from(at + 1).unwrap_or(u32::MAX),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
