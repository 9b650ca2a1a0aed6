//! Authentication and authorization of requests. A caller is authenticated by its credentials, and
//! each lock that a request names is checked against the rules before the broker is called.

use std::{
    net::{IpAddr, SocketAddr},
    pin::pin,
};

use futures::{
    future::pending,
    stream::{Stream, StreamExt as _},
};

use super::RequestError;
use crate::{
    access::{AccessControl, AuthError, Caller, PresentedCredentials, Verb},
    lock::{AcquireCall, Filter, Limits, LockError, LockFailure, LockKey, PresentedLease},
    transport::Peer,
};

const BEARER: &str = "Bearer ";

/// The authenticated caller of a request, and the limits that apply to the request.
#[derive(Debug, Clone)]
pub struct RequestContext {
    pub caller: Caller,
    pub limits: Limits,
    /// Address of the client; `None` only for a request without a connection.
    pub peer: Option<SocketAddr>,
    access: AccessControl,
}

impl RequestContext {
    /// Authenticates a caller by its connection and its bearer token.
    ///
    /// # Errors
    /// If the credentials are missing or invalid, or have been tried too often. The failure has been
    /// counted and logged.
    pub fn authenticate(
        access: &AccessControl,
        limits: Limits,
        peer: Option<&Peer>,
        bearer: Option<&str>,
    ) -> Result<Self, RequestError> {
        // Created before the credentials are checked, so that no change after the check is missed.
        let access = access.from_now();
        let caller = access.authenticate(PresentedCredentials {
            address: peer.map(|peer| client_ip(peer.address)),
            certificate: peer.and_then(|peer| peer.certificate.as_ref()),
            bearer,
        })?;
        if let Some(peer) = peer {
            peer.load.mark_admitted();
        }
        Ok(Self {
            caller,
            limits,
            peer: peer.map(|peer| peer.address),
            access,
        })
    }

    /// Authenticates the same caller with a newer token.
    ///
    /// # Errors
    /// If the header `authorization` has no valid token, or one of another caller.
    pub fn reauthenticate(&self, authorization: &str) -> Result<Caller, RequestError> {
        let caller = self.access.authenticate(PresentedCredentials {
            address: self.peer.map(client_ip),
            certificate: None,
            bearer: authorization.strip_prefix(BEARER),
        })?;
        match caller.name == self.caller.name {
            true => Ok(caller),
            false => Err(AuthError::InvalidCredential.into()),
        }
    }

    /// Checks that the current rules still accept the caller's credential.
    ///
    /// # Errors
    /// [`RequestError::Unauthenticated`] if they do not.
    pub fn check_credential(&self) -> Result<(), RequestError> {
        match self.access.is_still_valid(&self.caller) {
            true => Ok(()),
            false => Err(AuthError::InvalidCredential.into()),
        }
    }

    /// Yields whenever the caller's access must be checked again.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        self.access.changes(&self.caller)
    }

    /// Waits until the caller may no longer use the verb on all of the locks, and returns the error
    /// that reports it. The request was authorized after `self.access` was created, so that no
    /// change since then is missed.
    pub async fn until_withdrawn(&self, verb: Verb, locks: &[LockKey]) -> RequestError {
        let mut changes = pin!(self.access.changes(&self.caller));
        while changes.next().await.is_some() {
            let checked = self.check_credential();
            if let Err(error) = checked.and_then(|()| self.authorize(verb, locks)) {
                return error;
            }
        }
        // The sender of the rules was dropped, because the broker stops.
        pending().await
    }

    /// Checks that the caller may use the verb on all of the locks. Counts and logs a denial.
    ///
    /// # Errors
    /// [`RequestError::Denied`] with the first lock that the rules forbid.
    pub fn authorize<'a>(
        &self,
        verb: Verb,
        locks: impl IntoIterator<Item = &'a LockKey>,
    ) -> Result<(), RequestError> {
        let denied = locks.into_iter().find(|lock| !self.can(verb, lock));
        match denied {
            Some(lock) => {
                self.record_denial(verb, Some(lock));
                Err(RequestError::Denied(verb, lock.clone()))
            }
            None => Ok(()),
        }
    }

    /// Checks that the caller may acquire all locks of the call, and that it owns the lease that the
    /// call extends.
    ///
    /// # Errors
    /// Those of [`Self::authorize`] and [`Self::authorize_presented`].
    pub fn authorize_acquire(&self, call: &AcquireCall) -> Result<(), RequestError> {
        let targets = call.targets.iter().map(|target| &target.lock);
        self.authorize(Verb::Acquire, targets)?;
        let lease = call.under.as_ref();
        lease.map_or(Ok(()), |lease| self.authorize_presented(lease))
    }

    /// Checks that the caller may acquire all locks of the presented lease, and that it owns the
    /// lease: the token of the lease and the name of the caller hash to its id. The stores verify
    /// the other fields.
    ///
    /// # Errors
    /// Those of [`Self::authorize`], and [`LockError::NotHolder`].
    pub fn authorize_presented(&self, lease: &PresentedLease) -> Result<(), RequestError> {
        self.authorize(Verb::Acquire, lease.locks.iter().map(|held| &held.lock))?;
        match lease.lease_token.lease_id(&self.caller.name) == lease.lease_id {
            true => Ok(()),
            false => Err(LockError::NotHolder.for_lock(&lease.locks[0].lock).into()),
        }
    }

    /// Checks that the caller may use the verb on at least one lock; each lock is checked later.
    /// Counts and logs a denial.
    ///
    /// # Errors
    /// [`RequestError::DeniedEverywhere`] if the rules forbid the verb on all locks.
    pub fn authorize_any(&self, verb: Verb) -> Result<(), RequestError> {
        match self.can_somewhere(verb) {
            true => Ok(()),
            false => {
                self.record_denial(verb, None);
                Err(RequestError::DeniedEverywhere(verb))
            }
        }
    }

    fn record_denial(&self, verb: Verb, lock: Option<&LockKey>) {
        let address = self.peer.map(client_ip);
        self.access.record_denial(&self.caller, address, verb, lock);
    }

    /// Returns true if the caller may use the verb on the lock.
    pub fn can(&self, verb: Verb, lock: &LockKey) -> bool {
        self.access.allows(&self.caller, verb, lock)
    }

    /// Returns true if the caller may use the verb on at least one lock.
    pub fn can_somewhere(&self, verb: Verb) -> bool {
        self.access.allows_some(&self.caller, verb)
    }

    /// Returns true if a list or watch with `filter` may include the lock. A filter by owner
    /// requires the verb `observe`, so that callers without it cannot search for owners.
    pub fn is_visible(&self, filter: &Filter, lock: &LockKey) -> bool {
        self.can(Verb::List, lock) && (filter.owner_id.is_empty() || self.can(Verb::Observe, lock))
    }

    /// Returns the name under which an operator's command is recorded: that of the authenticated
    /// caller, or else the one that the request gives, or else `operator`.
    pub fn operator_name<'a>(&'a self, given: &'a str) -> &'a str {
        let names = [&*self.caller.name, given];
        let name = names.into_iter().find(|name| !name.is_empty());
        name.unwrap_or("operator")
    }

    /// Removes the holders and the owner of the closure from the error unless the caller may
    /// observe the lock.
    pub fn redact_holders(&self, mut failure: LockFailure) -> LockFailure {
        if let LockError::Held(contention) | LockError::WaitTimeout(contention) = &mut failure.error
            && !self.can(Verb::Observe, &failure.lock)
        {
            contention.holders.clear();
            contention
                .closure
                .iter_mut()
                .for_each(|closure| closure.redact());
        }
        failure
    }
}

/// Returns the bearer token of the header `authorization`. An unreadable header counts as an invalid
/// token, not as a missing one.
pub fn bearer_token(authorization: &[u8]) -> &str {
    let header = str::from_utf8(authorization).ok();
    let token = header.and_then(|header| header.strip_prefix(BEARER));
    token.unwrap_or_default()
}

fn client_ip(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::{FencingToken, LeaseRef, LeaseToken, Ttl},
        store::stub::lock,
    };

    #[test]
    fn a_presented_lease_must_belong_to_the_caller() {
        let access = AccessControl::allow_all();
        let context = RequestContext::authenticate(&access, Limits::default(), None, None);
        let context = context.expect("no authentication is required");
        let lease_token = LeaseToken::from_caller("a".to_owned());
        let lease = PresentedLease {
            lease_id: lease_token.lease_id(&context.caller.name),
            locks: vec![LeaseRef {
                lock: lock("a"),
                lease_id: lease_token.lease_id(&context.caller.name),
                fencing_token: FencingToken::after(0, 1),
            }],
            lease_token,
            ttl: Ttl::from_stored(1_000),
        };
        assert_eq!(context.authorize_presented(&lease), Ok(()));
        let other = PresentedLease {
            lease_token: LeaseToken::from_caller("b".to_owned()),
            ..lease
        };
        let rejected = context.authorize_presented(&other);
        let is_not_holder = matches!(
            rejected,
            Err(RequestError::Failed {
                error: LockError::NotHolder,
                ..
            })
        );
        assert!(is_not_holder, "{rejected:?}");
    }
}
