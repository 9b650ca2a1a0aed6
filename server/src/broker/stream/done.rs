//! What becomes of a stream's jobs.

use tokio::sync::OwnedSemaphorePermit;

use super::{Ended, Extended, Phase, Refusal, Silence, Stream, Told};
use crate::{
    broker::{GivenBack, call::Answered},
    lock::{Failed, HeldLock, LeaseId, LeaseRef, LockError, LockKey, Release, ShownLease},
    quotas::Place,
    trace::Origin,
};

/// A job's end.
pub(super) enum Done {
    Acquired {
        call_id: i64,
        number: u32,
        result: Answered,
    },
    Attached {
        call_id: i64,
        number: u32,
        lease: ShownLease,
        result: Result<Vec<HeldLock>, Failed>,
        origin: Option<Box<Origin>>,
    },
    /// Something that is due may go to the store.
    Turns(Option<OwnedSemaphorePermit>),
    Renewed {
        lease_id: LeaseId,
        sequence: i64,
        asked: Vec<LeaseRef>,
        result: Result<Vec<HeldLock>, Failed>,
    },
    /// Time to renew again.
    Retry { lease_id: LeaseId, sequence: i64 },
    Released {
        call_id: Option<i64>,
        lease_id: LeaseId,
        lock: Option<LockKey>,
        what: Release,
        result: Result<GivenBack, Failed>,
    },
    /// Time to give back again.
    GiveBack { lease_id: LeaseId, what: Release },
    /// A disconnect_grace is over.
    Lapsed { lease_id: LeaseId },
}

impl Stream {
    pub(super) fn done(&mut self, done: Done) {
        match done {
            Done::Acquired {
                call_id,
                number,
                result,
            } => self.acquired(call_id, number, result),
            Done::Attached {
                call_id,
                number,
                lease,
                result,
                origin,
            } => {
                self.waits.remove(&call_id);
                let lease_id = lease.lease_id;
                match result {
                    Ok(kept) => {
                        self.attached(call_id, number, lease, &kept);
                        self.came_of(lease_id, origin);
                    }
                    Err(failed) => self.refuse(call_id, failed),
                }
            }
            Done::Turns(turns) => {
                self.is_in_turn = false;
                self.take_turns(turns);
            }
            Done::Renewed {
                lease_id,
                sequence,
                asked,
                result,
            } => self.renewed(lease_id, sequence, &asked, result),
            Done::Retry { lease_id, sequence } => {
                if let Some(owned) = self.leases.get_mut(&lease_id) {
                    owned.unanswered.get_or_insert(sequence);
                    self.advance(lease_id);
                }
            }
            Done::Released {
                call_id,
                lease_id,
                lock,
                what,
                result,
            } => match call_id {
                Some(call_id) => self.released(call_id, lease_id, lock, result),
                None => self.given_back(lease_id, what, result),
            },
            Done::GiveBack { lease_id, what } => self.give_back(lease_id, what),
            Done::Lapsed { lease_id } => self.lapsed(lease_id),
        }
    }

    fn acquired(&mut self, call_id: i64, number: u32, result: Answered) {
        let wait = self.waits.remove(&call_id);
        let is_denied = wait.is_some_and(|wait| wait.is_denied);
        match result {
            Ok(offer) if self.silence == Silence::Certain => {
                offer.take_back();
                let why = Refusal::Cancelled;
                self.tell(Told::Refused { call_id, why });
            }
            Ok(offer) if is_denied || self.is_forbidden(offer.locks()) => {
                offer.take_back();
                let why = Refusal::Denied;
                self.tell(Told::Refused { call_id, why });
            }
            Ok(mut offer) => {
                let (as_of, origin) = (offer.as_of(), offer.origin());
                let (lease, mut places) = offer.accept();
                self.broker.count_held(&mut places, &lease.locks);
                let refs = lease.locks.iter().map(|held| LeaseRef {
                    lock: held.lock.clone(),
                    lease_id: lease.lease_id,
                    fencing_token: held.grant.fencing_token,
                });
                let grants: Vec<_> = lease.locks.iter().map(|held| held.grant).collect();
                self.own(lease.lease_id, number, refs.collect(), &grants);
                self.settle(lease.lease_id, places);
                self.came_of(lease.lease_id, origin);
                if self.phase == Phase::Closing {
                    return self.give_back(lease.lease_id, Release::All);
                }
                self.tell(Told::Granted {
                    call_id,
                    lease,
                    as_of,
                });
            }
            Err(failed) if is_denied && failed.error == LockError::Cancelled => {
                let why = Refusal::Denied;
                self.tell(Told::Refused { call_id, why });
            }
            Err(failed) => self.refuse(call_id, failed),
        }
    }

    /// Returns whether the rules have changed since the call was admitted, and forbid one of its locks.
    fn is_forbidden<'a>(&self, mut locks: impl Iterator<Item = &'a LockKey>) -> bool {
        let may = self.may.as_ref();
        may.is_some_and(|may| !locks.all(|lock| may(lock)))
    }

    fn settle(&mut self, lease_id: LeaseId, places: Vec<Place>) {
        if let Some(owned) = self.leases.get_mut(&lease_id) {
            owned.settle(places);
        }
    }

    fn attached(&mut self, call_id: i64, number: u32, lease: ShownLease, kept: &[HeldLock]) {
        let lease_id = lease.lease_id;
        let is_kept = |held: &LeaseRef| kept.iter().any(|kept| kept.lock == held.lock);
        let locks = lease.locks.into_iter().filter(is_kept).collect();
        let grants: Vec<_> = kept.iter().map(|held| held.grant).collect();
        self.own(lease_id, number, locks, &grants);
        let quotas = &self.broker.quotas;
        quotas.on_stream(lease_id);
        let places = kept
            .iter()
            .map(|held| quotas.place(&self.caller, &held.lock));
        let mut places: Vec<_> = places.collect();
        self.broker.count_held(&mut places, kept);
        self.broker.ends.allow(lease_id);
        self.settle(lease_id, places);
        if self.phase == Phase::Closing {
            return self.give_back(lease_id, Release::All);
        }
        let interval_ms = self.interval_ms();
        self.tell(Told::Attached {
            call_id,
            lease_id,
            interval_ms,
        });
        if self.is_forbidden(kept.iter().map(|held| &held.lock)) {
            self.end(lease_id, Ended::Denied);
        }
    }

    fn renewed(
        &mut self,
        lease_id: LeaseId,
        sequence: i64,
        asked: &[LeaseRef],
        result: Result<Vec<HeldLock>, Failed>,
    ) {
        let silent = self.heard.elapsed();
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        owned.is_busy = false;
        match result {
            Ok(kept) => {
                owned.slack.renew();
                owned.trace_renewal(lease_id, true);
                let is_kept = |held: &LeaseRef| kept.iter().any(|kept| kept.lock == held.lock);
                owned
                    .locks
                    .retain(|held| is_kept(held) || !asked.contains(held));
                if owned.places.len() > owned.locks.len() {
                    owned.settle(Vec::new());
                }
                let grants = || kept.iter().map(|held| held.grant);
                let ttl = grants().map(|grant| grant.ttl).min().unwrap_or(owned.ttl);
                let is_cut = ttl < owned.ttl && owned.is_news(ttl.as_millis());
                owned.ttl = ttl;
                let extended = Extended {
                    lease_id,
                    ttl,
                    queue_length: grants().map(|grant| grant.queue_length).sum(),
                    locks: kept.len(),
                };
                self.acks.push((sequence, extended));
                if is_cut {
                    self.tell(Told::ReleaseRequested {
                        lease_id,
                        grace_ms: ttl.as_millis(),
                        reason: None,
                    });
                }
            }
            Err(failed) if failed.error.is_open() => {
                owned.trace_renewal(lease_id, false);
                if silent < owned.validity() {
                    self.renew_again(lease_id, sequence);
                }
            }
            Err(failed) => return self.end(lease_id, why(failed.error)),
        }
        self.advance(lease_id);
    }

    fn released(
        &mut self,
        call_id: i64,
        lease_id: LeaseId,
        lock: Option<LockKey>,
        result: Result<GivenBack, Failed>,
    ) {
        let is_over = match (&result, &lock, self.leases.get_mut(&lease_id)) {
            (_, _, None) => false,
            (Ok(given_back), Some(lock), Some(owned)) => {
                owned
                    .locks
                    .retain(|held| given_back.hold_count > 0 || held.lock != *lock);
                owned.settle(Vec::new());
                owned.locks.is_empty()
            }
            (Ok(_), None, Some(_)) => true,
            (Err(failed), _, Some(_)) => !failed.error.is_open(),
        };
        match result {
            Ok(given_back) => self.tell(Told::Released {
                call_id,
                given_back,
            }),
            Err(failed) => self.refuse(call_id, failed),
        }
        if is_over {
            self.forget(lease_id);
        } else if let Some(owned) = self.leases.get_mut(&lease_id) {
            owned.is_busy = false;
            self.advance(lease_id);
        }
    }

    /// What the stream has given back by itself. While the store cannot be reached that is tried
    /// again, until the lease has run out there.
    fn given_back(&mut self, lease_id: LeaseId, what: Release, result: Result<GivenBack, Failed>) {
        let silent = self.heard.elapsed();
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        owned.is_busy = false;
        let is_open = result.is_err_and(|failed| failed.error.is_open());
        if is_open && silent < owned.expiry() {
            self.give_back_again(lease_id, what);
        } else if what == Release::Lapse {
            self.end(lease_id, Ended::Expired);
        } else {
            self.forget(lease_id);
        }
    }

    /// Tells of all renewals that are done, one message for each heartbeat.
    pub(super) fn acknowledge(&mut self) {
        if self.acks.is_empty() {
            return;
        }
        let interval_ms = self.interval_ms();
        let mut interval_ms = (interval_ms != self.interval_ms).then_some(interval_ms);
        self.interval_ms = interval_ms.unwrap_or(self.interval_ms);
        self.acks.sort_by_key(|ack| ack.0);
        let mut acks = std::mem::take(&mut self.acks).into_iter().peekable();
        while let Some((sequence, first)) = acks.next() {
            let mut leases = vec![first];
            while let Some((_, next)) = acks.next_if(|next| next.0 == sequence) {
                leases.push(next);
            }
            self.tell(Told::Acknowledged {
                sequence,
                leases,
                interval_ms: interval_ms.take(),
            });
        }
    }

    fn refuse(&mut self, call_id: i64, failed: Failed) {
        let why = if failed.error == LockError::Cancelled {
            Refusal::Cancelled
        } else {
            Refusal::Failed(failed)
        };
        self.tell(Told::Refused { call_id, why });
    }
}

fn why(error: LockError) -> Ended {
    if let LockError::LeaseRevoked { reason } = error {
        return Ended::Revoked { reason };
    }
    let known = [
        (LockError::MaxHold, Ended::MaxHold),
        (LockError::StaleAttach, Ended::Moved),
        (LockError::LeaseReleased, Ended::Released),
        (LockError::LeaseNotFound, Ended::Lost),
    ];
    let why = known.into_iter().find(|(known, _)| *known == error);
    why.map_or(Ended::Expired, |(_, why)| why)
}
