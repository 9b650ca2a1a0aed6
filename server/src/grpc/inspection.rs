//! InspectionService: looking, without touching.

use futures::stream::BoxStream;
use leasehold_proto::v1::{
    GetLockRequest, GetLockResponse, ListLocksRequest, ListLocksResponse, WatchLocksRequest,
    WatchLocksResponse, inspection_service_server::InspectionService,
};
use tonic::{Request, Response, Status};

use super::{decode, encode, listing, status, watching};
use crate::broker::Broker;

pub(super) struct Inspection {
    broker: Broker,
    /// Bytes of a reply.
    max_reply: usize,
}

impl Inspection {
    pub(super) fn new(broker: Broker, max_reply: usize) -> Self {
        Self { broker, max_reply }
    }
}

#[tonic::async_trait]
impl InspectionService for Inspection {
    type WatchLocksStream = BoxStream<'static, Result<WatchLocksResponse, Status>>;

    async fn get_lock(
        &self,
        request: Request<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        let lock = decode::get_lock(request.into_inner())?;
        let state = self.broker.get(&lock).await;
        let state = state.map_err(|error| status::of(&error, &lock))?;
        let state = state.ok_or_else(|| status::idle_lock(&lock))?;
        let lock = Some(encode::lock(&lock, &state));
        Ok(Response::new(GetLockResponse { lock }))
    }

    async fn list_locks(
        &self,
        request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        let call = decode::listing::list_locks(request.into_inner())?;
        let page = listing::page(&self.broker, call, self.max_reply).await?;
        Ok(Response::new(page))
    }

    async fn watch_locks(
        &self,
        request: Request<WatchLocksRequest>,
    ) -> Result<Response<Self::WatchLocksStream>, Status> {
        let (filter, resumes) = decode::listing::watch_locks(request.into_inner())?;
        let watch = self.broker.watch().await;
        let watch = watch.map_err(|error| status::of_all(&error, None))?;
        Ok(Response::new(watching::events(watch, filter, resumes)))
    }
}
