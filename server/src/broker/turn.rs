//! One lock of a call, from its first command to its grant.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::{Broker, OnStream, call::Reply, standing::Standing, traced::InLine};
use crate::{
    lock::{
        Acquire, Contention, FencingToken, Grant, HELD_SHOWN, LeaseRef, LockError, Mode, Ttl,
        Under, Via,
    },
    metrics::Timed,
    store::{Acquired, Cancelled, Renewed, StoreError},
    waiters::{Registration, Signal},
};

/// A call's turn at one of its locks.
pub(super) struct Turn<'a> {
    pub(super) broker: &'a Broker,
    pub(super) acquire: Acquire,
    pub(super) deadline: Instant,
    pub(super) on: Option<&'a OnStream>,
    pub(super) timed: &'a Timed,
    /// The newest heartbeat that had come before the last command was sent.
    pub(super) as_of: i64,
    /// Where a call on a stream stands in line.
    pub(super) standing: Option<Standing>,
    /// Its wait, for whoever follows the call.
    pub(super) in_line: InLine,
    /// The store may hold this attempt, so that it is to be taken back if the call fails.
    pub(super) is_known: bool,
    /// The newest token of the lock when the call joined its line.
    pub(super) joined_after: u64,
    pub(super) begun: Instant,
}

/// How the wait ended.
enum Wait {
    Granted(Grant),
    Failed(LockError),
    Abandoned,
    /// The place in line must be asked for again.
    Rejoin,
}

impl Turn<'_> {
    /// The grant, and the newest heartbeat that had come before it was asked for. `Ok(None)`: the
    /// caller is gone.
    pub(super) async fn take(
        &mut self,
        reply: &mut Reply,
    ) -> Result<Option<(Grant, i64)>, LockError> {
        let grant = match self.acquire.wait_ms {
            0 => self.ask().await.map(Some),
            _ => self.wait_in_line(reply).await,
        };
        self.in_line.end(&grant);
        if self.acquire.under != Under::NewLease && matches!(grant, Ok(Some(_))) {
            let Acquire { lock, lease_id, .. } = &self.acquire;
            self.broker.waiters.may_enter(lock, *lease_id);
        }
        Ok(grant?.map(|grant| (grant, self.as_of)))
    }

    /// Asks the store once. `Err(Held)` stands for "not now".
    async fn ask(&mut self) -> Result<Grant, LockError> {
        self.hear();
        let unanswered = self.broker.quotas.ask();
        let asked = self.broker.store.acquire(&self.acquire).await;
        drop(unanswered);
        self.is_known |= match &asked {
            Ok(acquired) => matches!(acquired, Acquired::Granted(_) | Acquired::Queued { .. }),
            Err(error) => error.may_be_done(),
        };
        match asked? {
            Acquired::Granted(grant) => Ok(grant),
            Acquired::Queued {
                next_event_ms,
                place,
                position,
                last_fencing_token,
                era,
            } => {
                self.joined_after = last_fencing_token;
                self.broker.waiters.in_era(&self.acquire.lock, era);
                self.broker.expect(&self.acquire.lock, next_event_ms);
                if self.in_line.is_unseen() {
                    self.in_line = InLine::join(self.broker, &self.acquire, position);
                }
                if let Some(standing) = &mut self.standing {
                    standing.joined(place, position);
                    self.broker.look_soon(&self.acquire.lock);
                }
                Err(LockError::Held(Contention::default()))
            }
            Acquired::Held(contention) => Err(LockError::Held(contention)),
            Acquired::LimitMismatch { limit } => Err(LockError::LimitMismatch { limit }),
            Acquired::StaleAttach => Err(LockError::StaleAttach),
            Acquired::UpgradeDenied => Err(LockError::UpgradeDenied),
            Acquired::TooManyEntries => Err(LockError::TooManyEntries),
            Acquired::TooManyAttempts => Err(LockError::TooManyAttempts),
            Acquired::NotFound => Err(LockError::LeaseNotFound),
            Acquired::QueueFull => Err(LockError::QueueFull),
            Acquired::RequestIdReused => Err(LockError::RequestIdReused),
            Acquired::Ended | Acquired::Cancelled => Err(LockError::LeaseExpired),
        }
    }

    /// `Ok(None)`: the caller is gone.
    async fn wait_in_line(&mut self, reply: &mut Reply) -> Result<Option<Grant>, LockError> {
        let acquire = &self.acquire;
        let mut registration = self.broker.waiters.register(acquire);
        self.standing = self
            .on
            .and_then(|on| Some(Standing::new(on, acquire, registration.looks()?)));
        let mut waiting = None;
        loop {
            match self.ask().await {
                Ok(grant) => return Ok(Some(grant)),
                Err(LockError::Held(_)) => {
                    let Acquire { lock, mode, .. } = &self.acquire;
                    waiting.get_or_insert_with(|| self.timed.wait(lock, *mode));
                }
                // In line already: the next touch finds out whether that is still so.
                Err(LockError::StoreUnavailable | LockError::StoreFull) if self.acquire.rejoin => {}
                Err(error) => return Err(error),
            }
            match self.wait(&mut registration, reply).await {
                Wait::Granted(grant) => return Ok(Some(grant)),
                Wait::Failed(error) => return Err(error),
                Wait::Abandoned => return Ok(None),
                Wait::Rejoin => {
                    self.acquire.wait_ms = left_ms(self.deadline);
                    self.acquire.rejoin = true;
                }
            }
        }
    }

    fn hear(&mut self) {
        self.as_of = self.on.map_or(0, |on| on.heartbeats.newest());
    }

    async fn wait(&mut self, registration: &mut Registration, reply: &mut Reply) -> Wait {
        loop {
            let signal = tokio::select! {
                biased;
                signal = registration.signal() => signal,
                () = look(&mut self.standing) => continue,
                () = self.in_line.look() => continue,
                // Before the end of the stream, which may be the reason: no place is kept then.
                () = given_up(self.on) => return self.leave(LockError::Cancelled).await,
                () = reply.closed() => return Wait::Abandoned,
                () = drained(self.on, self.broker) => return Wait::Failed(LockError::Draining),
                () = tokio::time::sleep_until(self.deadline) => return self.time_out().await,
            };
            match signal {
                Signal::Rejoin => return Wait::Rejoin,
                // To an earlier attempt, which was cancelled before this one joined.
                Signal::HandOff { fencing_token, .. }
                    if fencing_token.get() <= self.joined_after => {}
                Signal::HandOff {
                    fencing_token,
                    provisional: false,
                    sent,
                    told,
                } if self.knows_its_grant(sent) => {
                    self.timed.handed_over(told);
                    return Wait::Granted(self.granted_now(fencing_token));
                }
                Signal::HandOff {
                    fencing_token,
                    told,
                    ..
                } => {
                    if let Some(wait) = self.claim(fencing_token).await {
                        if let Wait::Granted(_) = wait {
                            self.timed.handed_over(told);
                        }
                        return wait;
                    }
                }
            }
        }
    }

    /// Claims a provisional hand-off; nobody is told before the store has confirmed it.
    async fn claim(&mut self, fencing_token: FencingToken) -> Option<Wait> {
        let lease = LeaseRef {
            lock: self.acquire.lock.clone(),
            lease_id: self.acquire.lease_id,
            fencing_token,
        };
        let via = self
            .on
            .map_or(Via::Anywhere, |on| Via::Stream(on.attachment.stream));
        self.hear();
        match self.broker.store.renew(&lease, None, via).await {
            Ok(Renewed::Extended(grant)) => Some(Wait::Granted(grant)),
            // It lapsed and the place in line is back, passed over until this broker touches.
            Ok(Renewed::MaxHold | Renewed::Expired | Renewed::Released | Renewed::NotFound) => {
                Some(Wait::Rejoin)
            }
            Ok(Renewed::Revoked { reason }) => {
                Some(Wait::Failed(LockError::LeaseRevoked { reason }))
            }
            // A newer attempt of the call waits on another stream.
            Ok(Renewed::Elsewhere) => Some(Wait::Failed(LockError::StaleAttach)),
            Err(
                error @ (StoreError::Corrupt(_)
                | StoreError::Garbled(_)
                | StoreError::Unsupported(_)),
            ) => Some(Wait::Failed(error.into())),
            Err(
                StoreError::Unavailable(_)
                | StoreError::NotNow(_)
                | StoreError::Full(_)
                | StoreError::Recovering { .. },
            ) => None,
        }
    }

    /// Takes this attempt back.
    async fn cancel(&mut self) -> Result<Cancelled, StoreError> {
        let acquire = &self.acquire;
        let store = &self.broker.store;
        let cancelled = store
            .cancel(&acquire.lock, acquire.request, acquire.attempt)
            .await?;
        self.is_known = false;
        Ok(cancelled)
    }

    /// Leaves the line for certain.
    async fn leave(&mut self, why: LockError) -> Wait {
        Wait::Failed(self.cancel().await.map_or_else(LockError::from, |_| why))
    }

    /// `WAIT_TIMEOUT` promises that the caller is out of the queue: only the store can say so.
    async fn time_out(&mut self) -> Wait {
        match self.cancel().await {
            Ok(Cancelled::Kept) => return Wait::Failed(LockError::StillQueued),
            Ok(Cancelled::Dequeued | Cancelled::Freed | Cancelled::Unknown) => {}
            Err(error) => return Wait::Failed(error.into()),
        }
        let store = &self.broker.store;
        let state = store.get(&self.acquire.lock).await.ok().flatten();
        Wait::Failed(LockError::WaitTimeout(state.map_or_else(
            Contention::default,
            |state| Contention {
                holders: state.holders.into_iter().take(HELD_SHOWN).collect(),
                queue_length: state.queue_length,
                closed_ms: state.closed_ms,
            },
        )))
    }

    /// Whether a hand-off needs no command of the call's own, of which it would be known more. The limit
    /// in use is the store's to say. On a stream validity counts from what the client has sent before the
    /// command that granted; if most of it is over then, a newer command is better.
    fn knows_its_grant(&mut self, sent: Option<Instant>) -> bool {
        if matches!(self.acquire.mode, Mode::Semaphore { limit: 0, .. }) {
            return false;
        }
        let Some(on) = self.on else {
            return true;
        };
        let beat = sent.and_then(|sent| Some((sent, on.heartbeats.before(sent)?)));
        let Some((sent, beat)) = beat else {
            return false;
        };
        let from = beat.read_at.unwrap_or(self.begun).max(self.begun);
        let half = Duration::from_millis(self.granted_ttl().as_millis() / 2);
        self.as_of = beat.sequence;
        sent.saturating_duration_since(from) <= half
    }

    fn granted_ttl(&self) -> Ttl {
        self.acquire.terms.cut(self.acquire.ttl)
    }

    fn granted_now(&self, fencing_token: FencingToken) -> Grant {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = since_epoch.unwrap_or_default().as_millis();
        Grant {
            fencing_token,
            mode: self.acquire.mode,
            ttl: self.granted_ttl(),
            acquired_ms: u64::try_from(now_ms).unwrap_or(u64::MAX),
            hold_count: 1,
            queue_length: 0,
            disconnect_grace_ms: self.acquire.terms.disconnect_grace_ms,
        }
    }
}

async fn look(standing: &mut Option<Standing>) {
    match standing {
        Some(standing) => standing.look().await,
        None => std::future::pending().await,
    }
}

async fn given_up(on: Option<&OnStream>) {
    match on {
        Some(on) => on.give_up.cancelled().await,
        None => std::future::pending().await,
    }
}

/// The call must be repeated at another broker. One on a stream goes on until its client has moved,
/// and takes it along.
async fn drained(on: Option<&OnStream>, broker: &Broker) {
    match on {
        Some(_) => std::future::pending().await,
        None => broker.draining.cancelled().await,
    }
}

/// What is left to wait; at least 1, since 0 would not wait at all.
pub(super) fn left_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    u64::try_from(left.as_micros().div_ceil(1_000))
        .unwrap_or(0)
        .max(1)
}
