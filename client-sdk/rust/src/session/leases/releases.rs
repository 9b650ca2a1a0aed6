//! Releases: of the whole lease with its last guard, and of the locks of earlier guards one by one.

use std::time::Duration;

use futures::stream::StreamExt as _;
use leasehold_proto::v1::{
    HoldRelease, LockRef, Refused, ReleaseRequest, hold_request::Message as Request,
};
use tokio::{sync::oneshot, time::timeout};
use tonic::Status;

use super::{HeldLease, Session};
use crate::{
    client::SHUTDOWN_TIMEOUT,
    clock,
    command::GuardScope,
    error::{
        Error, ErrorDetail, LostReason, ReleaseError, from_refused, is_retryable,
        refused_from_status,
    },
    session::{CompletedCall, failover::jittered, stream_connection::CallKind},
    target::lock_ref,
};

const RETRY_DELAY: Duration = Duration::from_millis(100);

type ReleaseReply = oneshot::Sender<Result<(), ReleaseError>>;

/// The release of a whole lease.
#[derive(Default)]
pub(in crate::session) struct PendingRelease {
    replies: Vec<ReleaseReply>,
    /// Time at which the lease has expired in the store, even if no release arrived.
    ended_at: Duration,
}

/// The release of the locks of one guard of several, lock by lock.
pub(super) struct PartialRelease {
    scope: GuardScope,
    reply: Option<ReleaseReply>,
}

impl PendingRelease {
    pub(super) fn ended_at(&self) -> Duration {
        self.ended_at
    }

    /// Completes the release when the client closes. `is_closed`: the stream was closed with its
    /// leases.
    pub(in crate::session) fn complete_on_close(self, is_closed: bool) {
        let unconfirmed = Err(ReleaseError::Unconfirmed);
        self.complete(if is_closed { Ok(()) } else { unconfirmed });
    }

    fn complete(self, result: Result<(), ReleaseError>) {
        for reply in self.replies {
            // A caller that was dropped needs no response.
            let _ = reply.send(result.clone());
        }
    }

    /// Completes the release because the broker reports that the lease has ended. The release was
    /// sent within the validity of the lease. `Released` and `StoreLost` therefore mean that this
    /// release or an earlier attempt of it succeeded.
    pub(super) fn complete_with_loss(self, reason: LostReason) {
        let is_released = [LostReason::Released, LostReason::StoreLost].contains(&reason);
        self.complete(if is_released {
            Ok(())
        } else {
            Err(reason.into())
        });
    }
}

impl Session {
    /// Releases what one guard holds. The last guard releases the whole lease.
    pub(in crate::session) fn release_guard(
        &mut self,
        lease_id: &str,
        scope: GuardScope,
        reply: Option<ReleaseReply>,
    ) {
        // A missing lease was lost before; the guard has the reason.
        let Some(held_lease) = self.leases.get_mut(lease_id) else {
            return self.release_lost(lease_id);
        };
        held_lease.guard_count -= 1;
        if let Some(release) = &mut held_lease.release {
            // A call under the lease was granted while the whole lease was being released.
            release.replies.extend(reply);
            return;
        }
        if held_lease.guard_count > 0 {
            let part = held_lease
                .partial_releases
                .keys()
                .max()
                .map_or(0, |last| last + 1);
            held_lease
                .partial_releases
                .insert(part, PartialRelease { scope, reply });
            return self.send_partial_release(lease_id, part);
        }
        held_lease.validity.expire(LostReason::Released);
        let parts = held_lease
            .partial_releases
            .drain()
            .filter_map(|(_, part)| part.reply);
        held_lease.release = Some(PendingRelease {
            replies: parts.chain(reply).collect(),
            ended_at: clock::now().max(held_lease.valid_until) + held_lease.ttl / 2,
        });
        self.send_release(lease_id);
    }

    /// Drops one guard of a lost lease. After the last one, releases the lease at the broker so
    /// that the next waiter need not wait for its expiry.
    pub(in crate::session) fn release_lost(&mut self, lease_id: &str) {
        let Some(mut held_lease) = self.lost_leases.remove(lease_id) else {
            return;
        };
        held_lease.guard_count -= 1;
        if held_lease.guard_count > 0 {
            self.lost_leases.insert(lease_id.to_owned(), held_lease);
            return;
        }
        held_lease.release = Some(PendingRelease {
            replies: Vec::new(),
            ended_at: clock::now().max(held_lease.valid_until) + held_lease.ttl / 2,
        });
        self.leases.insert(lease_id.to_owned(), held_lease);
        self.schedule_lease(lease_id);
        self.send_release(lease_id);
    }

    /// Releases all lost leases when the client closes, because the work under them has ended.
    pub(in crate::session) async fn release_all_lost(&mut self) {
        let lost: Vec<_> = self.lost_leases.keys().cloned().collect();
        for lease_id in lost {
            if let Some(held_lease) = self.lost_leases.get_mut(&lease_id) {
                held_lease.guard_count = 1;
            }
            self.release_lost(&lease_id);
        }
        let all_completed = async {
            while self
                .leases
                .values()
                .any(HeldLease::is_released_by_unary_call)
                && let Some(done) = self.unary_calls.next().await
            {
                if let CompletedCall::Released(lease_id, result) = done {
                    self.on_released(&lease_id, result);
                }
            }
        };
        // A release without a response by then is left to the expiry of its lease.
        let _ = timeout(SHUTDOWN_TIMEOUT / 2, all_completed).await;
    }

    /// Sends a release: on the stream, or as a unary call for a lease that is not attached to the
    /// stream.
    pub(in crate::session) fn send_release(&mut self, lease_id: &str) {
        let (Some(stream), Some(held_lease)) = (&mut self.stream, self.leases.get(lease_id)) else {
            return;
        };
        let lease_id = lease_id.to_owned();
        if held_lease.is_attached {
            stream.send_call(CallKind::Release(lease_id.clone(), None), |call_id| {
                Request::Release(HoldRelease {
                    call_id,
                    lease_id,
                    ..HoldRelease::default()
                })
            });
            return;
        }
        let (connection, lease) = (stream.connection.clone(), Some(held_lease.lease.clone()));
        self.unary_calls.push(Box::pin(async move {
            let request = connection.request(ReleaseRequest {
                lease,
                ..ReleaseRequest::default()
            });
            let released = connection.locks().release(request).await;
            CompletedCall::Released(lease_id, released.map(|_| ()).map_err(Box::new))
        }));
    }

    pub(in crate::session) fn on_released(
        &mut self,
        lease_id: &str,
        result: Result<(), Box<Status>>,
    ) {
        if let Err(error) = result {
            return self.on_release_refused(lease_id, &refused_from_status(&error));
        }
        if let Some(release) = self
            .leases
            .remove(lease_id)
            .and_then(|held_lease| held_lease.release)
        {
            release.complete(Ok(()));
        }
    }

    pub(in crate::session) fn on_release_refused(&mut self, lease_id: &str, message: &Refused) {
        if is_retryable(message) {
            let kind = CallKind::Release(lease_id.to_owned(), None);
            self.retries
                .push((clock::now() + jittered(RETRY_DELAY), kind));
            return;
        }
        let release = self
            .leases
            .remove(lease_id)
            .and_then(|held_lease| held_lease.release);
        let Some(release) = release else { return };
        if let Error::LeaseLost(reason) = from_refused(message) {
            return release.complete_with_loss(reason);
        }
        let detail = ErrorDetail::new(message.message.clone());
        release.complete(Err(ReleaseError::Refused(detail)));
    }

    /// Fails a release that no broker confirmed while the lease could live.
    pub(in crate::session) fn fail_unconfirmed(&mut self, lease_id: &str) {
        if let Some(release) = self
            .leases
            .remove(lease_id)
            .and_then(|held_lease| held_lease.release)
        {
            release.complete(Err(ReleaseError::Unconfirmed));
        }
    }

    /// Sends the release of the next lock of a part. Brokers reject it on other streams than that
    /// of the lease.
    pub(in crate::session) fn send_partial_release(&mut self, lease_id: &str, part: u64) {
        let (Some(stream), Some(held_lease)) = (&mut self.stream, self.leases.get_mut(lease_id))
        else {
            return;
        };
        if !held_lease.is_attached {
            return;
        }
        let Some(scope) = held_lease
            .partial_releases
            .get(&part)
            .map(|part| &part.scope)
        else {
            return;
        };
        let (lock, request_id) = (scope.locks.last().cloned(), scope.request_id.clone());
        let lease_id = lease_id.to_owned();
        stream.send_call(CallKind::Release(lease_id.clone(), Some(part)), |call_id| {
            Request::Release(HoldRelease {
                call_id,
                lease_id,
                lock,
                request_id,
            })
        });
    }

    /// Handles the response to the release of one lock of a part. `result` is the number of
    /// remaining entries or the rejection.
    pub(in crate::session) fn on_partial_release(
        &mut self,
        lease_id: &str,
        part: u64,
        result: Result<i32, &Refused>,
    ) {
        let Some(held_lease) = self.leases.get_mut(lease_id) else {
            return;
        };
        match result {
            Ok(hold_count) => {
                if held_lease.record_partial_release(part, hold_count) {
                    self.send_partial_release(lease_id, part);
                }
            }
            Err(message) if is_retryable(message) => {
                let kind = CallKind::Release(lease_id.to_owned(), Some(part));
                self.retries
                    .push((clock::now() + jittered(RETRY_DELAY), kind));
            }
            Err(message) => {
                let detail = ErrorDetail::new(message.message.clone());
                held_lease.complete_partial_release(part, Err(ReleaseError::Refused(detail)));
            }
        }
    }
}

impl HeldLease {
    /// Returns true if a unary call releases the lease, because it is not attached to the stream.
    fn is_released_by_unary_call(&self) -> bool {
        self.release.is_some() && !self.is_attached
    }

    /// Records that one lock of a part was released. Returns true if the part has more locks.
    fn record_partial_release(&mut self, part: u64, hold_count: i32) -> bool {
        let Some(scope) = self
            .partial_releases
            .get_mut(&part)
            .map(|part| &mut part.scope)
        else {
            return false;
        };
        let done = scope.locks.pop();
        let has_more = !scope.locks.is_empty();
        if let Some(done) = done.filter(|_| hold_count == 0) {
            self.remove_grant(&done);
        }
        if !has_more {
            self.complete_partial_release(part, Ok(()));
        }
        has_more
    }

    fn remove_grant(&mut self, released_lock: &LockRef) {
        self.lease.grants.retain(|grant| {
            let target = grant.target.as_ref();
            target.is_none_or(|target| lock_ref(target) != *released_lock)
        });
    }

    fn complete_partial_release(&mut self, part: u64, result: Result<(), ReleaseError>) {
        let reply = self
            .partial_releases
            .remove(&part)
            .and_then(|part| part.reply);
        if let Some(reply) = reply {
            // A caller that was dropped needs no response.
            let _ = reply.send(result);
        }
    }
}
