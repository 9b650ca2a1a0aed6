//! Renewal, attachment and release of a lease.

use futures::future::join_all;

use super::{Broker, expiry};
use crate::{
    lock::{
        Attachment, ExpectedAttachment, Grant, HeldLock, LeaseRef, LockError, LockFailure,
        ReleaseScope, StreamId, Ttl,
    },
    store::{LeaseRejection, LeaseReply, Renewal, StoreError},
};

/// Result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseResult {
    /// True if earlier releases had already released all locks of the request.
    pub already_released: bool,
    /// Number of entries that the lease still has, summed over the locks of the request.
    pub hold_count: u32,
}

impl Broker {
    /// Extends every lock of a lease. Never shortens the validity of a lock and never creates one.
    /// Locks that were released are dropped from the lease. The loss of any other lock ends the
    /// whole lease.
    pub async fn renew(
        &self,
        lease: &[LeaseRef],
        ttl: Option<Ttl>,
        expected_attachment: ExpectedAttachment,
    ) -> Result<Vec<HeldLock>, LockFailure> {
        let renewal = Renewal {
            ttl,
            expected_attachment,
            is_for_client: true,
        };
        let locks = surviving_locks(lease, self.store.renew_many(lease, renewal).await)?;
        if let (ExpectedAttachment::Any, Some(first)) = (expected_attachment, lease.first()) {
            let ttl_ms = locks.iter().map(|held| held.grant.ttl.as_millis()).min();
            self.quotas
                .renewed(first.lease_id, expiry(ttl_ms.unwrap_or(0)));
        }
        Ok(locks)
    }

    /// Extends locks of a lease that its client may not have received yet.
    pub(super) async fn renew_undelivered(
        &self,
        lease: &[LeaseRef],
        expected_attachment: ExpectedAttachment,
    ) -> Result<Vec<HeldLock>, LockFailure> {
        let renewal = Renewal::undelivered(expected_attachment);
        surviving_locks(lease, self.store.renew_many(lease, renewal).await)
    }

    /// Renews leases of the given stream, and returns a result for each. The list of locks of a
    /// stream is current, so a lock that the store does not have is recorded as lost.
    /// [`Broker::renew`] does not record a loss, because a caller may present a lease that ended
    /// long ago.
    pub(super) async fn renew_for_stream(
        &self,
        leases: &[Vec<LeaseRef>],
        stream: StreamId,
    ) -> Vec<Result<Vec<HeldLock>, LockFailure>> {
        let renewal = Renewal {
            ttl: None,
            expected_attachment: ExpectedAttachment::Stream(stream),
            is_for_client: true,
        };
        let locks = leases.concat();
        let mut renewals = self.store.renew_many(&locks, renewal).await.into_iter();
        let results = leases.iter().map(|lease| {
            let renewals: Vec<_> = renewals.by_ref().take(lease.len()).collect();
            for (held, renewed) in lease.iter().zip(&renewals) {
                if matches!(renewed, Ok(Err(LeaseRejection::NotFound))) {
                    self.lease_ends.lost(held);
                }
            }
            surviving_locks(lease, renewals)
        });
        results.collect()
    }

    /// Attaches every lock of a lease to a stream, without extending the lease. Locks that were
    /// released are dropped from the lease. The loss of any other lock ends the whole lease.
    pub(super) async fn attach(
        &self,
        lease: &[LeaseRef],
        attachment: Attachment,
    ) -> Result<Vec<HeldLock>, LockFailure> {
        let attachments = lease.iter().map(|held| self.store.attach(held, attachment));
        surviving_locks(lease, join_all(attachments).await)
    }

    /// Releases these locks of a lease, or one entry of each. A failure for one lock does not
    /// prevent the release of the others.
    pub async fn release(
        &self,
        lease: &[LeaseRef],
        scope: ReleaseScope,
        expected_attachment: ExpectedAttachment,
    ) -> Result<ReleaseResult, LockFailure> {
        let releases = lease
            .iter()
            .map(|held| self.store.release(held, scope, expected_attachment));
        let releases = join_all(releases).await;
        let mut result = ReleaseResult {
            already_released: true,
            hold_count: 0,
        };
        let mut failures = Vec::new();
        for (held, released) in lease.iter().zip(releases) {
            match lease_result(released) {
                Ok(released) => {
                    result.already_released &= released.already_released;
                    result.hold_count += released.hold_count;
                    if released.hold_count == 0 {
                        self.quotas.released(held.lease_id, &held.lock);
                        if !released.already_released && scope != ReleaseScope::ExpireNow {
                            self.lease_ends.released(held);
                        }
                    }
                }
                Err(error) => {
                    let lock = held.lock.clone();
                    failures.push(LockFailure { lock, error });
                }
            }
        }
        // A lock that the store does not have counts as released: the lock was released earlier, or
        // the store lost it.
        if scope == ReleaseScope::All && failures.len() < lease.len() {
            failures.retain(|failure| failure.error != LockError::LeaseNotFound);
        }
        // Prefer a retryable error: if a lock could not be reached, the call is worth repeating.
        let failure = failures
            .into_iter()
            .max_by_key(|failure| failure.error.is_indeterminate());
        failure.map_or(Ok(result), Err)
    }
}

/// Merges the error of the store and the rejection by the store.
fn lease_result<T>(reply: Result<LeaseReply<T>, StoreError>) -> Result<T, LockError> {
    Ok(reply??)
}

/// Returns the locks that a lease still has. A released lock is an error only if no other lock
/// remains or may remain.
fn surviving_locks(
    lease: &[LeaseRef],
    replies: Vec<Result<LeaseReply<Grant>, StoreError>>,
) -> Result<Vec<HeldLock>, LockFailure> {
    let (mut locks, mut released, mut failures) = (Vec::new(), None, Vec::new());
    for (held, reply) in lease.iter().zip(replies) {
        let lock = held.lock.clone();
        match lease_result(reply) {
            Ok(grant) => locks.push(HeldLock { lock, grant }),
            Err(error @ LockError::LeaseReleased) => released = Some(LockFailure { lock, error }),
            Err(error) => failures.push(LockFailure { lock, error }),
        }
    }
    if locks.is_empty() && failures.is_empty() {
        failures.extend(released);
    }
    // Prefer a definitive error: the lease is lost even if another lock could not be reached.
    let failure = failures
        .into_iter()
        .min_by_key(|failure| failure.error.is_indeterminate());
    failure.map_or(Ok(locks), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{FencingToken, LeaseId, LockKey, LockName, Namespace};

    /// Returns the error of the renewal of a lease of one lock for each result.
    fn renewal_error(results: Vec<Result<LeaseReply<Grant>, StoreError>>) -> Option<LockError> {
        let lease_id = LeaseId::parse(&"a".repeat(LeaseId::LEN)).expect("an id");
        let lock = |index| {
            let namespace = Namespace::parse("").expect("the default");
            let name = LockName::parse(&format!("lock-{index}")).expect("a name");
            LeaseRef {
                lock: LockKey::new(namespace, name),
                lease_id,
                fencing_token: FencingToken::new(1).expect("not 0"),
            }
        };
        let lease: Vec<_> = (0..results.len()).map(lock).collect();
        surviving_locks(&lease, results)
            .err()
            .map(|failure| failure.error)
    }

    fn no_reply() -> Result<LeaseReply<Grant>, StoreError> {
        Err(StoreError::Unavailable("no reply".to_owned()))
    }

    #[test]
    fn a_lease_is_not_reported_as_released_if_another_lock_may_be_held() {
        assert_eq!(
            renewal_error(vec![no_reply(), Ok(Err(LeaseRejection::Released))]),
            Some(LockError::StoreUnavailable)
        );
        assert_eq!(
            renewal_error(vec![
                Ok(Err(LeaseRejection::Released)),
                Ok(Err(LeaseRejection::Released))
            ]),
            Some(LockError::LeaseReleased)
        );
    }

    #[test]
    fn a_lost_lock_ends_the_lease_if_another_lock_could_not_be_reached() {
        assert_eq!(
            renewal_error(vec![no_reply(), Ok(Err(LeaseRejection::NotFound))]),
            Some(LockError::LeaseNotFound)
        );
    }
}
