//! The leases of a stream: one command for each runs at a time, the others wait for their turn.

use std::{
    collections::{VecDeque, hash_map::Entry},
    time::Duration,
};

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep},
};

use super::{Done, Due, Ended, Phase, RETRY, Refusal, Stream, Told};
use crate::{
    broker::in_turn,
    lock::{
        Grant, HEARTBEAT_WHILE_WAITING_MS, LeaseId, LeaseRef, LockKey, Release, Ttl, Via, expiry_ms,
    },
    metrics::Slack,
    quotas::Place,
    store::Revocation,
    streams::Elsewhere,
    trace::Origin,
};

/// Ends that are nearer to each other are told once.
const TOLD_WITHIN: Duration = Duration::from_millis(500);
/// A lock that is taken away in the millisecond of its grant may be renewed until that is over.
const LEAST_HOLD: Duration = Duration::from_millis(2);
/// Commands of one lease that wait for their turn.
const TODO_MAX: usize = 1_000;

/// A lease of the stream.
pub(super) struct Owned {
    /// The count of attachments by which it is here.
    number: u32,
    pub(super) locks: Vec<LeaseRef>,
    /// One for each of them.
    pub(super) places: Vec<Place>,
    pub(super) ttl: Ttl,
    /// How long after a break the lease ends by itself; `None`: it runs out.
    pub(super) grace: Option<Duration>,
    pub(super) is_lapsing: bool,
    /// When the client was told that it will end.
    ends_at: Option<Instant>,
    pub(super) is_busy: bool,
    /// It waits for its turn to be renewed, which holds up nothing else.
    pub(super) is_due: bool,
    /// How much of its validity is left when heartbeats come.
    pub(super) slack: Slack,
    /// A heartbeat that no renewal was sent after.
    pub(super) unanswered: Option<i64>,
    pub(super) todo: VecDeque<Todo>,
    /// The span by which it came, if that is recorded.
    pub(super) origin: Option<Box<Origin>>,
}

/// What waits for the command under way.
#[derive(Debug, Clone)]
pub(super) enum Todo {
    /// Without a call it is the stream's own.
    Release {
        call_id: Option<i64>,
        lock: Option<LockKey>,
        what: Release,
    },
    Detach {
        call_id: i64,
    },
}

impl Owned {
    /// Whether the client does not know yet that the lease ends so soon. Now it will.
    pub(super) fn is_news(&mut self, ends_in_ms: u64) -> bool {
        let at = Instant::now() + Duration::from_millis(ends_in_ms);
        let is_news = self.ends_at.is_none_or(|told| at + TOLD_WITHIN < told);
        if is_news {
            self.ends_at = Some(at);
        }
        is_news
    }

    /// Whether it is to wait for its turn to be renewed from now on.
    pub(super) fn becomes_due(&mut self) -> bool {
        let becomes = self.unanswered.is_some() && !self.is_busy && !self.is_due;
        self.is_due |= becomes;
        becomes
    }

    /// Has these places, too, and none for what it does not hold.
    pub(super) fn settle(&mut self, places: Vec<Place>) {
        let mut all = std::mem::take(&mut self.places);
        all.extend(places);
        let at = |held: &LeaseRef| all.iter().position(|place| place.lock() == &held.lock);
        let wanted: Vec<_> = self.locks.iter().filter_map(at).collect();
        let all = all.into_iter().enumerate();
        let wanted = all.filter(|(index, _)| wanted.contains(index));
        self.places = wanted.map(|(_, place)| place).collect();
    }

    /// Its validity.
    pub(super) fn validity(&self) -> Duration {
        Duration::from_millis(self.ttl.as_millis())
    }

    /// How long the store keeps it after its last renewal.
    pub(super) fn expiry(&self) -> Duration {
        Duration::from_millis(expiry_ms(self.ttl.as_millis()))
    }
}

impl Stream {
    /// Takes a lease on, or what it has more than before. A lock that was released meanwhile is
    /// found out by the next renewal.
    pub(super) fn own(
        &mut self,
        lease_id: LeaseId,
        number: u32,
        locks: Vec<LeaseRef>,
        grants: &[Grant],
    ) {
        let ttl = grants.iter().map(|grant| grant.ttl).min();
        let ttl = ttl.unwrap_or(Ttl::from_stored(0));
        let grace = grants.iter().find_map(|grant| grant.disconnect_grace_ms);
        let metrics = &self.broker.metrics;
        let owned = match self.leases.entry(lease_id) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                let names = |held: &LeaseRef| locks.iter().all(|new| new.lock != held.lock);
                known.locks.retain(names);
                known.locks.extend(locks);
                known.ttl = ttl;
                known.number = known.number.max(number);
                known
            }
            Entry::Vacant(new) => new.insert(Box::new(Owned {
                number,
                slack: metrics.slack(locks.first().map(|held| &held.lock)),
                locks,
                places: Vec::new(),
                ttl,
                grace: None,
                is_lapsing: false,
                ends_at: None,
                is_busy: false,
                is_due: false,
                unanswered: None,
                todo: VecDeque::new(),
                origin: None,
            })),
        };
        owned.grace = owned.grace.or(grace.map(Duration::from_millis));
        if owned.grace.is_some() {
            let validity = owned.validity();
            self.graced = Some(self.graced.map_or(validity, |least| least.min(validity)));
        }
    }

    /// Has something done to a lease in its turn.
    pub(super) fn todo(&mut self, lease_id: LeaseId, todo: Todo) {
        let why = match self.leases.get_mut(&lease_id) {
            Some(owned) if owned.todo.len() < TODO_MAX => {
                owned.todo.push_back(todo);
                return self.advance(lease_id);
            }
            Some(_) => Refusal::TooManyCommands,
            None => Refusal::NotHere,
        };
        let call_id = match todo {
            Todo::Release { call_id, .. } => call_id,
            Todo::Detach { call_id } => Some(call_id),
        };
        if let Some(call_id) = call_id {
            self.tell(Told::Refused { call_id, why });
        }
    }

    /// Ends a lease on the stream's own account.
    pub(super) fn give_back(&mut self, lease_id: LeaseId, what: Release) {
        let todo = Todo::Release {
            call_id: None,
            lock: None,
            what,
        };
        self.todo(lease_id, todo);
    }

    /// Runs the next command for a lease, if none is under way.
    pub(super) fn advance(&mut self, lease_id: LeaseId) {
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if owned.is_busy {
            return;
        }
        match owned.todo.pop_front() {
            Some(Todo::Detach { call_id }) => {
                let (places, ends_in) = (std::mem::take(&mut owned.places), owned.expiry());
                self.broker.quotas.keep(lease_id, places, ends_in);
                self.tell(Told::Done { call_id });
                self.forget(lease_id);
            }
            Some(Todo::Release {
                call_id,
                lock,
                what,
            }) => {
                owned.is_busy = true;
                let named = |held: &&LeaseRef| lock.as_ref().is_none_or(|lock| *lock == held.lock);
                let locks: Vec<_> = owned.locks.iter().filter(named).cloned().collect();
                let (broker, via) = (self.broker.clone(), Via::Stream(self.id));
                let traced = owned.event("lease.release", lease_id);
                let released = async move {
                    let result = broker.release(&locks, what, via).await;
                    Done::Released {
                        call_id,
                        lease_id,
                        lock,
                        what,
                        result,
                    }
                };
                self.jobs.push(Box::pin(traced.run(released)));
            }
            None if self.phase == Phase::Open && owned.becomes_due() => {
                self.due_next(Due::Renew(lease_id));
            }
            None => {}
        }
    }

    /// Acknowledges the newest heartbeat that was read before the command is sent, not the one that
    /// asked for it: when there is more to renew than the store can take, that is much older.
    pub(super) fn renew(&mut self, lease_id: LeaseId, turn: OwnedSemaphorePermit) {
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        (owned.is_due, owned.is_busy) = (false, true);
        owned.unanswered = None;
        owned.slack.ask();
        let sequence = self.heartbeats.newest();
        let asked = owned.locks.clone();
        let (broker, stream) = (self.broker.clone(), self.id);
        self.jobs.push(Box::pin(async move {
            let result = in_turn(turn, broker.renew_own(&asked, stream)).await;
            Done::Renewed {
                lease_id,
                sequence,
                asked,
                result,
            }
        }));
    }

    /// A renewal that could not reach the store is sent again, as long as the client may trust the
    /// lease at all; then a newer heartbeat is needed.
    pub(super) fn renew_again(&mut self, lease_id: LeaseId, sequence: i64) {
        self.jobs.push(Box::pin(async move {
            sleep(RETRY).await;
            Done::Retry { lease_id, sequence }
        }));
    }

    /// The same for what the stream gives back by itself.
    pub(super) fn give_back_again(&mut self, lease_id: LeaseId, what: Release) {
        self.jobs.push(Box::pin(async move {
            sleep(RETRY).await;
            Done::GiveBack { lease_id, what }
        }));
    }

    /// How often the client is to send heartbeats.
    pub(super) fn interval_ms(&self) -> u64 {
        let leases = self.leases.values();
        let leases = leases.map(|owned| owned.ttl.heartbeat_interval_ms());
        let waits = (!self.waits.is_empty()).then_some(HEARTBEAT_WHILE_WAITING_MS);
        leases.chain(waits).min().unwrap_or(0)
    }

    /// Something was done to leases from elsewhere, unless they have left and come back since.
    pub(super) fn elsewhere(&mut self, news: Vec<Elsewhere>) {
        for what in news {
            let (lease_id, on) = match &what {
                Elsewhere::Moved(moved) => (moved.lease_id, moved.from),
                Elsewhere::Revoked(revocation) => (revocation.lease_id, revocation.on),
            };
            let owned = self.leases.get(&lease_id);
            if owned.is_some_and(|owned| owned.number <= on.number) {
                match what {
                    Elsewhere::Moved(_) => self.end(lease_id, Ended::Moved),
                    Elsewhere::Revoked(revocation) => self.revoked(revocation),
                }
            }
        }
    }

    /// An operator has a lease end. One that may not be renewed any more ends by a renewal that is
    /// tried as soon as the store refuses it.
    fn revoked(&mut self, revocation: Revocation) {
        let lease_id = revocation.lease_id;
        let sequence = self.heartbeats.newest();
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if owned.is_news(revocation.grace_ms) {
            self.tell(Told::ReleaseRequested {
                lease_id,
                grace_ms: revocation.grace_ms,
                reason: Some(revocation.reason),
            });
        }
        if revocation.grace_ms == 0 {
            self.jobs.push(Box::pin(async move {
                sleep(LEAST_HOLD).await;
                Done::Retry { lease_id, sequence }
            }));
        }
    }

    /// A lease is over, or elsewhere.
    pub(super) fn end(&mut self, lease_id: LeaseId, why: Ended) {
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        owned.trace_end(lease_id, &why);
        if let Some(why) = why.forbids() {
            self.broker.ends.forbid(lease_id, why);
            let (places, ends_in) = (std::mem::take(&mut owned.places), owned.expiry());
            self.broker.quotas.keep(lease_id, places, ends_in);
        } else if why.runs_out() {
            let locks = owned.locks.iter().map(|held| held.lock.clone());
            let (locks, ends_in) = (locks.collect(), owned.expiry());
            self.broker.quotas.held_on(lease_id, locks, ends_in);
        }
        self.tell(Told::Ended { lease_id, why });
        self.forget(lease_id);
    }

    /// Takes a lease off the stream; what still waits for its turn is refused.
    pub(super) fn forget(&mut self, lease_id: LeaseId) {
        if let Some(owned) = self.leases.remove(&lease_id) {
            for todo in owned.todo {
                self.todo(lease_id, todo);
            }
        }
    }
}
