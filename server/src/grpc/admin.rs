//! AdminService: what operators change.

use std::sync::{Arc, OnceLock};

use leasehold_proto::v1::{
    ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, SetLockLimitRequest, SetLockLimitResponse,
    admin_service_server::AdminService,
};
use tonic::{Request, Response, Status};

use super::{decode, encode, status};
use crate::{broker::Broker, lock::LockError};

pub(super) struct Admin {
    /// Empty until the store is verified: the admin listener is up before.
    pub(super) broker: Arc<OnceLock<Broker>>,
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn force_release_lease(
        &self,
        _: Request<ForceReleaseLeaseRequest>,
    ) -> Result<Response<ForceReleaseLeaseResponse>, Status> {
        Err(status::not_yet("ForceReleaseLease"))
    }

    async fn set_lock_limit(
        &self,
        request: Request<SetLockLimitRequest>,
    ) -> Result<Response<SetLockLimitResponse>, Status> {
        let (lock, limit) = decode::set_lock_limit(request.into_inner())?;
        let previous = match self.broker.get() {
            Some(broker) => broker.set_limit(&lock, limit).await,
            None => Err(LockError::StoreUnavailable),
        };
        let previous = previous.map_err(|error| status::of(&error, &lock))?;
        tracing::info!(%lock, limit, previous, "the limit was set");
        Ok(Response::new(SetLockLimitResponse {
            previous_limit: encode::count(previous),
        }))
    }
}
