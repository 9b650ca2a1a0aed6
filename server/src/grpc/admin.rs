//! AdminService: not in this release.

use leasehold_proto::v1::{
    ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, SetLockLimitRequest, SetLockLimitResponse,
    admin_service_server::AdminService,
};
use tonic::{Request, Response, Status};

use super::status;

pub(super) struct Admin;

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
        _: Request<SetLockLimitRequest>,
    ) -> Result<Response<SetLockLimitResponse>, Status> {
        Err(status::not_yet("SetLockLimit"))
    }
}
