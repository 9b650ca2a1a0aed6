//! One Acquire or AcquireAll from its first command to its answer. Runs in a task of its own, or in
//! that of its stream: the caller's future may be dropped at any moment, the grant logic may not.

use std::time::Duration;

use futures::future::join_all;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Broker, OnStream,
    stream::QUEUE_GRACE,
    traced::{self, InLine},
    turn::{Turn, left_ms},
    undo::{Attempt, GRACE, Undo},
};
use crate::lock::{
    Acquire, AcquireCall, AttemptId, Failed, HeldLock, Lease, LeaseId, LeaseRef, LeaseToken,
    LockError, LockKey, Target, Under, Via,
};
use crate::{
    metrics::Timed,
    quotas::Place,
    trace::{Origin, Traced},
};

/// What a call ends with.
pub(super) type Answered = Result<Offer, Failed>;
/// Where the answer goes.
pub(super) type Reply = oneshot::Sender<Answered>;
/// Where it comes from.
pub(super) type Answer = oneshot::Receiver<Answered>;

/// A call under way.
pub(super) struct Call {
    broker: Broker,
    call: AcquireCall,
    lease: (LeaseId, LeaseToken),
    attempt: AttemptId,
    deadline: Instant,
    on: Option<OnStream>,
    timed: Timed,
}

/// A granted lease on its way to the caller. Dropped on the way, what the call took is given back.
#[derive(Debug)]
pub(super) struct Offer {
    lease: Lease,
    /// The newest heartbeat that had come before the command was sent by which the lease is held.
    as_of: i64,
    undelivered: Undelivered,
    /// Those of its targets.
    places: Vec<Place>,
    /// The span of a call on a stream.
    origin: Option<Box<Origin>>,
}

/// Takes attempts back when dropped.
#[derive(Debug)]
struct Undelivered(Undo, Vec<Attempt>);

impl Call {
    /// `lease`: the one that the call makes or adds to, and what proves it.
    pub(super) fn new(
        broker: Broker,
        call: AcquireCall,
        lease: (LeaseId, LeaseToken),
        (on, timed): (Option<OnStream>, Timed),
    ) -> Self {
        Self {
            broker,
            lease,
            attempt: AttemptId::random(),
            deadline: Instant::now() + Duration::from_millis(call.wait_ms),
            call,
            on,
            timed,
        }
    }

    /// Answers exactly once, unless the caller is gone. The call has these places until then, and its
    /// lease afterwards.
    pub(super) async fn run(self, places: Vec<Place>, mut reply: Reply) {
        let mut sent = Vec::new();
        let result = self.take_all(&mut sent, &mut reply).await;
        let undo = self.broker.undo.clone();
        let traced = Traced::current();
        match result {
            Ok(Some((lease, as_of))) => {
                self.timed.granted();
                self.tell_log(&lease);
                let on_stream = self.on.as_ref();
                // An offer that cannot be sent is dropped, and undone by that.
                let undelivered = Undelivered(undo, sent);
                let answer = Ok(Offer {
                    lease,
                    as_of,
                    undelivered,
                    places,
                    origin: on_stream.and_then(|_| traced.origin()),
                });
                traced::answered(&traced, &answer);
                let _ = reply.send(answer);
            }
            Ok(None) => {
                self.timed.abandoned();
                sent.into_iter().for_each(|attempt| undo.later(attempt));
            }
            Err(failed) => {
                self.timed.failed(&failed.error);
                if failed.error == LockError::StoreUnavailable {
                    sent.into_iter().for_each(|attempt| undo.later(attempt));
                } else if failed.error != LockError::Draining {
                    // A drain never cancels: the same call at another broker goes on from here.
                    self.roll_back(sent).await;
                }
                let answer = Err(failed);
                traced::answered(&traced, &answer);
                let _ = reply.send(answer);
            }
        }
    }

    fn tell_log(&self, lease: &Lease) {
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

    /// Takes the locks one after the other in the order of their names, the same for all callers, so
    /// that no two callers wait for each other. `Ok(None)`: the caller is gone.
    async fn take_all(
        &self,
        sent: &mut Vec<Attempt>,
        reply: &mut Reply,
    ) -> Result<Option<(Lease, i64)>, Failed> {
        if self.call.wait_ms > 0 {
            // Nobody should wait long to hear that the lease was over before.
            self.broker.renew(self.had(), None, self.via()).await?;
        }
        let mut targets: Vec<_> = self.call.targets.iter().collect();
        targets.sort_by(|one, other| one.lock.cmp(&other.lock));
        let (mut taken, mut as_of) = (Vec::new(), 0);
        for target in targets {
            let acquire = self.acquire(target);
            let lock = acquire.lock.clone();
            sent.push(Attempt::of(&acquire, self.grace()));
            let mut turn = Turn {
                broker: &self.broker,
                acquire,
                deadline: self.deadline,
                on: self.on.as_ref(),
                timed: &self.timed,
                as_of: 0,
                standing: None,
                in_line: InLine::default(),
                is_known: false,
                joined_after: 0,
                begun: Instant::now(),
            };
            let granted = tokio::select! {
                biased;
                granted = turn.take(reply) => granted,
                failed = self.keep(&taken) => return Err(failed),
            };
            match granted {
                Ok(Some((grant, asked))) => {
                    as_of = asked;
                    taken.push(HeldLock { lock, grant });
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    if !turn.is_known {
                        sent.pop();
                    }
                    return Err(Failed { lock, error });
                }
            }
        }
        let lease = self.confirm(taken).await?;
        Ok(Some((lease, as_of)))
    }

    /// Renews what the call has while it waits for the rest, as long as its client sends heartbeats.
    /// Ends when something was lost.
    async fn keep(&self, taken: &[HeldLock]) -> Failed {
        let Some(on) = self.on.as_ref().filter(|_| !taken.is_empty()) else {
            return std::future::pending().await;
        };
        let own: Vec<_> = taken.iter().map(|held| self.reference(held)).collect();
        let interval = Duration::from_millis(self.call.ttl.heartbeat_interval_ms());
        let mut heard = on.heartbeats.newest();
        loop {
            tokio::time::sleep(interval).await;
            let newest = on.heartbeats.newest();
            if newest == heard {
                continue;
            }
            match self.broker.renew(&own, None, self.via()).await {
                Err(failed) if !failed.error.is_open() => return failed,
                Ok(_) => heard = newest,
                Err(_) => {}
            }
        }
    }

    /// Makes the lease, once every lock that it has besides the one granted last was renewed after
    /// that grant.
    async fn confirm(&self, mut taken: Vec<HeldLock>) -> Result<Lease, Failed> {
        let newest = taken.pop();
        let is_other = |held: &&LeaseRef| newest.iter().all(|newest| newest.lock != held.lock);
        let own: Vec<_> = taken.iter().map(|held| self.reference(held)).collect();
        let others = self.had().iter().filter(is_other).chain(&own).cloned();
        let others: Vec<_> = others.collect();
        let mut locks = self.broker.renew(&others, None, self.via()).await?;
        // What this call has taken can have been released only after an earlier attempt of it was
        // answered.
        let is_gone = |own: &&LeaseRef| locks.iter().all(|held| held.lock != own.lock);
        if let Some(own) = own.iter().find(is_gone) {
            let (lock, error) = (own.lock.clone(), LockError::LeaseExpired);
            return Err(Failed { lock, error });
        }
        locks.extend(newest);
        let had = self.had().iter().map(|held| &held.lock);
        let order = had.chain(self.call.targets.iter().map(|target| &target.lock));
        let order: Vec<_> = order.collect();
        locks.sort_by_key(|held| order.iter().position(|lock| **lock == held.lock));
        Ok(Lease {
            lease_id: self.lease.0,
            lease_token: self.lease.1.clone(),
            locks,
        })
    }

    fn via(&self) -> Via {
        let on = self.on.as_ref();
        on.map_or(Via::Unary, |on| Via::Stream(on.attachment.stream))
    }

    /// How long the caller has to come again before what it got is taken back.
    fn grace(&self) -> Duration {
        match self.on {
            Some(_) => QUEUE_GRACE,
            None => GRACE,
        }
    }

    /// The locks that the lease had before this call.
    fn had(&self) -> &[LeaseRef] {
        let under = self.call.under.as_ref();
        under.map_or(&[], |lease| &lease.locks)
    }

    fn reference(&self, held: &HeldLock) -> LeaseRef {
        LeaseRef {
            lock: held.lock.clone(),
            lease_id: self.lease.0,
            fencing_token: held.grant.fencing_token,
        }
    }

    fn acquire(&self, target: &Target) -> Acquire {
        let call = &self.call;
        let held = self.had().iter().find(|held| held.lock == target.lock);
        Acquire {
            lock: target.lock.clone(),
            mode: target.mode,
            lease_id: self.lease.0,
            under: match (held, &call.under) {
                (Some(held), _) => Under::Grant(held.fencing_token),
                (None, Some(_)) => Under::Lease,
                (None, None) => Under::NewLease,
            },
            stream: self.on.as_ref().map(|on| on.attachment),
            request: call.request_id.hash(),
            arguments: call.arguments,
            attempt: self.attempt,
            ttl: call.ttl,
            terms: call.terms,
            wait_ms: match call.wait_ms {
                0 => 0,
                _ => left_ms(self.deadline),
            },
            owner: call.owner.clone(),
            rejoin: false,
        }
    }

    /// Gives back what was taken, before the caller hears that it got nothing.
    async fn roll_back(&self, sent: Vec<Attempt>) {
        let store = &self.broker.store;
        let undone = sent.into_iter().map(|attempt| async move {
            if attempt.cancel(&**store).await.is_err() {
                self.broker.undo.later(attempt);
            }
        });
        join_all(undone).await;
    }
}

impl Offer {
    pub(super) fn as_of(&self) -> i64 {
        self.as_of
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn origin(&mut self) -> Option<Box<Origin>> {
        self.origin.take()
    }

    pub(super) fn locks(&self) -> impl Iterator<Item = &LockKey> {
        self.lease.locks.iter().map(|held| &held.lock)
    }

    /// Gives back now what nobody will take delivery of.
    pub(super) fn take_back(mut self) {
        for attempt in &mut self.undelivered.1 {
            attempt.grace = Duration::ZERO;
        }
    }

    /// Takes delivery: the caller knows its lease.
    pub(super) fn accept(mut self) -> (Lease, Vec<Place>) {
        self.undelivered.1.clear();
        (self.lease, self.places)
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        for attempt in self.1.drain(..) {
            self.0.later(attempt);
        }
    }
}
