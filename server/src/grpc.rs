//! gRPC API: decodes and authorizes each request, calls the broker, and encodes the result.

mod deadline;
mod decode;
pub(crate) mod early_rejections;
mod encode;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hold;
mod inspection;
pub(crate) mod rpc_spans;
mod status;

use std::{net::SocketAddr, sync::Arc};

use futures::stream::BoxStream;
use leasehold_proto::v1::{
    self as pb, AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse,
    CheckFencingTokenRequest, CheckFencingTokenResponse, HoldRequest, HoldResponse, ReleaseRequest,
    ReleaseResponse, RenewRequest, RenewResponse, SetLockLimitRequest, SetLockLimitResponse,
    admin_service_server::AdminServiceServer,
    inspection_service_server::InspectionServiceServer,
    lock_service_server::{LockService, LockServiceServer},
};
use parking_lot::Mutex;
use prost::{Message as _, encoding::encoded_len_varint};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status, Streaming};

use self::{decode::ReleaseCall, inspection::InspectionServiceImpl, status::ErrorResponse};
use crate::{
    access::{AuthError, Verb},
    broker::{Broker, Delivery, spans},
    config::{Http2, ReloadableConfig},
    inspection::{InspectionService, PageBounds},
    lock::{AcquireCall, ExpectedAttachment, Lease, LeaseRef, LockError, LockFailure},
    quotas::{SharedQuota, SharedQuotaPermit},
    request::{RequestContext, RequestError},
    trace::{Span, Tracing},
    transport::Peer,
};

/// Creates the `LockService` of `broker`.
pub fn lock_service(
    broker: Broker,
    inspection: InspectionService,
    live: watch::Receiver<ReloadableConfig>,
    tracing: Tracing,
    http2: &Http2,
) -> LockServiceServer<impl LockService> {
    let wait_limiter = ConnectionWaitLimiter::new(http2.max_concurrent_streams);
    let service = LockServiceImpl {
        broker,
        inspection,
        live,
        tracing,
        wait_limiter,
    };
    LockServiceServer::new(service)
        .max_decoding_message_size(to_usize(http2.max_request))
        .max_encoding_message_size(to_usize(http2.max_reply))
}

/// Creates the `InspectionService` of the API.
pub fn inspection_service(
    service: InspectionService,
    http2: &Http2,
) -> InspectionServiceServer<impl pb::inspection_service_server::InspectionService> {
    InspectionServiceServer::new(InspectionServiceImpl(service))
        .max_decoding_message_size(to_usize(http2.max_request))
        .max_encoding_message_size(to_usize(http2.max_reply))
}

/// Creates the `AdminService` of the API.
pub fn admin_service(
    service: InspectionService,
    http2: &Http2,
) -> AdminServiceServer<impl pb::admin_service_server::AdminService> {
    AdminServiceServer::new(InspectionServiceImpl(service))
        .max_decoding_message_size(to_usize(http2.max_request))
        .max_encoding_message_size(to_usize(http2.max_reply))
}

/// Returns the bounds with which a page of a list fits into a reply.
pub fn page_bounds(http2: &Http2) -> PageBounds {
    PageBounds {
        max_bytes: to_usize(http2.max_reply),
        size: |entry| {
            // A tag, a length, and the encoded lock.
            let length = encode::listed_lock(entry).encoded_len();
            1 + encoded_len_varint(u64::try_from(length).unwrap_or(u64::MAX)) + length
        },
    }
}

/// Takes the context that was created from the headers of a request out of its extensions.
///
/// # Errors
/// If there is none, or if the caller's credential has been withdrawn since, because the message of a
/// request may arrive long after its headers.
fn take_context<T>(request: &mut Request<T>) -> Result<RequestContext, RequestError> {
    let context = request.extensions_mut().remove::<RequestContext>();
    let context = context.ok_or(AuthError::InvalidCredential)?;
    context.check_credential()?;
    Ok(context)
}

/// Adds the presented lease and its locks to the current span.
fn record_span_locks(locks: &[LeaseRef]) {
    let span = Span::current();
    spans::record_locks(&span, locks.iter().map(|held| &held.lock));
    if let Some(held) = locks.first() {
        spans::lease_id(&span, held.lease_id);
    }
}

fn to_usize(size: u32) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// The delivery of a lease, as an extension of the response that contains the lease. It must be
/// confirmed once the complete response is sent. If it is dropped before, the client has
/// disconnected, and the lease is released.
#[derive(Clone)]
pub struct PendingDelivery(Arc<Mutex<Option<Delivery>>>);

/// Limit of waiting unary calls on each connection, which reserves some of its streams for the
/// releases that the calls wait for.
#[derive(Debug, Clone)]
struct ConnectionWaitLimiter {
    max: usize,
    /// Quota in which each connection is a caller.
    quota: SharedQuota,
}

struct LockServiceImpl {
    broker: Broker,
    /// Sets limits, which operators do as well.
    inspection: InspectionService,
    live: watch::Receiver<ReloadableConfig>,
    tracing: Tracing,
    wait_limiter: ConnectionWaitLimiter,
}

impl LockServiceImpl {
    /// Authorizes a decoded call and acquires its locks, or counts a call that was rejected before it
    /// reached the broker.
    async fn acquire_lease(
        &self,
        call: Result<AcquireCall, RequestError>,
        context: &RequestContext,
        wait_max_ms: u64,
    ) -> Result<Delivery, Status> {
        let authorized = call.and_then(|call| {
            context.authorize_acquire(&call)?;
            Ok(call)
        });
        let mut call = authorized.inspect_err(|error| {
            let is_denied = matches!(error, RequestError::Denied(..));
            self.broker.metrics().acquire_rejected(is_denied);
        })?;
        call.wait_ms = call.wait_ms.min(wait_max_ms);
        let caller = &context.caller.name;
        let redact_error = |result: Result<_, LockFailure>| {
            result.map_err(|failure| Status::from(context.redact_holders(failure)))
        };
        if call.wait_ms == 0 {
            return redact_error(self.broker.acquire_undelivered(caller, call).await);
        }
        let _wait = self.wait_limiter.acquire(context.peer)?;
        let locks: Vec<_> = call
            .targets
            .iter()
            .map(|target| target.lock.clone())
            .collect();
        // Dropping the offer cancels the wait, as if the client had cancelled the call.
        tokio::select! {
            biased;
            error = context.until_withdrawn(Verb::Acquire, &locks) => Err(error.into()),
            delivery = self.broker.acquire_undelivered(caller, call) => redact_error(delivery),
        }
    }
}

#[tonic::async_trait]
impl LockService for LockServiceImpl {
    type HoldStream = BoxStream<'static, Result<HoldResponse, Status>>;

    async fn acquire(
        &self,
        mut request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let context = take_context(&mut request)?;
        let wait_max_ms = deadline::wait_max_ms(request.metadata());
        let call = decode::acquire(request.into_inner(), &context.limits);
        let delivery = self.acquire_lease(call, &context, wait_max_ms).await?;
        let lease = Some(encode::lease(delivery.lease()));
        Ok(PendingDelivery::response(
            AcquireResponse { lease },
            delivery,
        ))
    }

    async fn acquire_all(
        &self,
        mut request: Request<AcquireAllRequest>,
    ) -> Result<Response<AcquireAllResponse>, Status> {
        let context = take_context(&mut request)?;
        let wait_max_ms = deadline::wait_max_ms(request.metadata());
        let call = decode::acquire_all(request.into_inner(), &context.limits);
        let delivery = self.acquire_lease(call, &context, wait_max_ms).await?;
        let lease = Some(encode::lease(delivery.lease()));
        Ok(PendingDelivery::response(
            AcquireAllResponse { lease },
            delivery,
        ))
    }

    async fn release(
        &self,
        mut request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let context = take_context(&mut request)?;
        let ReleaseCall {
            lease,
            scope,
            expected_attachment,
        } = decode::release(request.into_inner(), &context.limits)?;
        context.authorize_presented(&lease)?;
        record_span_locks(&lease.locks);
        let result = self
            .broker
            .release(&lease.locks, scope, expected_attachment)
            .await?;
        Ok(Response::new(encode::released(result)))
    }

    async fn renew(
        &self,
        mut request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let context = take_context(&mut request)?;
        let (presented, ttl) = decode::renew(request.into_inner(), &context.limits)?;
        context.authorize_presented(&presented)?;
        record_span_locks(&presented.locks);
        let lease = Lease {
            locks: self
                .broker
                .renew(&presented.locks, ttl, ExpectedAttachment::Any)
                .await?,
            lease_id: presented.lease_id,
            lease_token: presented.lease_token,
        };
        let lease = Some(encode::lease(&lease));
        Ok(Response::new(RenewResponse { lease }))
    }

    async fn hold(
        &self,
        mut request: Request<Streaming<HoldRequest>>,
    ) -> Result<Response<Self::HoldStream>, Status> {
        let context = take_context(&mut request)?;
        if self.broker.is_draining() {
            return Err(RequestError::from(LockError::Draining).into());
        }
        let peer = request.extensions().get::<Peer>();
        let load = peer.map(|peer| Arc::clone(&peer.load));
        let stream = hold::serve(
            &self.broker,
            context,
            self.live.clone(),
            &self.tracing,
            request.into_inner(),
            load,
        )?;
        Ok(Response::new(stream))
    }

    async fn check_fencing_token(
        &self,
        mut request: Request<CheckFencingTokenRequest>,
    ) -> Result<Response<CheckFencingTokenResponse>, Status> {
        let context = take_context(&mut request)?;
        let (lock, token) = decode::check_fencing_token(request.into_inner())?;
        context.authorize(Verb::Observe, [&lock])?;
        let remaining = self.broker.check_fencing_token(&lock, token).await;
        let remaining_ms = remaining.map_err(|error| error.for_lock(&lock))?;
        let remaining = Some(encode::duration(remaining_ms));
        Ok(Response::new(CheckFencingTokenResponse { remaining }))
    }

    async fn set_lock_limit(
        &self,
        mut request: Request<SetLockLimitRequest>,
    ) -> Result<Response<SetLockLimitResponse>, Status> {
        let context = take_context(&mut request)?;
        let (lock, limit) = decode::set_lock_limit(request.into_inner())?;
        let previous = self.inspection.set_limit(&context, &lock, limit).await?;
        Ok(Response::new(SetLockLimitResponse {
            previous_limit: encode::count(previous.unwrap_or(0)),
        }))
    }
}

impl ConnectionWaitLimiter {
    /// Creates a limit of three quarters of the streams of a connection.
    fn new(max_concurrent_streams: u32) -> Self {
        let streams = usize::try_from(max_concurrent_streams).unwrap_or(usize::MAX);
        let max = streams / 4 * 3;
        Self {
            max,
            quota: SharedQuota::new(max, usize::MAX),
        }
    }

    /// Counts a waiting call on the connection from `peer` until the permit is dropped, or rejects
    /// it at the limit. Returns `None` without a connection.
    fn acquire(&self, peer: Option<SocketAddr>) -> Result<Option<SharedQuotaPermit>, Status> {
        let permit = peer.map(|peer| self.quota.try_acquire(&peer.to_string().into()));
        permit.transpose().map_err(|_| {
            let message = format!(
                "{} calls wait on this connection, three quarters of its streams; wait on a lease \
                 stream (Hold), or on another connection",
                self.max
            );
            let (code, reason) = (Code::ResourceExhausted, pb::ErrorReason::QuotaExceeded);
            ErrorResponse::new(code, reason, message).into()
        })
    }
}

impl PendingDelivery {
    /// Creates a response that contains the lease.
    fn response<T>(message: T, delivery: Delivery) -> Response<T> {
        let mut response = Response::new(message);
        let delivery = Arc::new(Mutex::new(Some(delivery)));
        response.extensions_mut().insert(Self(delivery));
        response
    }

    /// Takes the delivery out of the extension. Returns `None` if that was done before.
    pub fn take(&self) -> Option<Delivery> {
        self.0.lock().take()
    }
}
