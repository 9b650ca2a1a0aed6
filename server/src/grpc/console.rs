//! Backend of the operator console. Every read and operator action goes through the corresponding
//! RPC method, so that authorization, validation, redaction, limits and audit logging are shared.

use std::sync::{Arc, OnceLock};

use leasehold_proto::v1::{
    self as pb, ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, GetLockRequest,
    ListLocksRequest, ListLocksResponse, admin_service_server::AdminService as _,
    inspection_service_server::InspectionService as _,
};
use tokio::sync::watch;
use tonic::{Code, Request, Status};

use super::{admin::AdminServiceImpl, inspection::InspectionServiceImpl, to_usize};
use crate::{
    access::{AccessControl, Verb},
    broker::Broker,
    config::{Http2, ReloadableConfig},
    lock::{Filter, LockError, LockKey},
    request::{RequestContext, RequestError, authenticate},
    transport::Peer,
};

/// Gives the operator console access to RPC methods. Cheap to clone.
#[derive(Clone)]
pub struct ConsoleBackend {
    /// Empty until the store is verified.
    broker: Arc<OnceLock<Broker>>,
    access: AccessControl,
    live: watch::Receiver<ReloadableConfig>,
    /// Maximum size of a reply in bytes.
    max_reply: usize,
}

/// An authenticated user of the operator console.
#[derive(Debug, Clone)]
pub struct ConsoleUser {
    context: RequestContext,
    peer: Option<Peer>,
}

/// The error that a request of the operator console fails with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleError {
    /// The HTTP status that corresponds to the gRPC code.
    pub status: u16,
    /// The message of the gRPC status.
    pub message: String,
}

impl ConsoleBackend {
    /// Creates a backend whose requests fail until `broker` is set.
    #[must_use]
    pub fn new(
        broker: Arc<OnceLock<Broker>>,
        access: AccessControl,
        live: watch::Receiver<ReloadableConfig>,
        http2: &Http2,
    ) -> Self {
        let max_reply = to_usize(http2.max_reply);
        Self {
            broker,
            access,
            live,
            max_reply,
        }
    }

    /// Creates a backend without authentication.
    #[cfg(test)]
    pub(crate) fn without_authentication(broker: Broker) -> Self {
        let live = ReloadableConfig {
            limits: crate::lock::Limits::default(),
            drain_timeout: std::time::Duration::ZERO,
            quotas: crate::quotas::QuotaLimits::UNLIMITED,
            log_filter: String::new(),
        };
        Self {
            broker: Arc::new(OnceLock::from(broker)),
            access: AccessControl::allow_all(),
            live: watch::channel(live).1,
            max_reply: 256 << 10,
        }
    }

    /// Returns the broker, once its store is verified.
    #[must_use]
    pub fn broker(&self) -> Option<&Broker> {
        self.broker.get()
    }

    /// Returns true if users must authenticate.
    #[must_use]
    pub fn requires_authentication(&self) -> bool {
        self.access.requires_authentication()
    }

    /// Authenticates a user by the connection and a bearer token.
    ///
    /// # Errors
    /// Those of a call with the same credential.
    pub fn authenticate(
        &self,
        peer: Option<Peer>,
        bearer: Option<&str>,
    ) -> Result<ConsoleUser, ConsoleError> {
        let caller = authenticate(&self.access, peer.as_ref(), bearer)?;
        let limits = self.live.borrow().limits;
        let context = RequestContext::new(&self.access, limits, caller, peer.as_ref())?;
        Ok(ConsoleUser { context, peer })
    }

    /// Calls `InspectionService.GetLock`.
    ///
    /// # Errors
    /// Those of the call. The status is 404 for a lock without holders and waiters.
    pub async fn get_lock(
        &self,
        user: &ConsoleUser,
        request: GetLockRequest,
    ) -> Result<pb::Lock, ConsoleError> {
        let response = self.inspection()?.get_lock(user.request(request)).await?;
        Ok(response.into_inner().lock.unwrap_or_default())
    }

    /// Calls `InspectionService.ListLocks`.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn list_locks(
        &self,
        user: &ConsoleUser,
        request: ListLocksRequest,
    ) -> Result<ListLocksResponse, ConsoleError> {
        let response = self.inspection()?.list_locks(user.request(request)).await?;
        Ok(response.into_inner())
    }

    /// Calls `AdminService.ForceReleaseLease`.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn force_release(
        &self,
        user: &ConsoleUser,
        request: ForceReleaseLeaseRequest,
    ) -> Result<ForceReleaseLeaseResponse, ConsoleError> {
        let admin = AdminServiceImpl {
            broker: Arc::clone(&self.broker),
            access: self.access.clone(),
            live: self.live.clone(),
        };
        let response = admin.force_release_lease(user.request(request)).await?;
        Ok(response.into_inner())
    }

    fn inspection(&self) -> Result<InspectionServiceImpl, RequestError> {
        let broker = self.broker.get();
        let broker = broker.ok_or(LockError::StoreUnavailable)?;
        Ok(InspectionServiceImpl {
            broker: broker.clone(),
            access: self.access.clone(),
            live: self.live.clone(),
            max_reply: self.max_reply,
        })
    }
}

impl ConsoleUser {
    /// Returns the name by which policies refer to the user; empty if authentication is disabled.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.context.caller.name
    }

    /// Returns true if the current rules still accept the user's credential.
    #[must_use]
    pub fn is_still_valid(&self) -> bool {
        self.context.is_still_valid()
    }

    /// Returns true if the user may use the verb on the lock.
    #[must_use]
    pub fn can(&self, verb: Verb, lock: &LockKey) -> bool {
        self.context.can(verb, lock)
    }

    /// Returns true if a list of all locks includes the lock for this user.
    #[must_use]
    pub fn can_list(&self, lock: &LockKey) -> bool {
        self.context.is_visible(&Filter::default(), lock)
    }

    /// Checks that the user may list at least one lock.
    ///
    /// # Errors
    /// Those of `ListLocks`.
    pub fn can_list_some(&self) -> Result<(), ConsoleError> {
        Ok(self.context.authorize_any(Verb::List)?)
    }

    /// Checks that the user may list, observe or operate at least one lock. Permission to acquire
    /// locks is not sufficient.
    ///
    /// # Errors
    /// Those of `ListLocks`.
    pub fn can_operate(&self) -> Result<(), ConsoleError> {
        let verbs = [Verb::Observe, Verb::ForceRelease, Verb::Admin];
        match verbs.into_iter().any(|verb| self.can_somewhere(verb)) {
            true => Ok(()),
            false => self.can_list_some(),
        }
    }

    /// Returns true if the user may use the verb on at least one lock.
    #[must_use]
    pub fn can_somewhere(&self, verb: Verb) -> bool {
        self.context.can_somewhere(verb)
    }

    /// Creates a request of the authenticated user.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let extensions = request.extensions_mut();
        extensions.insert(self.context.caller.clone());
        if let Some(peer) = &self.peer {
            extensions.insert(peer.clone());
        }
        request
    }
}

impl From<RequestError> for ConsoleError {
    fn from(error: RequestError) -> Self {
        Status::from(error).into()
    }
}

impl From<Status> for ConsoleError {
    fn from(status: Status) -> Self {
        let http_status = match status.code() {
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
            status: http_status,
            message: status.message().to_owned(),
        }
    }
}
