//! The gRPC edge: each call is parsed once, handed to the broker, and its outcome encoded.

mod admin;
mod decode;
mod encode;
mod inspection;
mod status;
mod timeout;

use std::sync::{Arc, OnceLock};

use futures::stream::Empty;
use leasehold_proto::v1::{
    AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse,
    CheckFencingTokenRequest, CheckFencingTokenResponse, HoldRequest, HoldResponse, ReleaseRequest,
    ReleaseResponse, RenewRequest, RenewResponse,
    admin_service_server::AdminServiceServer,
    inspection_service_server::InspectionServiceServer,
    lock_service_server::{LockService, LockServiceServer},
};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    broker::Broker,
    lock::{Lease, Limits, Via},
};

/// The largest message that a client may send. The largest legal one is far smaller.
pub const MESSAGE_MAX_BYTES: usize = 64 * 1024;

/// No authentication yet: every caller is the same one.
const CALLER: &str = "";

/// `LockService` on `broker`.
pub fn lock_service(broker: Broker, limits: Limits) -> LockServiceServer<impl LockService> {
    LockServiceServer::new(Locks { broker, limits }).max_decoding_message_size(MESSAGE_MAX_BYTES)
}

/// `InspectionService` on `broker`.
pub fn inspection_service(
    broker: Broker,
) -> InspectionServiceServer<impl leasehold_proto::v1::inspection_service_server::InspectionService>
{
    InspectionServiceServer::new(inspection::Inspection::new(broker))
        .max_decoding_message_size(MESSAGE_MAX_BYTES)
}

/// `AdminService` on `broker`, once there is one.
pub fn admin_service(
    broker: Arc<OnceLock<Broker>>,
) -> AdminServiceServer<impl leasehold_proto::v1::admin_service_server::AdminService> {
    AdminServiceServer::new(admin::Admin { broker }).max_decoding_message_size(MESSAGE_MAX_BYTES)
}

struct Locks {
    broker: Broker,
    limits: Limits,
}

#[tonic::async_trait]
impl LockService for Locks {
    type HoldStream = Empty<Result<HoldResponse, Status>>;

    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let wait_max_ms = timeout::wait_max_ms(request.metadata());
        let mut call = decode::acquire(request.into_inner(), &self.limits)?;
        call.wait_ms = call.wait_ms.min(wait_max_ms);
        let lease = self.broker.acquire(CALLER, call).await?;
        let lease = Some(encode::lease(&lease));
        Ok(Response::new(AcquireResponse { lease }))
    }

    async fn acquire_all(
        &self,
        request: Request<AcquireAllRequest>,
    ) -> Result<Response<AcquireAllResponse>, Status> {
        let wait_max_ms = timeout::wait_max_ms(request.metadata());
        let mut call = decode::acquire_all(request.into_inner(), &self.limits)?;
        call.wait_ms = call.wait_ms.min(wait_max_ms);
        let lease = self.broker.acquire(CALLER, call).await?;
        let lease = Some(encode::lease(&lease));
        Ok(Response::new(AcquireAllResponse { lease }))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let (locks, release, via) = decode::release(request.into_inner(), &self.limits)?;
        let given_back = self.broker.release(&locks, release, via).await?;
        Ok(Response::new(encode::released(given_back)))
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let (shown, ttl) = decode::renew(request.into_inner(), &self.limits)?;
        let lease = Lease {
            locks: self.broker.renew(&shown.locks, ttl, Via::Anywhere).await?,
            lease_id: shown.lease_id,
            lease_token: shown.lease_token,
        };
        let lease = Some(encode::lease(&lease));
        Ok(Response::new(RenewResponse { lease }))
    }

    async fn hold(
        &self,
        _: Request<Streaming<HoldRequest>>,
    ) -> Result<Response<Self::HoldStream>, Status> {
        Err(status::not_yet("Hold, the lease stream,"))
    }

    async fn check_fencing_token(
        &self,
        request: Request<CheckFencingTokenRequest>,
    ) -> Result<Response<CheckFencingTokenResponse>, Status> {
        let (lock, token) = decode::check_fencing_token(request.into_inner())?;
        let remaining = self.broker.check_fencing_token(&lock, token).await;
        let remaining_ms = remaining.map_err(|error| status::of(&error, &lock))?;
        let remaining = Some(encode::duration(remaining_ms));
        Ok(Response::new(CheckFencingTokenResponse { remaining }))
    }
}
