//! The lines of all locks for which calls of this broker wait, and who looks after each.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    select,
    time::{Instant, sleep_until},
};

use super::{
    line::{First, Head, Joined, Left, Line},
    taken::{AllTaken, TakeBack, Taken},
};
use crate::{
    lock::{Acquire, AttemptId, BrokerId, LockKey, RequestHash, Waiting},
    store::HandOff,
};

/// All lines.
#[derive(Default)]
pub(super) struct Lines(Mutex<State>);

#[derive(Default)]
struct State {
    lines: HashMap<LockKey, Line>,
    taken: AllTaken,
}

impl Lines {
    /// Joins the line of the lock. True if nobody looks after it yet: the caller then sees to it.
    pub(super) fn join(&self, acquire: &Acquire) -> (Joined, bool) {
        let mut state = self.state();
        let is_new = !state.lines.contains_key(&acquire.lock);
        let line = state.lines.entry(acquire.lock.clone());
        (line.or_insert_with(Line::new).join(acquire), is_new)
    }

    /// Waits until the nodes are to be asked for the first in line. `None`: nobody waits any more,
    /// and the line is gone.
    pub(super) async fn due(&self, lock: &LockKey) -> Option<Head> {
        loop {
            let (at, changed) = {
                let mut state = self.state();
                let line = state.lines.get_mut(lock)?;
                line.drop_late();
                if line.is_empty() {
                    state.lines.remove(lock);
                    return None;
                }
                let (at, changed) = line.due();
                if at <= Instant::now() {
                    return line.head();
                }
                (at, changed)
            };
            select! {
                () = sleep_until(at) => {}
                () = changed.notified() => {}
            }
        }
    }

    /// Has the first in line of the lock rest so long.
    pub(super) fn rest(&self, lock: &LockKey, pause: Duration) {
        if let Some(line) = self.state().lines.get_mut(lock) {
            line.rest(pause);
        }
    }

    /// Has the first in line of the lock ask again after `delay`.
    pub(super) fn wake(&self, lock: &LockKey, delay: Duration) {
        if let Some(line) = self.state().lines.get_mut(lock) {
            line.wake(delay);
        }
    }

    /// The same of every lock.
    pub(super) fn wake_all(&self) {
        let mut state = self.state();
        state
            .lines
            .values_mut()
            .for_each(|line| line.wake(Duration::ZERO));
    }

    /// Keeps where the answer to the first in line goes. Without that waiter there will be none.
    pub(super) fn answer_later(&self, lock: &LockKey, place: u64, first: First) {
        if let Some(line) = self.state().lines.get_mut(lock) {
            line.answer_later(place, first);
        }
    }

    /// Takes a waiter out of the line; `None` if it has left.
    pub(super) fn take(&self, lock: &LockKey, place: u64) -> Option<Vec<AttemptId>> {
        self.state().lines.get_mut(lock)?.take(place)
    }

    /// The same, because it was granted the lock. Until then `note` says by which attempt.
    pub(super) fn take_granted(
        &self,
        lock: &LockKey,
        place: u64,
        (note, until): (impl FnOnce(&[AttemptId]) -> Option<Taken>, Instant),
    ) -> Option<Vec<AttemptId>> {
        let mut state = self.state();
        let attempts = state.lines.get_mut(lock)?.take(place)?;
        if let Some(taken) = note(&attempts) {
            state.taken.note(lock, taken, until);
        }
        Some(attempts)
    }

    /// Takes an attempt out of the line, or says what that means to the nodes.
    pub(super) fn leave(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> (Left, TakeBack) {
        let mut state = self.state();
        let line = state.lines.get_mut(lock);
        match line.map_or(Left::NotHere, |line| line.leave(request, attempt)) {
            Left::NotHere => (Left::NotHere, state.taken.leave(lock, request, attempt)),
            left @ (Left::Line | Left::Others) => (left, TakeBack::Attempt(attempt)),
        }
    }

    /// How many wait up to and with the waiter of this place; 0: it has left.
    pub(super) fn position(&self, lock: &LockKey, place: u64) -> u32 {
        let state = self.state();
        state.lines.get(lock).map_or(0, |line| line.position(place))
    }

    /// How many wait for the lock.
    pub(super) fn length(&self, lock: &LockKey) -> u32 {
        self.state().lines.get(lock).map_or(0, Line::len)
    }

    /// How many wait, and the first of them.
    pub(super) fn shown(&self, lock: &LockKey) -> (u32, Vec<Waiting>) {
        let state = self.state();
        let line = state.lines.get(lock);
        line.map_or((0, Vec::new()), |line| (line.len(), line.shown()))
    }

    /// Whether anybody waits, and what waiters were granted of late.
    pub(super) fn touched(&self, lock: &LockKey, broker: BrokerId) -> (bool, Vec<HandOff>) {
        let state = self.state();
        (
            state.lines.contains_key(lock),
            state.taken.held(lock, broker),
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
