//! InspectionService: reads, lists and watches locks without changing them.

use futures::stream::BoxStream;
use leasehold_proto::v1::{
    GetLockRequest, GetLockResponse, ListLocksRequest, ListLocksResponse, WatchLocksRequest,
    WatchLocksResponse, inspection_service_server::InspectionService,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{caller_of, decode, encode, listing, watch_stream};
use crate::{
    access::{AccessControl, Verb},
    broker::Broker,
    config::ReloadableConfig,
    lock::LockError,
    request::{RequestContext, RequestError},
};

pub(super) struct InspectionServiceImpl {
    pub(super) broker: Broker,
    pub(super) access: AccessControl,
    pub(super) live: watch::Receiver<ReloadableConfig>,
    /// Maximum size of a reply in bytes.
    pub(super) max_reply: usize,
}

impl InspectionServiceImpl {
    fn context<T>(&self, request: &Request<T>) -> Result<RequestContext, RequestError> {
        let (caller, peer) = caller_of(request)?;
        RequestContext::new(&self.access, self.live.borrow().limits, caller, peer)
    }
}

#[tonic::async_trait]
impl InspectionService for InspectionServiceImpl {
    type WatchLocksStream = BoxStream<'static, Result<WatchLocksResponse, Status>>;

    async fn get_lock(
        &self,
        request: Request<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        let context = self.context(&request)?;
        let lock = decode::get_lock(&request.into_inner(), &context)?;
        let state = self.broker.get(&lock).await;
        let state = state
            .map_err(|error| error.for_lock(&lock))?
            .ok_or_else(|| {
                let explanation = "the lock has no holders and no waiters";
                RequestError::explained(LockError::LeaseNotFound, &lock, explanation)
            })?;
        let lock = Some(encode::lock(&lock, &state));
        Ok(Response::new(GetLockResponse { lock }))
    }

    async fn list_locks(
        &self,
        request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        let context = self.context(&request)?;
        context.authorize_any(Verb::List)?;
        let call = decode::listing::list_locks(request.into_inner())?;
        let page = listing::page(&self.broker, &context, call, self.max_reply).await?;
        Ok(Response::new(page))
    }

    async fn watch_locks(
        &self,
        request: Request<WatchLocksRequest>,
    ) -> Result<Response<Self::WatchLocksStream>, Status> {
        let context = self.context(&request)?;
        context.authorize_any(Verb::List)?;
        let (filter, resumes) = decode::listing::watch_locks(request.into_inner())?;
        let watch = self.broker.watch(&context.caller.name).await;
        let watch = watch.map_err(RequestError::from)?;
        let lifetime = self.broker.stream_lifetime();
        Ok(Response::new(watch_stream::events(
            watch, lifetime, context, filter, resumes,
        )))
    }
}
