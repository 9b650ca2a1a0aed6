//! A lease that its holder shows again: renewed as a whole, given back as a whole or in part.

use futures::future::join_all;

use super::Broker;
use crate::{
    lock::{Attachment, Failed, Grant, HeldLock, LeaseRef, LockError, Release, Ttl, Via},
    store::{Attached, Released, Renewed},
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
        let renewals = lease.iter().map(|held| self.store.renew(held, ttl, via));
        let renewals = join_all(renewals).await;
        let (mut kept, mut released, mut failed) = (Vec::new(), None, Vec::new());
        for (held, renewed) in lease.iter().zip(renewals) {
            let lock = held.lock.clone();
            let error = match renewed {
                Ok(Renewed::Extended(grant)) => {
                    kept.push(HeldLock { lock, grant });
                    continue;
                }
                Ok(Renewed::Released) => {
                    released = Some(lock);
                    continue;
                }
                Ok(Renewed::MaxHold) => LockError::MaxHold,
                Ok(Renewed::Elsewhere) => LockError::StaleAttach,
                Ok(Renewed::Expired) => LockError::LeaseExpired,
                Ok(Renewed::NotFound) => LockError::LeaseNotFound,
                Err(error) => error.into(),
            };
            failed.push(Failed { lock, error });
        }
        if let Some(lock) = released.filter(|_| kept.is_empty()) {
            let error = LockError::LeaseReleased;
            failed.push(Failed { lock, error });
        }
        // What is lost is lost, whatever could not be reached.
        let failed = failed
            .into_iter()
            .min_by_key(|failed| failed.error.is_open());
        failed.map_or(Ok(kept), Err)
    }

    /// Puts every lock of a lease on a stream, without extending it; its grants.
    pub(super) async fn attach(
        &self,
        lease: &[LeaseRef],
        to: Attachment,
    ) -> Result<Vec<Grant>, Failed> {
        let attachments = lease.iter().map(|held| self.store.attach(held, to));
        let mut grants = Vec::new();
        for (held, attached) in lease.iter().zip(join_all(attachments).await) {
            let lock = held.lock.clone();
            let error = match attached {
                Ok(Attached::Attached(grant)) => {
                    grants.push(grant);
                    continue;
                }
                Ok(Attached::Stale) => LockError::StaleAttach,
                Ok(Attached::MaxHold) => LockError::MaxHold,
                Ok(Attached::Expired) => LockError::LeaseExpired,
                Ok(Attached::Released) => LockError::LeaseReleased,
                Ok(Attached::NotFound) => LockError::LeaseNotFound,
                Err(error) => error.into(),
            };
            return Err(Failed { lock, error });
        }
        Ok(grants)
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
                Ok(Released::Now { hold_count }) => {
                    given_back.already = false;
                    given_back.hold_count += hold_count;
                    continue;
                }
                Ok(Released::Already { hold_count }) => {
                    given_back.hold_count += hold_count;
                    continue;
                }
                Ok(Released::Elsewhere) => LockError::StaleAttach,
                Ok(Released::Expired) => LockError::LeaseExpired,
                Ok(Released::NotFound) => LockError::LeaseNotFound,
                Err(error) => error.into(),
            };
            let lock = held.lock.clone();
            failed.push(Failed { lock, error });
        }
        // While something could not be reached, the call is worth repeating.
        let failed = failed
            .into_iter()
            .max_by_key(|failed| failed.error.is_open());
        failed.map_or(Ok(given_back), Err)
    }
}
