//! The gRPC edge: each call is parsed once, handed to the broker, and its outcome encoded.

mod admin;
mod admit;
mod decode;
mod delivery;
mod desk;
pub(crate) mod early;
mod encode;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hold;
mod inspection;
mod listing;
mod operator;
mod status;
mod timeout;
pub(crate) mod traced;
mod waits;
mod watching;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use futures::stream::BoxStream;
use leasehold_proto::v1::{
    self as pb, AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse,
    CheckFencingTokenRequest, CheckFencingTokenResponse, HoldRequest, HoldResponse, ReleaseRequest,
    ReleaseResponse, RenewRequest, RenewResponse,
    admin_service_server::AdminServiceServer,
    inspection_service_server::InspectionServiceServer,
    lock_service_server::{LockService, LockServiceServer},
};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

pub(crate) use self::{admit::authenticate, operator::Operator};
use self::{
    admit::{Ask, Asking},
    status::Refused,
    waits::Waits,
};
pub use self::{
    delivery::OnDelivery,
    desk::{Desk, Refusal, Visitor},
};
use crate::{
    access::Gate,
    broker::{Broker, Delivery, traced as spans},
    config::{Http2, Live},
    lock::{AcquireCall, Failed, Lease, LeaseRef, LockError, Via},
    trace::{Traced, Tracing},
    transport::Peer,
};

/// `LockService` on `broker`, for whom `gate` lets in.
pub fn lock_service(
    broker: Broker,
    gate: Gate,
    (live, tracing): (watch::Receiver<Live>, Tracing),
    http2: &Http2,
) -> LockServiceServer<impl LockService> {
    let waits = Waits::new(http2.max_concurrent_streams);
    let locks = Locks {
        broker,
        gate,
        live,
        tracing,
        waits,
    };
    LockServiceServer::new(locks)
        .max_decoding_message_size(bytes(http2.max_request))
        .max_encoding_message_size(bytes(http2.max_reply))
}

/// `InspectionService` on `broker`.
pub fn inspection_service(
    broker: Broker,
    gate: Gate,
    live: watch::Receiver<Live>,
    http2: &Http2,
) -> InspectionServiceServer<impl pb::inspection_service_server::InspectionService> {
    InspectionServiceServer::new(inspection::Inspection {
        broker,
        gate,
        live,
        max_reply: bytes(http2.max_reply),
    })
    .max_decoding_message_size(bytes(http2.max_request))
    .max_encoding_message_size(bytes(http2.max_reply))
}

/// `AdminService` on `broker`, once there is one.
pub fn admin_service(
    broker: Arc<OnceLock<Broker>>,
    gate: Gate,
    live: watch::Receiver<Live>,
    http2: &Http2,
) -> AdminServiceServer<impl pb::admin_service_server::AdminService> {
    AdminServiceServer::new(admin::Admin { broker, gate, live })
        .max_decoding_message_size(bytes(http2.max_request))
        .max_encoding_message_size(bytes(http2.max_reply))
}

/// Where a call is from; `None` only without a connection.
fn address<T>(request: &Request<T>) -> Option<SocketAddr> {
    let peer = request.extensions().get::<Peer>();
    peer.map(|peer| peer.address)
}

/// Notes the lease that a call shows.
fn note(locks: &[LeaseRef]) {
    let traced = Traced::current();
    spans::about(&traced, locks.iter().map(|held| &held.lock));
    if let Some(held) = locks.first() {
        spans::lease_id(&traced, held.lease_id);
    }
}

fn bytes(size: u32) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

struct Locks {
    broker: Broker,
    gate: Gate,
    live: watch::Receiver<Live>,
    tracing: Tracing,
    waits: Waits,
}

impl Locks {
    fn asking<T>(&self, request: &Request<T>) -> Result<Asking, Status> {
        Asking::by(&self.gate, self.live.borrow().limits, request)
    }

    /// What was to be an acquire is none.
    fn not_begun(&self, refused: &Refused) {
        let is_denied = matches!(refused, Refused::Denied(..));
        self.broker.metrics().not_begun(is_denied);
    }

    async fn take(
        &self,
        mut call: AcquireCall,
        asking: &Asking,
        (wait_max_ms, peer): (u64, Option<SocketAddr>),
    ) -> Result<Delivery, Status> {
        call.wait_ms = call.wait_ms.min(wait_max_ms);
        let caller = &asking.caller.name;
        let offered = |offered: Result<_, Failed>| {
            offered.map_err(|failed| Status::from(asking.veiled(failed)))
        };
        if call.wait_ms == 0 {
            return offered(self.broker.offer(caller, call).await);
        }
        let _wait = self.waits.begin(peer)?;
        let locks: Vec<_> = call
            .targets
            .iter()
            .map(|target| target.lock.clone())
            .collect();
        // A wait that is dropped is given up as that of a client that cancels its call.
        tokio::select! {
            biased;
            refused = asking.until_withdrawn(Ask::Acquire, &locks) => Err(refused),
            delivery = self.broker.offer(caller, call) => offered(delivery),
        }
    }
}

#[tonic::async_trait]
impl LockService for Locks {
    type HoldStream = BoxStream<'static, Result<HoldResponse, Status>>;

    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let asking = self.asking(&request)?;
        let from = (timeout::wait_max_ms(request.metadata()), address(&request));
        let call = decode::acquire(request.into_inner(), &asking);
        let call = call.inspect_err(|refused| self.not_begun(refused))?;
        let delivery = self.take(call, &asking, from).await?;
        let lease = Some(encode::lease(delivery.lease()));
        Ok(OnDelivery::with(AcquireResponse { lease }, delivery))
    }

    async fn acquire_all(
        &self,
        request: Request<AcquireAllRequest>,
    ) -> Result<Response<AcquireAllResponse>, Status> {
        let asking = self.asking(&request)?;
        let from = (timeout::wait_max_ms(request.metadata()), address(&request));
        let call = decode::acquire_all(request.into_inner(), &asking);
        let call = call.inspect_err(|refused| self.not_begun(refused))?;
        let delivery = self.take(call, &asking, from).await?;
        let lease = Some(encode::lease(delivery.lease()));
        Ok(OnDelivery::with(AcquireAllResponse { lease }, delivery))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let asking = self.asking(&request)?;
        let (locks, release, via) = decode::release(request.into_inner(), &asking)?;
        note(&locks);
        let given_back = self.broker.release(&locks, release, via).await?;
        Ok(Response::new(encode::released(given_back)))
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let asking = self.asking(&request)?;
        let (shown, ttl) = decode::renew(request.into_inner(), &asking)?;
        note(&shown.locks);
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
        request: Request<Streaming<HoldRequest>>,
    ) -> Result<Response<Self::HoldStream>, Status> {
        let asking = self.asking(&request)?;
        if self.broker.is_draining() {
            return Err(status::of_all(&LockError::Draining, None));
        }
        let peer = request.extensions().get::<Peer>();
        let load = peer.map(|peer| Arc::clone(&peer.load));
        let stream = hold::serve(
            &self.broker,
            asking,
            (self.live.clone(), &self.tracing),
            (request.into_inner(), load),
        )?;
        Ok(Response::new(stream))
    }

    async fn check_fencing_token(
        &self,
        request: Request<CheckFencingTokenRequest>,
    ) -> Result<Response<CheckFencingTokenResponse>, Status> {
        let asking = self.asking(&request)?;
        let (lock, token) = decode::check_fencing_token(request.into_inner(), &asking)?;
        let remaining = self.broker.check_fencing_token(&lock, token).await;
        let remaining_ms = remaining.map_err(|error| status::of(&error, &lock))?;
        let remaining = Some(encode::duration(remaining_ms));
        Ok(Response::new(CheckFencingTokenResponse { remaining }))
    }
}
