//! InspectionService: reads, lists and watches locks without changing them.

use futures::stream::BoxStream;
use leasehold_proto::v1::{
    GetLockRequest, GetLockResponse, ListLocksRequest, ListLocksResponse, WatchLocksRequest,
    WatchLocksResponse, inspection_service_server::InspectionService,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{
    authorization::{Operation, RequestContext},
    decode, encode, listing, status, watch_stream,
};
use crate::{access::AccessControl, broker::Broker, config::ReloadableConfig};

pub(super) struct InspectionServiceImpl {
    pub(super) broker: Broker,
    pub(super) access: AccessControl,
    pub(super) live: watch::Receiver<ReloadableConfig>,
    /// Maximum size of a reply in bytes.
    pub(super) max_reply: usize,
}

impl InspectionServiceImpl {
    fn context<T>(&self, request: &Request<T>) -> Result<RequestContext, Status> {
        RequestContext::from_request(&self.access, self.live.borrow().limits, request)
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
        let lock = decode::get_lock(request.into_inner(), &context)?;
        let state = self.broker.get(&lock).await;
        let state = state.map_err(|error| status::from_lock_error(&error, &lock))?;
        let state = state.ok_or_else(|| status::idle_lock(&lock))?;
        let lock = Some(encode::lock(&lock, &state));
        Ok(Response::new(GetLockResponse { lock }))
    }

    async fn list_locks(
        &self,
        request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        let context = self.context(&request)?;
        context.authorize_any(Operation::ListLocks)?;
        let call = decode::listing::list_locks(request.into_inner())?;
        let page = listing::page(&self.broker, &context, call, self.max_reply).await?;
        Ok(Response::new(page))
    }

    async fn watch_locks(
        &self,
        request: Request<WatchLocksRequest>,
    ) -> Result<Response<Self::WatchLocksStream>, Status> {
        let context = self.context(&request)?;
        context.authorize_any(Operation::WatchLocks)?;
        let (filter, resumes) = decode::listing::watch_locks(request.into_inner())?;
        let watch = self.broker.watch(&context.caller.name).await;
        let watch = watch.map_err(|error| status::from_error(&error, None))?;
        let lifetime = self.broker.stream_lifetime();
        Ok(Response::new(watch_stream::events(
            watch, lifetime, context, filter, resumes,
        )))
    }
}
