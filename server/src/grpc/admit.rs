//! Who asks for what: each call is admitted by its headers, and each lock that it names is looked up in the rules
//! before the broker is asked about it.

use std::net::IpAddr;

use futures::stream::Stream;
use tonic::{Request, Status};

use super::status::{self, Refused};
use crate::{
    access::{Caller, Denied, Gate, Shown, Unknown, Verb, Withdrawn},
    lock::{Failed, Filter, Limits, LockError, LockKey},
    transport::Peer,
};

const BEARER: &str = "Bearer ";

/// Every call and message that names locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
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
    /// Not of the API.
    SetLogFilter,
}

impl Ask {
    /// What its caller must be allowed.
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

/// Somebody who asks, and within which limits.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    pub(super) caller: Caller,
    pub(super) limits: Limits,
    address: Option<IpAddr>,
    gate: Gate,
}

impl Asking {
    /// Returns the caller that was admitted with this call, which comes with its extensions.
    pub(super) fn by<T>(gate: &Gate, limits: Limits, request: &Request<T>) -> Result<Self, Status> {
        let admitted = request.extensions().get::<Caller>().cloned();
        let caller = admitted.ok_or_else(|| status::unknown(Unknown::Worthless))?;
        let peer = request.extensions().get::<Peer>();
        Self::admitted(gate, limits, caller, peer)
    }

    /// Returns a caller that [`authenticate`] has returned, unless what it has shown has been withdrawn since: the
    /// message may have come long after the headers.
    pub(super) fn admitted(
        gate: &Gate,
        limits: Limits,
        caller: Caller,
        peer: Option<&Peer>,
    ) -> Result<Self, Status> {
        // From before the credential is judged, so that no change after it is missed.
        let gate = gate.from_now();
        if !gate.knows(&caller) {
            return Err(status::unknown(Unknown::Worthless));
        }
        Ok(Self {
            caller,
            limits,
            address: peer.map(address),
            gate,
        })
    }

    /// The same caller by a newer token.
    pub(super) fn refreshed(&self, authorization: &str) -> Result<Caller, Status> {
        let caller = self.gate.caller(Shown {
            address: self.address,
            certificate: None,
            bearer: authorization.strip_prefix(BEARER),
        });
        let caller = caller.inspect_err(|why| unknown(&self.gate, self.address, *why));
        let caller = caller.map_err(status::unknown)?;
        match caller.name == self.caller.name {
            true => Ok(caller),
            false => Err(status::unknown(Unknown::Worthless)),
        }
    }

    /// Whether the caller is who it was, by the rules that are in force now.
    pub(super) fn is_known(&self) -> bool {
        self.gate.knows(&self.caller)
    }

    /// Yields whenever the caller is to be judged again.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        self.gate.changes(&self.caller)
    }

    /// Waits until the caller is no longer admitted to that, with any of these locks, and returns why.
    pub(super) async fn until_withdrawn(&self, ask: Ask, locks: &[LockKey]) -> Status {
        let may = |lock: &LockKey| self.may(ask.verb(), lock);
        let is_allowed = || locks.iter().all(may);
        loop {
            match self.gate.until_withdrawn(&self.caller, is_allowed).await {
                Withdrawn::Credential => return status::unknown(Unknown::Worthless),
                // Asked once more to note what was denied. The rules may have changed back meanwhile.
                Withdrawn::Rule => {
                    if let Err(refused) = self.about(ask, locks) {
                        return refused.into();
                    }
                }
            }
        }
    }

    /// The same for what is asked of no lock in particular.
    pub(super) async fn until_withdrawn_everywhere(&self, ask: Ask) -> Status {
        let is_allowed = || self.may_somewhere(ask.verb());
        loop {
            match self.gate.until_withdrawn(&self.caller, is_allowed).await {
                Withdrawn::Credential => return status::unknown(Unknown::Worthless),
                Withdrawn::Rule => {
                    if let Err(refused) = self.some(ask) {
                        return refused;
                    }
                }
            }
        }
    }

    /// Whether all of these locks may be asked about so.
    pub(super) fn about<'a>(
        &self,
        ask: Ask,
        locks: impl IntoIterator<Item = &'a LockKey>,
    ) -> Result<(), Refused> {
        let mut locks = locks.into_iter();
        let denied = locks.find(|lock| !self.gate.allows(&self.caller, ask.verb(), lock));
        match denied {
            Some(lock) => {
                self.gate.denied();
                self.denied(ask.verb(), Some(lock));
                Err(Refused::Denied(ask.verb(), lock.clone()))
            }
            None => Ok(()),
        }
    }

    /// Whether that may be asked of any lock: which ones is looked at one by one.
    pub(super) fn some(&self, ask: Ask) -> Result<(), Status> {
        match self.gate.allows_some(&self.caller, ask.verb()) {
            true => Ok(()),
            false => {
                self.gate.denied();
                self.denied(ask.verb(), None);
                Err(status::denied_everywhere(ask.verb()))
            }
        }
    }

    fn denied(&self, verb: Verb, lock: Option<&LockKey>) {
        self.gate.denials().note(Denied {
            caller: Some(&self.caller.name),
            peer: self.address,
            lock,
            what: verb.to_string(),
        });
    }

    pub(super) fn may(&self, verb: Verb, lock: &LockKey) -> bool {
        self.gate.allows(&self.caller, verb, lock)
    }

    /// Whether the caller may do that to any lock at all.
    pub(super) fn may_somewhere(&self, verb: Verb) -> bool {
        self.gate.allows_some(&self.caller, verb)
    }

    /// Whether a list, or a watch, with that filter shows a lock: without leave to observe nobody can
    /// be found by name.
    pub(super) fn is_shown(&self, filter: &Filter, lock: &LockKey) -> bool {
        self.may(Verb::List, lock) && (filter.owner_id.is_empty() || self.may(Verb::Observe, lock))
    }

    /// Without those who hold the lock, unless the caller may observe it.
    pub(super) fn veiled(&self, mut failed: Failed) -> Failed {
        if let LockError::Held(in_the_way) | LockError::WaitTimeout(in_the_way) = &mut failed.error
            && !self.may(Verb::Observe, &failed.lock)
        {
            in_the_way.holders.clear();
        }
        failed
    }
}

/// Returns who calls, by the connection and the header `authorization`.
///
/// # Errors
/// As the call is to be answered. The refusal has been counted and logged.
pub(crate) fn authenticate(
    gate: &Gate,
    peer: Option<&Peer>,
    authorization: Option<&[u8]>,
) -> Result<Caller, Status> {
    let address = peer.map(address);
    let caller = gate.caller(Shown {
        address,
        certificate: peer.and_then(|peer| peer.certificate.as_ref()),
        // A header that cannot be read is not as good as none.
        bearer: authorization.map(|header| bearer(header).unwrap_or_default()),
    });
    let caller = caller.inspect_err(|why| unknown(gate, address, *why));
    let caller = caller.map_err(status::unknown)?;
    if let Some(peer) = peer {
        peer.admitted();
    }
    Ok(caller)
}

fn address(peer: &Peer) -> IpAddr {
    peer.address.ip().to_canonical()
}

/// Somebody shows no credential that is good.
fn unknown(gate: &Gate, address: Option<IpAddr>, why: Unknown) {
    gate.denials().note(Denied {
        caller: None,
        peer: address,
        lock: None,
        what: match why {
            Unknown::Unnamed(why) => {
                format!("to call by a certificate that names no caller: {why}")
            }
            Unknown::Worthless | Unknown::TooOften(_) => {
                "to call without a good credential".to_owned()
            }
        },
    });
}

fn bearer(authorization: &[u8]) -> Option<&str> {
    str::from_utf8(authorization).ok()?.strip_prefix(BEARER)
}
