//! An operator who force-releases leases.

use std::net::SocketAddr;

use leasehold_proto::v1::{
    ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, LockRef,
    admin_service_client::AdminServiceClient,
};
use tonic::Status;

use crate::client::unary::channel;

/// Reason that the operator states.
pub const REASON: &str = "maintenance of the database";

/// Returns a request that revokes the hold of a lease on one lock.
#[must_use]
pub fn force_release_request(lock: &str, lease_id: &str) -> ForceReleaseLeaseRequest {
    ForceReleaseLeaseRequest {
        lease_id: lease_id.to_owned(),
        reason: REASON.to_owned(),
        lock: Some(LockRef {
            namespace: String::new(),
            name: lock.to_owned(),
        }),
        ..ForceReleaseLeaseRequest::default()
    }
}

/// Returns a request that revokes the hold immediately, before the holder has stopped relying on
/// it.
#[must_use]
pub fn unsafe_force_release_request(lock: &str, lease_id: &str) -> ForceReleaseLeaseRequest {
    ForceReleaseLeaseRequest {
        unsafe_now: true,
        ..force_release_request(lock, lease_id)
    }
}

/// Sends the request to the admin service at `admin`.
///
/// # Errors
/// The status that the broker returned.
pub async fn force_release(
    admin: SocketAddr,
    request: ForceReleaseLeaseRequest,
) -> Result<ForceReleaseLeaseResponse, Status> {
    let mut admin = AdminServiceClient::new(channel(admin));
    let response = admin.force_release_lease(request).await?;
    Ok(response.into_inner())
}
