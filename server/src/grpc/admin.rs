//! AdminService: what operators change.

use std::sync::{Arc, OnceLock};

use leasehold_proto::v1::{
    ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, SetLockLimitRequest, SetLockLimitResponse,
    admin_service_server::AdminService,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{address, admit::Asking, decode, encode, status};
use crate::{
    access::{Gate, Verb},
    broker::Broker,
    config::Live,
    lock::{Force, LockError},
};

pub(super) struct Admin {
    /// Empty until the store is verified: the admin listener is up before.
    pub(super) broker: Arc<OnceLock<Broker>>,
    pub(super) gate: Gate,
    pub(super) live: watch::Receiver<Live>,
}

impl Admin {
    fn asking<T>(&self, request: &Request<T>) -> Result<Asking, Status> {
        Asking::by(&self.gate, self.live.borrow().limits, request)
    }

    fn broker(&self) -> Result<&Broker, LockError> {
        self.broker.get().ok_or(LockError::StoreUnavailable)
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn force_release_lease(
        &self,
        request: Request<ForceReleaseLeaseRequest>,
    ) -> Result<Response<ForceReleaseLeaseResponse>, Status> {
        let peer = address(&request);
        let asking = self.asking(&request)?;
        let revoke = decode::force_release(request.into_inner(), &asking)?;
        let revoked = match self.broker() {
            Ok(broker) => broker.revoke(&revoke).await,
            Err(error) => Err(error),
        };
        let (holder, queue_length) =
            revoked.map_err(|error| status::not_taken(&error, &revoke.lock))?;
        if revoke.force != Force::None {
            tracing::warn!(
                target: "audit",
                lock = %revoke.lock,
                lease_id = %revoke.lease_id,
                owner = holder.as_ref().map(|holder| holder.owner.id.as_str()),
                reason = revoke.reason,
                grace_ms = revoke.grace_ms,
                unsafe_now = revoke.force == Force::Unsafe,
                caller = &*asking.caller.name,
                peer = peer.map(tracing::field::display),
                "an operator has taken a lease away"
            );
        }
        let holder = holder.filter(|_| asking.may(Verb::Observe, &revoke.lock));
        let holder = holder.map(|holder| encode::holder(&revoke.lock, &holder));
        Ok(Response::new(ForceReleaseLeaseResponse {
            holder: Some(holder.unwrap_or_else(|| encode::gone(&revoke.lock, revoke.lease_id))),
            queue_length: encode::count(queue_length),
        }))
    }

    async fn set_lock_limit(
        &self,
        request: Request<SetLockLimitRequest>,
    ) -> Result<Response<SetLockLimitResponse>, Status> {
        let asking = self.asking(&request)?;
        let (lock, limit) = decode::set_lock_limit(request.into_inner(), &asking)?;
        let previous = match self.broker() {
            Ok(broker) => broker.set_limit(&lock, limit).await,
            Err(error) => Err(error),
        };
        let previous = previous.map_err(|error| status::of(&error, &lock))?;
        let caller = &*asking.caller.name;
        tracing::info!(target: "audit", %lock, limit, previous, caller, "an operator has set a limit");
        Ok(Response::new(SetLockLimitResponse {
            previous_limit: encode::count(previous),
        }))
    }
}
