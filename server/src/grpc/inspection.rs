//! InspectionService: looking, without touching.

use futures::stream::BoxStream;
use leasehold_proto::v1::{
    GetLockRequest, GetLockResponse, ListLocksRequest, ListLocksResponse, WatchLocksRequest,
    WatchLocksResponse, inspection_service_server::InspectionService,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{
    admit::{Ask, Asking},
    decode, encode, listing, status, watching,
};
use crate::{access::Gate, broker::Broker, config::Live};

pub(super) struct Inspection {
    pub(super) broker: Broker,
    pub(super) gate: Gate,
    pub(super) live: watch::Receiver<Live>,
    /// Bytes of a reply.
    pub(super) max_reply: usize,
}

impl Inspection {
    fn asking<T>(&self, request: &Request<T>) -> Result<Asking, Status> {
        Asking::by(&self.gate, self.live.borrow().limits, request)
    }
}

#[tonic::async_trait]
impl InspectionService for Inspection {
    type WatchLocksStream = BoxStream<'static, Result<WatchLocksResponse, Status>>;

    async fn get_lock(
        &self,
        request: Request<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        let asking = self.asking(&request)?;
        let lock = decode::get_lock(request.into_inner(), &asking)?;
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
        let asking = self.asking(&request)?;
        asking.some(Ask::ListLocks)?;
        let call = decode::listing::list_locks(request.into_inner())?;
        let page = listing::page(&self.broker, &asking, call, self.max_reply).await?;
        Ok(Response::new(page))
    }

    async fn watch_locks(
        &self,
        request: Request<WatchLocksRequest>,
    ) -> Result<Response<Self::WatchLocksStream>, Status> {
        let asking = self.asking(&request)?;
        asking.some(Ask::WatchLocks)?;
        let (filter, resumes) = decode::listing::watch_locks(request.into_inner())?;
        let watch = self.broker.watch(&asking.caller.name).await;
        let watch = watch.map_err(|error| status::of_all(&error, None))?;
        let watch = (watch, self.broker.stream_lifetime());
        Ok(Response::new(watching::events(
            watch, asking, filter, resumes,
        )))
    }
}
