//! The operators' page as a caller: each look and each deed goes through the method of the RPC that does the
//! same, so that it is admitted, checked, veiled, bounded and told to the log as that one is.

use std::sync::{Arc, OnceLock};

use leasehold_proto::v1::{
    self as pb, ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, GetLockRequest,
    ListLocksRequest, ListLocksResponse, admin_service_server::AdminService as _,
    inspection_service_server::InspectionService as _,
};
use tokio::sync::watch;
use tonic::{Code, Request, Status};

use super::{
    admin::Admin,
    admit::{Ask, Asking, authenticate},
    bytes,
    inspection::Inspection,
    status,
};
use crate::{
    access::{Gate, Verb},
    broker::Broker,
    config::{Http2, Live},
    lock::{Filter, LockError, LockKey},
    transport::Peer,
};

/// Where the page asks. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    /// Empty until the store is verified.
    broker: Arc<OnceLock<Broker>>,
    gate: Gate,
    live: watch::Receiver<Live>,
    /// Bytes of an answer.
    max_reply: usize,
}

/// Somebody at the desk, who was let in.
#[derive(Debug, Clone)]
pub struct Visitor {
    asking: Asking,
    peer: Option<Peer>,
}

/// Why something was not shown or done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status of HTTP that says the same.
    pub status: u16,
    /// The sentence of the RPC.
    pub message: String,
}

impl Desk {
    /// On the broker, once there is one.
    #[must_use]
    pub fn new(
        broker: Arc<OnceLock<Broker>>,
        gate: Gate,
        live: watch::Receiver<Live>,
        http2: &Http2,
    ) -> Self {
        let max_reply = bytes(http2.max_reply);
        Self {
            broker,
            gate,
            live,
            max_reply,
        }
    }

    /// A desk that asks nobody.
    #[cfg(test)]
    pub(crate) fn alone(broker: Broker) -> Self {
        let live = Live {
            limits: crate::lock::Limits::default(),
            drain_timeout: std::time::Duration::ZERO,
            quotas: crate::quotas::QuotaLimits::AMPLE,
            log_filter: String::new(),
        };
        Self {
            broker: Arc::new(OnceLock::from(broker)),
            gate: Gate::open(),
            live: watch::channel(live).1,
            max_reply: 256 << 10,
        }
    }

    /// The broker, once its store is verified.
    #[must_use]
    pub fn broker(&self) -> Option<&Broker> {
        self.broker.get()
    }

    /// Whether visitors must show who they are.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.gate.asks()
    }

    /// Who comes, by the connection and a token.
    ///
    /// # Errors
    /// As a call with the same credential.
    pub fn admit(&self, peer: Option<Peer>, bearer: Option<&str>) -> Result<Visitor, Refusal> {
        let authorization = bearer.map(|token| format!("Bearer {token}"));
        let authorization = authorization.as_ref().map(String::as_bytes);
        let caller = authenticate(&self.gate, peer.as_ref(), authorization)?;
        let limits = self.live.borrow().limits;
        let asking = Asking::admitted(&self.gate, limits, caller, peer.as_ref())?;
        Ok(Visitor { asking, peer })
    }

    /// `InspectionService.GetLock`.
    ///
    /// # Errors
    /// As that call; a lock that nobody holds or waits for is 404.
    pub async fn get_lock(
        &self,
        visitor: &Visitor,
        asked: GetLockRequest,
    ) -> Result<pb::Lock, Refusal> {
        let looked = self.inspection()?.get_lock(visitor.request(asked)).await?;
        Ok(looked.into_inner().lock.unwrap_or_default())
    }

    /// `InspectionService.ListLocks`.
    ///
    /// # Errors
    /// As that call.
    pub async fn list_locks(
        &self,
        visitor: &Visitor,
        asked: ListLocksRequest,
    ) -> Result<ListLocksResponse, Refusal> {
        let listed = self
            .inspection()?
            .list_locks(visitor.request(asked))
            .await?;
        Ok(listed.into_inner())
    }

    /// `AdminService.ForceReleaseLease`.
    ///
    /// # Errors
    /// As that call.
    pub async fn force_release(
        &self,
        visitor: &Visitor,
        asked: ForceReleaseLeaseRequest,
    ) -> Result<ForceReleaseLeaseResponse, Refusal> {
        let admin = Admin {
            broker: Arc::clone(&self.broker),
            gate: self.gate.clone(),
            live: self.live.clone(),
        };
        let taken = admin.force_release_lease(visitor.request(asked)).await?;
        Ok(taken.into_inner())
    }

    fn inspection(&self) -> Result<Inspection, Status> {
        let broker = self.broker.get();
        let broker = broker.ok_or_else(|| status::of_all(&LockError::StoreUnavailable, None))?;
        Ok(Inspection {
            broker: broker.clone(),
            gate: self.gate.clone(),
            live: self.live.clone(),
            max_reply: self.max_reply,
        })
    }
}

impl Visitor {
    /// As policies call them; empty where nobody is asked.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.asking.caller.name
    }

    /// Whether they are who they were, by the rules that are in force now.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.asking.is_known()
    }

    /// Whether they may do that to this lock.
    #[must_use]
    pub fn may(&self, verb: Verb, lock: &LockKey) -> bool {
        self.asking.may(verb, lock)
    }

    /// Whether a list of all locks shows them this one.
    #[must_use]
    pub fn may_list(&self, lock: &LockKey) -> bool {
        self.asking.is_shown(&Filter::default(), lock)
    }

    /// Whether they may list any lock at all.
    ///
    /// # Errors
    /// As a list.
    pub fn may_list_some(&self) -> Result<(), Refusal> {
        Ok(self.asking.some(Ask::ListLocks)?)
    }

    /// Whether they may find, observe or operate any lock at all: more than to acquire it.
    ///
    /// # Errors
    /// As a list.
    pub fn may_operate(&self) -> Result<(), Refusal> {
        let verbs = [Verb::Observe, Verb::ForceRelease, Verb::Admin];
        match verbs.into_iter().any(|verb| self.may_somewhere(verb)) {
            true => Ok(()),
            false => self.may_list_some(),
        }
    }

    /// Whether they may do that to any lock at all.
    #[must_use]
    pub fn may_somewhere(&self, verb: Verb) -> bool {
        self.asking.may_somewhere(verb)
    }

    /// A call of an admitted caller.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let extensions = request.extensions_mut();
        extensions.insert(self.asking.caller.clone());
        if let Some(peer) = &self.peer {
            extensions.insert(peer.clone());
        }
        request
    }
}

impl From<Status> for Refusal {
    fn from(refused: Status) -> Self {
        let status = match refused.code() {
            Code::Ok => 200,
            Code::InvalidArgument | Code::OutOfRange => 400,
            Code::Unauthenticated => 401,
            Code::PermissionDenied => 403,
            Code::NotFound => 404,
            Code::Aborted | Code::FailedPrecondition | Code::AlreadyExists => 409,
            Code::ResourceExhausted => 429,
            Code::Unimplemented => 501,
            Code::Unavailable => 503,
            Code::DeadlineExceeded | Code::Cancelled => 504,
            Code::Unknown | Code::Internal | Code::DataLoss => 500,
        };
        Self {
            status,
            message: refused.message().to_owned(),
        }
    }
}
