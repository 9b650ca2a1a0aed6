//! A simulated client: executes its planned actions on unary calls or on lease streams, and records
//! what it sends and receives.

mod agenda;
mod calls;
mod leases;
mod stream;

use std::{collections::BTreeMap, sync::Arc};

use futures::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt as _},
};
use leasehold_server::{
    broker::ReleaseResult,
    lock::{
        CloseCommand, HeldLock, Lease, LeaseId, LeaseRef, LockKey, Owner, RevokeCommand,
        RevokeMode, Ttl,
    },
};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use self::{
    agenda::{Agenda, Job},
    calls::ClientCall,
    leases::{HeldLease, ReleasedLease},
    stream::OpenStream,
};
use super::{
    plan::{Action, ClientPlan, LOCKS},
    world::{CallFailure, World, lock_key},
};
use crate::history::{EventKind, Fault};

/// Time at which a client without jobs looks for one: later than any run.
const NO_JOB_US: u64 = 1_000_000_000_000;

/// A client.
pub struct Client {
    world: Arc<World>,
    plan: ClientPlan,
    /// Address of the broker that is used next.
    address: usize,
    agenda: Agenda,
    calls: BTreeMap<u64, ClientCall>,
    leases: BTreeMap<LeaseId, HeldLease>,
    /// Leases that the client has released as a whole.
    released: BTreeMap<LeaseId, ReleasedLease>,
    /// Unary calls under way.
    replies: FuturesUnordered<BoxFuture<'static, Reply>>,
    stream: Option<OpenStream>,
    /// Release calls on the stream, by call id.
    releases: BTreeMap<i64, UnansweredRelease>,
}

/// A release on a stream.
struct UnansweredRelease {
    lease_id: LeaseId,
    release: leases::PartRelease,
}

/// Reply to a unary call.
enum Reply {
    Closed {
        close: u64,
    },
    Opened {
        open: u64,
    },
    Acquired {
        attempt: u64,
        result: Result<Lease, CallFailure>,
    },
    Renewed {
        lease_id: LeaseId,
        sent_at_us: u64,
        presented: Vec<LockKey>,
        result: Result<Vec<HeldLock>, CallFailure>,
    },
    Released {
        lease_id: LeaseId,
        release: leases::PartRelease,
        result: Result<ReleaseResult, CallFailure>,
    },
    /// Nothing that the client waits for.
    Ignored,
}

impl Client {
    #[must_use]
    pub fn new(world: Arc<World>, plan: ClientPlan, address: usize) -> Self {
        let mut agenda = Agenda::default();
        for (index, action) in plan.actions.iter().enumerate() {
            agenda.add(action.at_ms * 1_000, Job::Action(index));
        }
        Self {
            world,
            plan,
            address,
            agenda,
            calls: BTreeMap::new(),
            leases: BTreeMap::new(),
            released: BTreeMap::new(),
            replies: FuturesUnordered::new(),
            stream: None,
            releases: BTreeMap::new(),
        }
    }

    /// Runs until `stop`, and ends without releasing anything.
    pub async fn run(mut self, stop: CancellationToken) {
        if self.plan.is_streaming {
            self.agenda.add(0, Job::Connect);
        }
        loop {
            let next = self.agenda.next_at().unwrap_or(NO_JOB_US);
            let next = self.world.instant(next);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = stream::next_event(&mut self.stream) => match event {
                    Some(event) => self.on_stream_event(event),
                    None => self.on_stream_closed(),
                },
                Some(reply) = self.replies.next() => self.on_reply(reply),
                () = sleep_until(next) => {
                    while let Some(job) = self.agenda.take_due(self.world.now_us()) {
                        self.run_job(job);
                    }
                }
            }
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.record(EventKind::ClientStopped);
        self.close_stream();
        self.replies.clear();
        self.calls.clear();
        self.leases.clear();
        self.releases.clear();
    }

    fn record(&self, kind: EventKind) {
        self.world.record(&self.plan.name, kind);
    }

    /// Adds a job after a time by the clock of the client.
    fn schedule(&mut self, after_ms: u64, job: Job) {
        let after_us = after_ms * self.plan.second_ms;
        self.agenda.add(self.world.now_us() + after_us, job);
    }

    fn run_job(&mut self, job: Job) {
        match job {
            Job::Action(index) => self.act(self.plan.actions[index].what),
            Job::Connect => self.connect(),
            Job::Heartbeat(stream) => self.send_heartbeat(stream),
            Job::Renew(lease_id) => self.renew(lease_id),
            Job::Attach(lease_id) => self.attach(lease_id),
            Job::EndHold(lease_id) => self.end_hold(lease_id),
            Job::Hedge(call) | Job::Retry(call) => self.send_attempt(call),
            Job::Cancel(call) => self.cancel(call),
            Job::RetryRelease(lease_id, release) => self.send_release(lease_id, release),
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Acquire(acquire) => self.acquire(&acquire),
            Action::Add {
                lease,
                target,
                wait_ms,
            } => self.add(lease, target, wait_ms),
            Action::Release { lease, part } => self.release_part(lease, part),
            Action::Cancel { call } => {
                let pending = self.calls.iter().filter(|(_, call)| call.is_pending());
                let pending: Vec<_> = pending.map(|(number, _)| *number).collect();
                if let Some(number) = pending.get(call % pending.len().max(1)) {
                    self.cancel(*number);
                }
            }
            Action::Repeat { call, is_cancelled } => self.repeat(call, is_cancelled),
            Action::Move => self.move_elsewhere(),
            Action::Silence { for_ms } => self.silence(for_ms),
            Action::Crash => {
                self.stop();
                if self.plan.is_streaming {
                    self.schedule(1_000, Job::Connect);
                }
            }
            Action::SetLimit { limit } => self.set_limit(limit),
            Action::Revoke { lease, unsafe_now } => self.revoke(lease, unsafe_now),
            Action::Close { lock, for_ms } => self.close_lock(&lock_key(lock), for_ms),
            Action::Open { lock } => self.open_lock(lock_key(lock)),
        }
    }

    fn move_elsewhere(&mut self) {
        self.address += 1;
        if self.plan.is_streaming {
            self.close_stream();
            self.connect();
        }
    }

    fn silence(&mut self, for_ms: u64) {
        let Some(stream) = &self.stream else { return };
        stream.silence_until(self.world.instant(self.world.now_us() + for_ms * 1_000));
        let client = self.plan.name.clone();
        let (fault, world) = (Fault::ClientSilent { client }, Arc::clone(&self.world));
        world.begin(&fault);
        tokio::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_millis(for_ms)).await;
            world.end(&fault);
        });
    }

    fn set_limit(&mut self, limit: Option<u32>) {
        let lock = lock_key(LOCKS - 1);
        let name = lock.name().to_owned();
        self.record(EventKind::LimitInvoked { lock: name, limit });
        let set = Arc::clone(&self.world).unary(self.address, move |broker| async move {
            let result = broker.set_limit(&lock, limit).await;
            result.map_err(|error| error.for_lock(&lock))
        });
        self.ignore(set);
    }

    fn revoke(&mut self, index: usize, unsafe_now: bool) {
        let Some((lock, lease_id)) = self.world.granted_lease(index) else {
            return;
        };
        let lease = lease_id.to_string();
        self.record(EventKind::RevokeInvoked { lease, unsafe_now });
        let command = RevokeCommand {
            lock,
            lease_id,
            reason: "simulated".to_owned(),
            grace_ms: 0,
            lock_delay_ms: None,
            mode: match unsafe_now {
                true => RevokeMode::Immediate,
                false => RevokeMode::Graceful,
            },
        };
        let revoke = Arc::clone(&self.world).unary(self.address, move |broker| async move {
            let result = broker.revoke(&command).await;
            result.map_err(|error| error.for_lock(&command.lock))
        });
        self.ignore(revoke);
    }

    fn close_lock(&mut self, lock: &LockKey, for_ms: u64) {
        let close = self.world.next_number();
        let command = CloseCommand {
            lock: lock.clone(),
            until_ms: self.world.store.now_ms() + for_ms,
            operator: Owner::default(),
        };
        let lock = lock.name().to_owned();
        self.record(EventKind::CloseInvoked {
            close,
            lock,
            for_ms,
        });
        let closed = Arc::clone(&self.world).unary(self.address, move |broker| async move {
            let result = broker.close(&command).await;
            result.map_err(|error| error.for_lock(&command.lock))
        });
        self.replies.push(Box::pin(async move {
            match closed.await {
                Ok(Some(_)) => Reply::Closed { close },
                Ok(None) | Err(_) => Reply::Ignored,
            }
        }));
    }

    fn open_lock(&mut self, lock: LockKey) {
        let (open, name) = (self.world.next_number(), lock.name().to_owned());
        self.record(EventKind::OpenInvoked { open, lock: name });
        let opened = Arc::clone(&self.world).unary(self.address, move |broker| async move {
            let result = broker.open(&lock).await;
            result.map_err(|error| error.for_lock(&lock))
        });
        self.replies.push(Box::pin(async move {
            match opened.await {
                Ok(_) => Reply::Opened { open },
                Err(_) => Reply::Ignored,
            }
        }));
    }

    fn ignore<T>(&self, call: impl Future<Output = Result<T, CallFailure>> + Send + 'static) {
        self.replies.push(Box::pin(async move {
            // An operator does not repeat its operation.
            drop(call.await);
            Reply::Ignored
        }));
    }

    fn on_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Acquired { attempt, result } => match result {
                Ok(lease) => self.on_granted(attempt, lease, None),
                Err(failure) => self.on_rejected(attempt, &failure),
            },
            Reply::Renewed {
                lease_id,
                sent_at_us,
                presented,
                result,
            } => self.on_renewed(lease_id, sent_at_us, &presented, result),
            Reply::Released {
                lease_id,
                release,
                result,
            } => self.on_released(lease_id, release, result),
            Reply::Closed { close } => self.record(EventKind::CloseAnswered { close }),
            Reply::Opened { open } => self.record(EventKind::OpenAnswered { open }),
            Reply::Ignored => {}
        }
    }

    fn lease_ids(&self) -> Vec<LeaseId> {
        self.leases.keys().copied().collect()
    }

    /// Returns the end of a validity by the clock of the client.
    fn validity_end(&self, sent_at_us: u64, ttl: Ttl) -> u64 {
        sent_at_us + ttl.as_millis() * self.plan.second_ms
    }
}

/// Returns the references of all locks of a lease, for a reply that the client does not keep.
fn references(lease: &Lease) -> Vec<LeaseRef> {
    let locks = lease.locks.iter().map(|held| LeaseRef {
        lock: held.lock.clone(),
        lease_id: lease.lease_id,
        fencing_token: held.grant.fencing_token,
    });
    locks.collect()
}
