//! One Acquire from its first command to its answer. Runs in a task of its own: the caller's future
//! may be dropped at any moment, the grant logic may not.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::{sync::oneshot, time::Instant};

use super::{Broker, undo::Attempt, undo::Undo};
use crate::{
    lock::{
        Acquire, AcquireCall, AttemptId, Contention, FencingToken, Grant, HELD_SHOWN, Lease,
        LeaseRef, LeaseToken, LockError, Under,
    },
    store::{Acquired, Renewed, StoreError},
    waiters::{Registration, Signal},
};

/// A call under way.
pub(super) struct Call {
    broker: Broker,
    acquire: Acquire,
    token: LeaseToken,
    deadline: Instant,
}

/// A granted lease on its way to the caller. Dropped on the way, it is given back.
#[derive(Debug)]
pub(super) struct Offer {
    lease: Lease,
    undelivered: Undelivered,
}

/// Takes an attempt back when dropped.
#[derive(Debug)]
struct Undelivered(Option<(Undo, Attempt)>);

/// How the wait ended.
enum Wait {
    Granted(Grant),
    Failed(LockError),
    Abandoned,
    /// The place in line must be asked for again.
    Rejoin,
}

impl Call {
    pub(super) fn new(broker: Broker, call: AcquireCall, token: LeaseToken) -> Self {
        let acquire = Acquire {
            lock: call.lock,
            mode: call.mode,
            lease_id: token.lease_id(),
            under: Under::NewLease,
            request: call.request_id.hash(),
            arguments: call.arguments,
            attempt: AttemptId::random(),
            ttl: call.ttl,
            terms: call.terms,
            wait_ms: call.wait_ms,
            owner: call.owner,
            rejoin: false,
        };
        Self {
            broker,
            token,
            deadline: Instant::now() + Duration::from_millis(acquire.wait_ms),
            acquire,
        }
    }

    /// Answers exactly once, unless the caller is gone.
    pub(super) async fn run(mut self, mut reply: oneshot::Sender<Result<Offer, LockError>>) {
        let attempt = Attempt::of(&self.acquire);
        let result = match self.acquire.wait_ms {
            0 => self.ask().await.map(Some),
            _ => self.wait_in_line(&mut reply).await,
        };
        let undo = self.broker.undo.clone();
        match result {
            Ok(Some(grant)) => {
                let lease = Lease {
                    lock: self.acquire.lock,
                    mode: self.acquire.mode,
                    lease_id: self.acquire.lease_id,
                    lease_token: self.token,
                    grant,
                };
                // An offer that cannot be sent is dropped, and undone by that.
                let undelivered = Undelivered(Some((undo, attempt)));
                let _ = reply.send(Ok(Offer { lease, undelivered }));
            }
            Ok(None) => undo.later(attempt),
            Err(error) => {
                if error == LockError::StoreUnavailable {
                    undo.later(attempt);
                }
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Asks the store once. `Err(Held)` stands for "not now".
    async fn ask(&mut self) -> Result<Grant, LockError> {
        match self.broker.store.acquire(&self.acquire).await? {
            Acquired::Granted(grant) => Ok(grant),
            Acquired::Queued { next_event_ms } => {
                self.broker.expect(&self.acquire.lock, next_event_ms);
                Err(LockError::Held(Contention::default()))
            }
            Acquired::Held(contention) => Err(LockError::Held(contention)),
            Acquired::LimitMismatch { limit } => Err(LockError::LimitMismatch { limit }),
            Acquired::UpgradeDenied => Err(LockError::UpgradeDenied),
            Acquired::TooManyEntries => Err(LockError::TooManyEntries),
            Acquired::NotFound => Err(LockError::LeaseNotFound),
            Acquired::QueueFull => Err(LockError::QueueFull),
            Acquired::RequestIdReused => Err(LockError::RequestIdReused),
            Acquired::Ended | Acquired::Cancelled => Err(LockError::LeaseExpired),
        }
    }

    /// `Ok(None)`: the caller is gone.
    async fn wait_in_line(
        &mut self,
        reply: &mut oneshot::Sender<Result<Offer, LockError>>,
    ) -> Result<Option<Grant>, LockError> {
        let acquire = &self.acquire;
        let (lock, request, attempt) = (&acquire.lock, acquire.request, acquire.attempt);
        let mut registration = self.broker.waiters.register(lock, request, attempt);
        loop {
            match self.ask().await {
                Ok(grant) => return Ok(Some(grant)),
                Err(LockError::Held(_)) => {}
                // In line already: the next touch finds out whether that is still so.
                Err(LockError::StoreUnavailable) if self.acquire.rejoin => {}
                Err(error) => return Err(error),
            }
            match self.wait(&mut registration, reply).await {
                Wait::Granted(grant) => return Ok(Some(grant)),
                Wait::Failed(error) => return Err(error),
                Wait::Abandoned => return Ok(None),
                Wait::Rejoin => {
                    let left = self.deadline.saturating_duration_since(Instant::now());
                    self.acquire.wait_ms = u64::try_from(left.as_millis()).unwrap_or(0).max(1);
                    self.acquire.rejoin = true;
                }
            }
        }
    }

    async fn wait(
        &self,
        registration: &mut Registration,
        reply: &mut oneshot::Sender<Result<Offer, LockError>>,
    ) -> Wait {
        loop {
            let signal = tokio::select! {
                biased;
                signal = registration.signal() => signal,
                () = reply.closed() => return Wait::Abandoned,
                () = self.broker.draining.cancelled() => return Wait::Failed(LockError::Draining),
                () = tokio::time::sleep_until(self.deadline) => return self.time_out().await,
            };
            match signal {
                Signal::Rejoin => return Wait::Rejoin,
                Signal::HandOff {
                    fencing_token,
                    provisional: false,
                } => return Wait::Granted(self.granted_now(fencing_token)),
                Signal::HandOff { fencing_token, .. } => {
                    if let Some(wait) = self.claim(fencing_token).await {
                        return wait;
                    }
                }
            }
        }
    }

    /// Claims a provisional hand-off; nobody is told before the store has confirmed it.
    async fn claim(&self, fencing_token: FencingToken) -> Option<Wait> {
        let lease = LeaseRef {
            lock: self.acquire.lock.clone(),
            lease_id: self.acquire.lease_id,
            fencing_token,
        };
        match self.broker.store.renew(&lease, None).await {
            Ok(Renewed::Extended(grant)) => Some(Wait::Granted(grant)),
            // It lapsed and the place in line is back, passed over until this broker touches.
            Ok(Renewed::MaxHold | Renewed::Expired | Renewed::Released | Renewed::NotFound) => {
                Some(Wait::Rejoin)
            }
            Err(StoreError::Corrupt(text)) => Some(Wait::Failed(StoreError::Corrupt(text).into())),
            Err(StoreError::Unavailable(_) | StoreError::Recovering { .. }) => None,
        }
    }

    /// `WAIT_TIMEOUT` promises that the caller is out of the queue: only the store can say so.
    async fn time_out(&self) -> Wait {
        let acquire = &self.acquire;
        let store = &self.broker.store;
        let cancelled = store
            .cancel(&acquire.lock, acquire.request, acquire.attempt)
            .await;
        if let Err(error) = cancelled {
            return Wait::Failed(error.into());
        }
        let state = store.get(&acquire.lock).await.ok().flatten();
        Wait::Failed(LockError::WaitTimeout(state.map_or_else(
            Contention::default,
            |state| Contention {
                holders: state.holders.into_iter().take(HELD_SHOWN).collect(),
                queue_length: state.queue_length,
                closed_ms: state.closed_ms,
            },
        )))
    }

    fn granted_now(&self, fencing_token: FencingToken) -> Grant {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = since_epoch.unwrap_or_default().as_millis();
        Grant {
            fencing_token,
            ttl: self.acquire.terms.cut(self.acquire.ttl),
            acquired_ms: u64::try_from(now_ms).unwrap_or(u64::MAX),
            hold_count: 1,
        }
    }
}

impl Offer {
    /// Takes delivery: the caller knows its lease.
    pub(super) fn accept(mut self) -> Lease {
        self.undelivered.0 = None;
        self.lease
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some((undo, attempt)) = self.0.take() {
            undo.later(attempt);
        }
    }
}
