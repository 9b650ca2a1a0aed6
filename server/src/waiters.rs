//! The calls that wait at this broker, by lock: who must hear of a grant, and when to touch a lock.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};

use crate::{
    lock::{Acquire, AttemptId, FencingToken, LeaseId, LockKey, LockState, RequestHash},
    store::EraId,
};

/// Signals that a call may fall behind; a lost one is found again by touch.
const SIGNALS_MAX: usize = 8;
/// How often a line is looked at for those who are told their place.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What was seen of a lock last; `None` before the first look.
pub type Look = Option<Arc<LockState>>;

/// What a waiting call is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The lock was granted to its request.
    HandOff {
        /// The token of the grant.
        fencing_token: FencingToken,
        /// Nobody may be told before the broker has claimed it.
        provisional: bool,
        /// When the command that made it was sent; `None`: nobody knows.
        sent: Option<Instant>,
        /// When the broker heard of it.
        told: Instant,
    },
    /// Its place in line may be lost: ask the store again.
    Rejoin,
}

/// All calls that wait at this broker.
#[derive(Debug, Default)]
pub struct Waiters {
    lines: Mutex<HashMap<LockKey, Line>>,
}

/// One lock's calls.
#[derive(Debug, Default)]
struct Line {
    calls: HashMap<RequestHash, Vec<WaitingCall>>,
    /// When to touch the lock next; `None` while nobody is known to be queued.
    touch_at: Option<Instant>,
    changed: Arc<Notify>,
    /// The era of the store in which the calls are in line.
    era: Option<EraId>,
    looked_at: Option<Instant>,
    look: watch::Sender<Look>,
}

#[derive(Debug)]
struct WaitingCall {
    attempt: AttemptId,
    lease_id: LeaseId,
    signals: mpsc::Sender<Signal>,
}

/// A call's entry; dropping it ends the entry.
#[derive(Debug)]
pub struct Registration {
    waiters: Arc<Waiters>,
    lock: LockKey,
    request: RequestHash,
    attempt: AttemptId,
    signals: mpsc::Receiver<Signal>,
}

impl Waiters {
    /// Registers a call *before* the store is asked, so that no grant finds nobody at home.
    pub fn register(self: &Arc<Self>, acquire: &Acquire) -> Registration {
        let (lock, request, attempt) = (&acquire.lock, acquire.request, acquire.attempt);
        let (sender, signals) = mpsc::channel(SIGNALS_MAX);
        let call = WaitingCall {
            attempt,
            lease_id: acquire.lease_id,
            signals: sender,
        };
        self.lines()
            .entry(lock.clone())
            .or_default()
            .calls
            .entry(request)
            .or_default()
            .push(call);
        Registration {
            waiters: Arc::clone(self),
            lock: lock.clone(),
            request,
            attempt,
            signals,
        }
    }

    /// Tells every attempt of a request. Of several the store knows which one has the grant.
    pub fn hand_off(&self, lock: &LockKey, request: RequestHash, mut signal: Signal) {
        let lines = self.lines();
        let calls = lines.get(lock).and_then(|line| line.calls.get(&request));
        let calls = calls.map_or(&[][..], |calls| calls);
        if let Signal::HandOff { sent, .. } = &mut signal
            && calls.len() > 1
        {
            *sent = None;
        }
        for call in calls {
            let _ = call.signals.try_send(signal);
        }
    }

    /// Tells every call of a lock to ask the store again.
    pub fn rejoin(&self, lock: &LockKey) {
        if let Some(line) = self.lines().get(lock) {
            line.rejoin();
        }
    }

    /// Tells the calls of a lease that has got the lock to ask the store again: they enter it.
    pub fn may_enter(&self, lock: &LockKey, lease_id: LeaseId) {
        if let Some(line) = self.lines().get(lock) {
            let calls = line.calls.values().flatten();
            for call in calls.filter(|call| call.lease_id == lease_id) {
                let _ = call.signals.try_send(Signal::Rejoin);
            }
        }
    }

    /// Takes note of the era in which the store was asked for the lock. In another one than before the store
    /// may have lost places: every call of the lock is told to ask again.
    pub fn in_era(&self, lock: &LockKey, era: Option<EraId>) {
        let mut lines = self.lines();
        let (Some(line), Some(era)) = (lines.get_mut(lock), era) else {
            return;
        };
        let is_new = line.era.as_ref() != Some(&era);
        let before = is_new.then(|| line.era.replace(era)).flatten();
        if before.is_some() {
            line.rejoin();
        }
    }

    /// How many locks have waiters here.
    pub fn lines_kept(&self) -> usize {
        self.lines().len()
    }

    /// Wants the lock touched at `at`, or earlier. True if nobody looks after the line yet: the
    /// caller then starts the task that does.
    pub fn touch_by(&self, lock: &LockKey, at: Instant) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(lock) else {
            return false;
        };
        let starts = line.touch_at.is_none();
        if line.touch_at.is_none_or(|touch_at| at < touch_at) {
            line.touch_at = Some(at);
            line.changed.notify_one();
        }
        starts
    }

    /// Wants every line touched now.
    pub fn touch_all(&self) {
        let now = Instant::now();
        for line in self.lines().values_mut() {
            if line.touch_at.is_some() {
                line.touch_at = Some(now);
                line.changed.notify_one();
            }
        }
    }

    /// Waits until the lock is to be touched, and sets the time after that to `next`. False when
    /// nobody waits any more; the line is then looked after by nobody.
    pub async fn touch_due(&self, lock: &LockKey, next: impl Fn() -> Instant) -> bool {
        loop {
            let after = next();
            let (at, changed) = {
                let mut lines = self.lines();
                let Some(line) = lines.get_mut(lock) else {
                    return false;
                };
                let (Some(at), false) = (line.touch_at, line.calls.is_empty()) else {
                    lines.remove(lock);
                    return false;
                };
                let now = Instant::now();
                if at <= now {
                    line.touch_at = Some(after);
                    return true;
                }
                (at, Arc::clone(&line.changed))
            };
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = changed.notified() => {}
            }
        }
    }

    /// Whether somebody wants to be told of a look at the lock, and the last one is old: the caller
    /// then looks.
    pub fn look_due(&self, lock: &LockKey) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(lock) else {
            return false;
        };
        let is_old = |at: Instant| at.elapsed() >= LOOK_INTERVAL;
        let is_due = line.look.receiver_count() > 0 && line.looked_at.is_none_or(is_old);
        if is_due {
            line.looked_at = Some(Instant::now());
        }
        is_due
    }

    /// Tells what was seen of a lock.
    pub fn looked(&self, lock: &LockKey, state: LockState) {
        if let Some(line) = self.lines().get(lock) {
            line.look.send_replace(Some(Arc::new(state)));
        }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<LockKey, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn rejoin(&self) {
        for call in self.calls.values().flatten() {
            let _ = call.signals.try_send(Signal::Rejoin);
        }
    }
}

impl Registration {
    /// What is seen of the lock from now on, and what was seen last.
    pub fn looks(&self) -> Option<watch::Receiver<Look>> {
        let lines = self.waiters.lines();
        Some(lines.get(&self.lock)?.look.subscribe())
    }

    /// The next signal. Cancel safe.
    pub async fn signal(&mut self) -> Signal {
        match self.signals.recv().await {
            Some(signal) => signal,
            // The sender lives in the entry, which ends with this registration.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut lines = self.waiters.lines();
        let Some(line) = lines.get_mut(&self.lock) else {
            return;
        };
        if let Some(calls) = line.calls.get_mut(&self.request) {
            calls.retain(|call| call.attempt != self.attempt);
            if calls.is_empty() {
                line.calls.remove(&self.request);
            }
        }
        if !line.calls.is_empty() {
            return;
        }
        match line.touch_at {
            Some(_) => line.changed.notify_one(),
            None => drop(lines.remove(&self.lock)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::store::stub::{acquire, lock};

    #[test]
    fn a_call_may_fall_behind_by_so_many_signals() {
        let waiters = Arc::<Waiters>::default();
        let mut call = waiters.register(&acquire(&lock("a"), 0));
        for _ in 0..=SIGNALS_MAX {
            waiters.rejoin(&lock("a"));
        }
        let mut heard = 0;
        while call.signal().now_or_never().is_some() {
            heard += 1;
        }
        assert_eq!(heard, SIGNALS_MAX);
    }
}
