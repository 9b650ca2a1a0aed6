//! A lease that its holder shows again: renewed as a whole, given back as a whole or in part.

use futures::future::join_all;

use super::{Broker, expiry};
use crate::{
    lock::{Attachment, Failed, Grant, HeldLock, LeaseRef, LockError, Release, StreamId, Ttl, Via},
    store::{Attached, Released, Renewed, StoreError},
};

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenBack {
    /// An earlier release had given it back.
    pub already: bool,
    /// Entries left.
    pub hold_count: u32,
}

impl Broker {
    /// Extends every lock of a lease: never shortens one, and never makes one. Locks that were
    /// released are no longer part of it; the loss of any other is the end of the whole.
    pub async fn renew(
        &self,
        lease: &[LeaseRef],
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Vec<HeldLock>, Failed> {
        let kept = renewed(lease, self.renew_each(lease, ttl, via).await)?;
        if let (Via::Anywhere, Some(first)) = (via, lease.first()) {
            let ttl_ms = kept.iter().map(|held| held.grant.ttl.as_millis()).min();
            self.quotas
                .renewed(first.lease_id, expiry(ttl_ms.unwrap_or(0)));
        }
        Ok(kept)
    }

    /// The same for a lease of that stream, which knows what the lease has: what the store does not
    /// know of it was lost. (Who shows a lease may show one that has been over for long.)
    pub(super) async fn renew_own(
        &self,
        lease: &[LeaseRef],
        stream: StreamId,
    ) -> Result<Vec<HeldLock>, Failed> {
        let renewals = self.renew_each(lease, None, Via::Stream(stream)).await;
        for (held, renewed) in lease.iter().zip(&renewals) {
            if matches!(renewed, Ok(Renewed::NotFound)) {
                self.ends.lost(held);
            }
        }
        renewed(lease, renewals)
    }

    async fn renew_each(
        &self,
        lease: &[LeaseRef],
        ttl: Option<Ttl>,
        via: Via,
    ) -> Vec<Result<Renewed, StoreError>> {
        let renewals = lease.iter().map(|held| self.store.renew(held, ttl, via));
        join_all(renewals).await
    }

    /// Puts every lock of a lease on a stream, without extending it. Locks that were released are no
    /// longer part of it; the loss of any other is the end of the whole.
    pub(super) async fn attach(
        &self,
        lease: &[LeaseRef],
        to: Attachment,
    ) -> Result<Vec<HeldLock>, Failed> {
        let attachments = lease.iter().map(|held| self.store.attach(held, to));
        let attachments = join_all(attachments).await.into_iter();
        kept(
            lease,
            attachments.map(|attached| match attached? {
                Attached::Attached(grant) => Ok(grant),
                Attached::Released => Err(LockError::LeaseReleased),
                Attached::Stale => Err(LockError::StaleAttach),
                Attached::MaxHold => Err(LockError::MaxHold),
                Attached::Revoked { reason } => Err(LockError::LeaseRevoked { reason }),
                Attached::Expired => Err(LockError::LeaseExpired),
                Attached::NotFound => Err(LockError::LeaseNotFound),
            }),
        )
    }

    /// Gives back these locks of a lease, or one entry of each. What can be given back is, whatever
    /// becomes of the others.
    pub async fn release(
        &self,
        lease: &[LeaseRef],
        release: Release,
        via: Via,
    ) -> Result<GivenBack, Failed> {
        let releases = lease
            .iter()
            .map(|held| self.store.release(held, release, via));
        let releases = join_all(releases).await;
        let mut given_back = GivenBack {
            already: true,
            hold_count: 0,
        };
        let mut failed = Vec::new();
        for (held, released) in lease.iter().zip(releases) {
            let error = match released {
                Ok(Released::Now { hold_count } | Released::Already { hold_count }) => {
                    given_back.already &= matches!(released, Ok(Released::Already { .. }));
                    given_back.hold_count += hold_count;
                    if hold_count == 0 {
                        self.quotas.released(held.lease_id, &held.lock);
                        let is_now = matches!(released, Ok(Released::Now { .. }));
                        if is_now && release != Release::Lapse {
                            self.ends.released(held);
                        }
                    }
                    continue;
                }
                Ok(Released::Elsewhere) => LockError::StaleAttach,
                Ok(Released::Expired) => LockError::LeaseExpired,
                Ok(Released::Revoked { reason }) => LockError::LeaseRevoked { reason },
                Ok(Released::NotFound) => LockError::LeaseNotFound,
                Err(error) => error.into(),
            };
            let lock = held.lock.clone();
            failed.push(Failed { lock, error });
        }
        // A lock of the lease that the store does not know counts as released: it was released earlier, or
        // the store lost it.
        if release == Release::All && failed.len() < lease.len() {
            failed.retain(|failed| failed.error != LockError::LeaseNotFound);
        }
        // While something could not be reached, the call is worth repeating.
        let failed = failed
            .into_iter()
            .max_by_key(|failed| failed.error.is_open());
        failed.map_or(Ok(given_back), Err)
    }
}

/// What is left after these renewals.
fn renewed(
    lease: &[LeaseRef],
    renewals: Vec<Result<Renewed, StoreError>>,
) -> Result<Vec<HeldLock>, Failed> {
    kept(
        lease,
        renewals.into_iter().map(|renewed| match renewed? {
            Renewed::Extended(grant) => Ok(grant),
            Renewed::Released => Err(LockError::LeaseReleased),
            Renewed::MaxHold => Err(LockError::MaxHold),
            Renewed::Revoked { reason } => Err(LockError::LeaseRevoked { reason }),
            Renewed::Elsewhere => Err(LockError::StaleAttach),
            Renewed::Expired => Err(LockError::LeaseExpired),
            Renewed::NotFound => Err(LockError::LeaseNotFound),
        }),
    )
}

/// The locks that a lease still has. One that was released is no loss, unless it was the last.
fn kept(
    lease: &[LeaseRef],
    results: impl Iterator<Item = Result<Grant, LockError>>,
) -> Result<Vec<HeldLock>, Failed> {
    let (mut kept, mut released, mut failed) = (Vec::new(), None, Vec::new());
    for (held, result) in lease.iter().zip(results) {
        let lock = held.lock.clone();
        match result {
            Ok(grant) => kept.push(HeldLock { lock, grant }),
            Err(error @ LockError::LeaseReleased) => released = Some(Failed { lock, error }),
            Err(error) => failed.push(Failed { lock, error }),
        }
    }
    failed.extend(released.filter(|_| kept.is_empty()));
    // What is lost is lost, whatever could not be reached.
    let failed = failed
        .into_iter()
        .min_by_key(|failed| failed.error.is_open());
    failed.map_or(Ok(kept), Err)
}
