//! Giving back: the whole lease with its last guard, before that what one guard has.

use std::time::Duration;

use futures::stream::StreamExt as _;
use leasehold_proto::v1::{
    HoldRelease, LockRef, Refused, ReleaseRequest, hold_request::Message as Request,
};
use tokio::{sync::oneshot, time::timeout};
use tonic::Status;

use super::{Keeper, Owned};
use crate::{
    client::SHUTDOWN_LIMIT,
    clock,
    error::{Error, LostReason, Refusal, ReleaseError, is_open, refused, status},
    keeper::{Done, link::About, moves::jittered},
    order::Entry,
    target::lock,
};

const REPEAT_PAUSE: Duration = Duration::from_millis(100);

type Answer = oneshot::Sender<Result<(), ReleaseError>>;

/// The whole lease is being given back.
#[derive(Default)]
pub(in crate::keeper) struct Release {
    answers: Vec<Answer>,
    /// When the store has forgotten it, whatever became of the release.
    gone_at: Duration,
}

/// What one guard of several gives back, lock by lock.
pub(super) struct Part {
    entry: Entry,
    answer: Option<Answer>,
}

impl Release {
    pub(super) fn gone_at(&self) -> Duration {
        self.gone_at
    }

    /// The stream was closed, with all that was on it, or could not be.
    pub(in crate::keeper) fn closed(self, is_closed: bool) {
        let unconfirmed = Err(ReleaseError::Unconfirmed);
        self.answer(if is_closed { Ok(()) } else { unconfirmed });
    }

    fn answer(self, result: Result<(), ReleaseError>) {
        for answer in self.answers {
            // A caller that is gone needs no answer.
            let _ = answer.send(result.clone());
        }
    }

    /// The broker says that the lease is over. It was given back within its validity, so the reason
    /// is this release or an earlier sending of it, unless the reason says otherwise.
    pub(super) fn lost(self, why: LostReason) {
        let is_released = [LostReason::Released, LostReason::StoreLost].contains(&why);
        self.answer(if is_released { Ok(()) } else { Err(why.into()) });
    }
}

impl Keeper {
    /// A guard gives back what it has.
    pub(in crate::keeper) fn give_back(
        &mut self,
        lease_id: &str,
        entry: Entry,
        answer: Option<Answer>,
    ) {
        // Without a lease it was lost before; the guard knows why.
        let Some(owned) = self.leases.get_mut(lease_id) else {
            return self.give_back_lost(lease_id);
        };
        owned.guards -= 1;
        if let Some(release) = &mut owned.release {
            // A call under the lease was granted while all of it was given back.
            release.answers.extend(answer);
            return;
        }
        if owned.guards > 0 {
            let part = owned.parts.keys().max().map_or(0, |last| last + 1);
            owned.parts.insert(part, Part { entry, answer });
            return self.release_part(lease_id, part);
        }
        owned.trust.end(LostReason::Released);
        let parts = owned.parts.drain().filter_map(|(_, part)| part.answer);
        owned.release = Some(Release {
            answers: parts.chain(answer).collect(),
            gone_at: clock::now().max(owned.valid_until) + owned.ttl / 2,
        });
        self.release(lease_id);
    }

    /// Drops one guard of a lost lease. After the last one, releases the lease at the broker so that the next
    /// waiter need not wait for its expiry.
    pub(in crate::keeper) fn give_back_lost(&mut self, lease_id: &str) {
        let Some(mut owned) = self.lost.remove(lease_id) else {
            return;
        };
        owned.guards -= 1;
        if owned.guards > 0 {
            self.lost.insert(lease_id.to_owned(), owned);
            return;
        }
        owned.release = Some(Release {
            answers: Vec::new(),
            gone_at: clock::now().max(owned.valid_until) + owned.ttl / 2,
        });
        self.leases.insert(lease_id.to_owned(), owned);
        self.look_at_lease(lease_id);
        self.release(lease_id);
    }

    /// The client closes, and what it did under leases that are lost is over.
    pub(in crate::keeper) async fn give_back_all_lost(&mut self) {
        let lost: Vec<_> = self.lost.keys().cloned().collect();
        for lease_id in lost {
            if let Some(owned) = self.lost.get_mut(&lease_id) {
                owned.guards = 1;
            }
            self.give_back_lost(&lease_id);
        }
        let all_answered = async {
            while self.leases.values().any(Owned::is_released_by_itself)
                && let Some(done) = self.calls.next().await
            {
                if let Done::Released(lease_id, result) = done {
                    self.released(&lease_id, result);
                }
            }
        };
        // A release without an answer by then is left to the expiry of its lease.
        let _ = timeout(SHUTDOWN_LIMIT / 2, all_answered).await;
    }

    /// Sends a release: on the stream, or by itself for a lease that was on another one.
    pub(in crate::keeper) fn release(&mut self, lease_id: &str) {
        let (Some(link), Some(owned)) = (&mut self.link, self.leases.get(lease_id)) else {
            return;
        };
        let lease_id = lease_id.to_owned();
        if owned.is_here {
            link.call(About::Release(lease_id.clone(), None), |call_id| {
                Request::Release(HoldRelease {
                    call_id,
                    lease_id,
                    ..HoldRelease::default()
                })
            });
            return;
        }
        let (connection, lease) = (link.connection.clone(), Some(owned.lease.clone()));
        self.calls.push(Box::pin(async move {
            let request = connection.request(ReleaseRequest {
                lease,
                ..ReleaseRequest::default()
            });
            let released = connection.locks().release(request).await;
            Done::Released(lease_id, released.map(|_| ()).map_err(Box::new))
        }));
    }

    pub(in crate::keeper) fn released(&mut self, lease_id: &str, result: Result<(), Box<Status>>) {
        if let Err(error) = result {
            return self.release_refused(lease_id, &status(&error));
        }
        if let Some(release) = self.leases.remove(lease_id).and_then(|owned| owned.release) {
            release.answer(Ok(()));
        }
    }

    pub(in crate::keeper) fn release_refused(&mut self, lease_id: &str, message: &Refused) {
        if is_open(message) {
            let about = About::Release(lease_id.to_owned(), None);
            self.again
                .push((clock::now() + jittered(REPEAT_PAUSE), about));
            return;
        }
        let release = self.leases.remove(lease_id).and_then(|owned| owned.release);
        let Some(release) = release else { return };
        if let Error::LeaseLost(why) = refused(message) {
            return release.lost(why);
        }
        let refusal = Refusal::new(message.message.clone());
        release.answer(Err(ReleaseError::Refused(refusal)));
    }

    /// Nobody has confirmed a release while the lease could have lived.
    pub(in crate::keeper) fn unconfirmed(&mut self, lease_id: &str) {
        if let Some(release) = self.leases.remove(lease_id).and_then(|owned| owned.release) {
            release.answer(Err(ReleaseError::Unconfirmed));
        }
    }

    /// Sends the release of the next lock of a part. Elsewhere than on its stream it would be refused.
    pub(in crate::keeper) fn release_part(&mut self, lease_id: &str, part: u64) {
        let (Some(link), Some(owned)) = (&mut self.link, self.leases.get_mut(lease_id)) else {
            return;
        };
        if !owned.is_here {
            return;
        }
        let Some(entry) = owned.parts.get(&part).map(|part| &part.entry) else {
            return;
        };
        let (lock, request_id) = (entry.locks.last().cloned(), entry.request_id.clone());
        let lease_id = lease_id.to_owned();
        link.call(About::Release(lease_id.clone(), Some(part)), |call_id| {
            Request::Release(HoldRelease {
                call_id,
                lease_id,
                lock,
                request_id,
            })
        });
    }

    /// A lock of a part is given back, with so many entries of it left, or is not.
    pub(in crate::keeper) fn part_released(
        &mut self,
        lease_id: &str,
        part: u64,
        result: Result<i32, &Refused>,
    ) {
        let Some(owned) = self.leases.get_mut(lease_id) else {
            return;
        };
        match result {
            Ok(hold_count) => {
                if owned.part_released(part, hold_count) {
                    self.release_part(lease_id, part);
                }
            }
            Err(message) if is_open(message) => {
                let about = About::Release(lease_id.to_owned(), Some(part));
                self.again
                    .push((clock::now() + jittered(REPEAT_PAUSE), about));
            }
            Err(message) => {
                let refusal = Refusal::new(message.message.clone());
                owned.end_part(part, Err(ReleaseError::Refused(refusal)));
            }
        }
    }
}

impl Owned {
    /// Whether it is released by a unary call, since it is on no stream of the client.
    fn is_released_by_itself(&self) -> bool {
        self.release.is_some() && !self.is_here
    }

    /// One lock of a part is done; whether there is another one.
    fn part_released(&mut self, part: u64, hold_count: i32) -> bool {
        let Some(entry) = self.parts.get_mut(&part).map(|part| &mut part.entry) else {
            return false;
        };
        let done = entry.locks.pop();
        let has_more = !entry.locks.is_empty();
        if let Some(done) = done.filter(|_| hold_count == 0) {
            self.drop_grant(&done);
        }
        if !has_more {
            self.end_part(part, Ok(()));
        }
        has_more
    }

    fn drop_grant(&mut self, gone: &LockRef) {
        self.lease.grants.retain(|grant| {
            let target = grant.target.as_ref();
            target.is_none_or(|target| lock(target) != *gone)
        });
    }

    fn end_part(&mut self, part: u64, result: Result<(), ReleaseError>) {
        let answer = self.parts.remove(&part).and_then(|part| part.answer);
        if let Some(answer) = answer {
            // A caller that is gone needs no answer.
            let _ = answer.send(result);
        }
    }
}
