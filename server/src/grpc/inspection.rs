//! InspectionService and AdminService: decode requests of callers and operators, and encode what the
//! domain service returns.

use futures::stream::{BoxStream, StreamExt as _};
use leasehold_proto::v1::{
    CloseLockRequest, CloseLockResponse, ForceReleaseLeaseRequest, ForceReleaseLeaseResponse,
    GetLockRequest, GetLockResponse, ListLocksRequest, ListLocksResponse, OpenLockRequest,
    OpenLockResponse, WatchLocksRequest, WatchLocksResponse, admin_service_server::AdminService,
    inspection_service_server::InspectionService,
};
use tonic::{Request, Response, Status};

use super::{decode, encode, take_context};
use crate::{inspection, lock::LockError, request::RequestError};

pub(super) struct InspectionServiceImpl(pub(super) inspection::InspectionService);

#[tonic::async_trait]
impl InspectionService for InspectionServiceImpl {
    type WatchLocksStream = BoxStream<'static, Result<WatchLocksResponse, Status>>;

    async fn get_lock(
        &self,
        mut request: Request<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        let context = take_context(&mut request)?;
        let lock = decode::get_lock(&request.into_inner())?;
        let state = self.0.get(&context, &lock).await?.ok_or_else(|| {
            let explanation =
                "the lock has no holders and no waiters, is not closed, and has no set limit";
            RequestError::explained(LockError::LeaseNotFound, &lock, explanation)
        })?;
        let lock = Some(encode::lock(&lock, state.mode(), &state));
        Ok(Response::new(GetLockResponse { lock }))
    }

    async fn list_locks(
        &self,
        mut request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        let context = take_context(&mut request)?;
        let request = decode::list_locks(request.into_inner());
        let page = self.0.list(&context, request).await?;
        Ok(Response::new(ListLocksResponse {
            locks: page.locks.iter().map(encode::listed_lock).collect(),
            next_page_token: page.next_page_token,
        }))
    }

    async fn watch_locks(
        &self,
        mut request: Request<WatchLocksRequest>,
    ) -> Result<Response<Self::WatchLocksStream>, Status> {
        let context = take_context(&mut request)?;
        let request = decode::watch_locks(request.into_inner());
        let events = self.0.watch(context, request).await?;
        let responses = events.map(|event| Ok(encode::event(event?)));
        Ok(Response::new(responses.boxed()))
    }
}

#[tonic::async_trait]
impl AdminService for InspectionServiceImpl {
    async fn force_release_lease(
        &self,
        mut request: Request<ForceReleaseLeaseRequest>,
    ) -> Result<Response<ForceReleaseLeaseResponse>, Status> {
        let context = take_context(&mut request)?;
        let command = decode::force_release(request.into_inner(), &context.limits)?;
        let (holder, queue_length) = self.0.revoke(&context, &command).await?;
        let holder = match holder {
            Some(holder) => encode::holder(&command.lock, &holder),
            None => encode::unknown_holder(&command.lock, command.lease_id),
        };
        Ok(Response::new(ForceReleaseLeaseResponse {
            holder: Some(holder),
            queue_length: encode::count(queue_length),
        }))
    }

    async fn close_lock(
        &self,
        mut request: Request<CloseLockRequest>,
    ) -> Result<Response<CloseLockResponse>, Status> {
        let context = take_context(&mut request)?;
        let command = decode::close_lock(request.into_inner(), &context)?;
        let closure = self.0.close(&context, &command).await?;
        let closure = Some(encode::closure(&closure));
        Ok(Response::new(CloseLockResponse { closure }))
    }

    async fn open_lock(
        &self,
        mut request: Request<OpenLockRequest>,
    ) -> Result<Response<OpenLockResponse>, Status> {
        let context = take_context(&mut request)?;
        let lock = decode::open_lock(request.into_inner())?;
        let closure = self.0.open(&context, &lock).await?;
        let closure = closure.as_ref().map(encode::closure);
        Ok(Response::new(OpenLockResponse { closure }))
    }
}
