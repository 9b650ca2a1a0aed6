//! An operator who takes leases away.

use std::net::SocketAddr;

use leasehold_proto::v1::{
    ForceReleaseLeaseRequest, ForceReleaseLeaseResponse, LockRef,
    admin_service_client::AdminServiceClient,
};
use tonic::Status;

use crate::client::channel;

/// What the operator says.
pub const WHY: &str = "maintenance of the database";

/// Takes that lock away from that lease.
#[must_use]
pub fn request(lock: &str, lease_id: &str) -> ForceReleaseLeaseRequest {
    ForceReleaseLeaseRequest {
        lease_id: lease_id.to_owned(),
        reason: WHY.to_owned(),
        lock: Some(LockRef {
            namespace: String::new(),
            name: lock.to_owned(),
        }),
        ..ForceReleaseLeaseRequest::default()
    }
}

/// The same without regard for the holder.
#[must_use]
pub fn unsafely(lock: &str, lease_id: &str) -> ForceReleaseLeaseRequest {
    ForceReleaseLeaseRequest {
        unsafe_now: true,
        ..request(lock, lease_id)
    }
}

/// Asks the broker whose admin service is there.
///
/// # Errors
/// What the broker answers.
pub async fn force(
    admin: SocketAddr,
    request: ForceReleaseLeaseRequest,
) -> Result<ForceReleaseLeaseResponse, Status> {
    let mut admin = AdminServiceClient::new(channel(admin));
    let response = admin.force_release_lease(request).await?;
    Ok(response.into_inner())
}
