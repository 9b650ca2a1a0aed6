//! Authorization of requests. A call is authenticated by its headers, and each lock that it names
//! is checked against the rules before the broker is called.

use std::net::IpAddr;

use futures::stream::Stream;
use tonic::{Request, Status};

use super::status::{self, Rejection};
use crate::{
    access::{AccessControl, AuthError, Caller, PresentedCredentials, Verb, WithdrawalReason},
    lock::{Filter, Limits, LockError, LockFailure, LockKey},
    transport::Peer,
};

const BEARER: &str = "Bearer ";

/// An operation that requires authorization: each call or stream message that names locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Acquire,
    AcquireAll,
    Renew,
    Release,
    HoldAcquire,
    HoldAcquireAll,
    HoldAttach,
    HoldRelease,
    CheckFencingToken,
    GetLock,
    ListLocks,
    WatchLocks,
    SetLockLimit,
    ForceReleaseLease,
    /// Offered by the admin listener, not by the gRPC API.
    SetLogFilter,
}

impl Operation {
    /// Returns the verb that the operation requires.
    pub(super) const fn verb(self) -> Verb {
        match self {
            Self::Acquire
            | Self::AcquireAll
            | Self::Renew
            | Self::Release
            | Self::HoldAcquire
            | Self::HoldAcquireAll
            | Self::HoldAttach
            | Self::HoldRelease => Verb::Acquire,
            Self::CheckFencingToken | Self::GetLock => Verb::Observe,
            Self::ListLocks | Self::WatchLocks => Verb::List,
            Self::SetLockLimit | Self::SetLogFilter => Verb::Admin,
            Self::ForceReleaseLease => Verb::ForceRelease,
        }
    }
}

/// The authenticated caller of a request, and the limits that apply to the request.
#[derive(Debug, Clone)]
pub(super) struct RequestContext {
    pub(super) caller: Caller,
    pub(super) limits: Limits,
    address: Option<IpAddr>,
    access: AccessControl,
}

impl RequestContext {
    /// Returns the context of a call whose caller was authenticated by its headers. The extensions
    /// of the request contain the caller.
    pub(super) fn from_request<T>(
        access: &AccessControl,
        limits: Limits,
        request: &Request<T>,
    ) -> Result<Self, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| status::unauthenticated(AuthError::InvalidCredential))?;
        let peer = request.extensions().get::<Peer>();
        Self::for_caller(access, limits, caller, peer)
    }

    /// Returns the context of a caller that [`authenticate`] has returned. Fails if the caller's
    /// credential has been withdrawn since, because the message may arrive long after the headers.
    pub(super) fn for_caller(
        access: &AccessControl,
        limits: Limits,
        caller: Caller,
        peer: Option<&Peer>,
    ) -> Result<Self, Status> {
        // Created before the credential is checked, so that no change after the check is missed.
        let access = access.from_now();
        if !access.is_still_valid(&caller) {
            return Err(status::unauthenticated(AuthError::InvalidCredential));
        }
        Ok(Self {
            caller,
            limits,
            address: peer.map(address),
            access,
        })
    }

    /// Authenticates the same caller with a newer token.
    pub(super) fn reauthenticate(&self, authorization: &str) -> Result<Caller, Status> {
        let caller = self.access.authenticate(PresentedCredentials {
            address: self.address,
            certificate: None,
            bearer: authorization.strip_prefix(BEARER),
        });
        let caller = caller.map_err(status::unauthenticated)?;
        match caller.name == self.caller.name {
            true => Ok(caller),
            false => Err(status::unauthenticated(AuthError::InvalidCredential)),
        }
    }

    /// Returns true if the current rules still accept the caller's credential.
    pub(super) fn is_still_valid(&self) -> bool {
        self.access.is_still_valid(&self.caller)
    }

    /// Yields whenever the caller's access must be checked again.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        self.access.changes(&self.caller)
    }

    /// Waits until the caller may no longer perform `operation` on all of the locks, and returns
    /// the status that reports it.
    pub(super) async fn until_withdrawn(&self, operation: Operation, locks: &[LockKey]) -> Status {
        let can_access = |lock: &LockKey| self.can(operation.verb(), lock);
        let is_allowed = || locks.iter().all(can_access);
        loop {
            match self.access.until_withdrawn(&self.caller, is_allowed).await {
                WithdrawalReason::Credential => {
                    return status::unauthenticated(AuthError::InvalidCredential);
                }
                // Checked again to record the denial. The rules may have changed
                // back in the meantime.
                WithdrawalReason::Rule => {
                    if let Err(rejection) = self.authorize(operation, locks) {
                        return rejection.into();
                    }
                }
            }
        }
    }

    /// Waits until the caller may no longer perform `operation` on any lock, and returns the status
    /// that reports it.
    pub(super) async fn until_withdrawn_everywhere(&self, operation: Operation) -> Status {
        let is_allowed = || self.can_somewhere(operation.verb());
        loop {
            match self.access.until_withdrawn(&self.caller, is_allowed).await {
                WithdrawalReason::Credential => {
                    return status::unauthenticated(AuthError::InvalidCredential);
                }
                WithdrawalReason::Rule => {
                    if let Err(status) = self.authorize_any(operation) {
                        return status;
                    }
                }
            }
        }
    }

    /// Checks that the caller may perform `operation` on all of the locks. Counts and logs a
    /// denial.
    pub(super) fn authorize<'a>(
        &self,
        operation: Operation,
        locks: impl IntoIterator<Item = &'a LockKey>,
    ) -> Result<(), Rejection> {
        let mut locks = locks.into_iter();
        let denied = locks.find(|lock| !self.access.allows(&self.caller, operation.verb(), lock));
        match denied {
            Some(lock) => {
                self.record_denial(operation.verb(), Some(lock));
                Err(Rejection::Denied(operation.verb(), lock.clone()))
            }
            None => Ok(()),
        }
    }

    /// Checks that the caller may perform `operation` on at least one lock; each lock is checked
    /// later.
    pub(super) fn authorize_any(&self, operation: Operation) -> Result<(), Status> {
        match self.access.allows_some(&self.caller, operation.verb()) {
            true => Ok(()),
            false => {
                self.record_denial(operation.verb(), None);
                Err(status::denied_everywhere(operation.verb()))
            }
        }
    }

    fn record_denial(&self, verb: Verb, lock: Option<&LockKey>) {
        self.access
            .record_denial(&self.caller, self.address, verb, lock);
    }

    pub(super) fn can(&self, verb: Verb, lock: &LockKey) -> bool {
        self.access.allows(&self.caller, verb, lock)
    }

    /// Returns true if the caller may use the verb on at least one lock.
    pub(super) fn can_somewhere(&self, verb: Verb) -> bool {
        self.access.allows_some(&self.caller, verb)
    }

    /// Returns true if a list or watch with `filter` may include the lock. A filter by owner
    /// requires the verb `observe`, so that callers without it cannot search for owners.
    pub(super) fn is_visible(&self, filter: &Filter, lock: &LockKey) -> bool {
        self.can(Verb::List, lock) && (filter.owner_id.is_empty() || self.can(Verb::Observe, lock))
    }

    /// Removes the holders from the error unless the caller may observe the lock.
    pub(super) fn redact_holders(&self, mut failure: LockFailure) -> LockFailure {
        if let LockError::Held(contention) | LockError::WaitTimeout(contention) = &mut failure.error
            && !self.can(Verb::Observe, &failure.lock)
        {
            contention.holders.clear();
        }
        failure
    }
}

/// Authenticates a caller by its connection and the header `authorization`.
///
/// # Errors
/// The status of the reply. The failure has been counted and logged.
pub(crate) fn authenticate(
    access: &AccessControl,
    peer: Option<&Peer>,
    authorization: Option<&[u8]>,
) -> Result<Caller, Status> {
    let caller = access.authenticate(PresentedCredentials {
        address: peer.map(address),
        certificate: peer.and_then(|peer| peer.certificate.as_ref()),
        // An unreadable header counts as an invalid token, not as a missing one.
        bearer: authorization.map(|header| bearer_token(header).unwrap_or_default()),
    });
    let caller = caller.map_err(status::unauthenticated)?;
    if let Some(peer) = peer {
        peer.load.mark_admitted();
    }
    Ok(caller)
}

fn address(peer: &Peer) -> IpAddr {
    peer.address.ip().to_canonical()
}

fn bearer_token(authorization: &[u8]) -> Option<&str> {
    str::from_utf8(authorization).ok()?.strip_prefix(BEARER)
}
