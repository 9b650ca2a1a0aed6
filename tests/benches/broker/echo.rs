//! Cost of gRPC alone: a server that responds to each call at once, with messages of the same size.

use std::net::Ipv4Addr;
use std::pin::Pin;

use futures::stream::{Stream, StreamExt as _};
use leasehold_proto::v1::lock_service_server::{LockService, LockServiceServer};
use leasehold_proto::v1::{
    AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse,
    CheckFencingTokenRequest, CheckFencingTokenResponse, Grant, Granted, HoldRequest, HoldResponse,
    Lease, LockTarget, ReleaseRequest, ReleaseResponse, Released, RenewRequest, RenewResponse,
    SetLockLimitRequest, SetLockLimitResponse, hold_request::Message as Told,
    hold_response::Message as Answer,
};
use prost_types::{Duration, Timestamp};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming, async_trait};

/// Argument that makes this program the echo server.
pub(crate) const ARGUMENT: &str = "--echo";
/// Text that the echo server prints before its address.
pub(crate) const LISTENING: &str = "listening on ";

/// Serves until the process is killed.
pub(crate) async fn serve() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bind a free port");
    println!(
        "{LISTENING}{}",
        listener.local_addr().expect("a bound address")
    );
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().add_service(LockServiceServer::new(Echo { lease: lease() }));
    server.serve_with_incoming(incoming).await.expect("serve");
}

struct Echo {
    lease: Lease,
}

#[async_trait]
impl LockService for Echo {
    async fn acquire(
        &self,
        _: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        Ok(Response::new(AcquireResponse {
            lease: Some(self.lease.clone()),
        }))
    }

    async fn release(
        &self,
        _: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        Ok(Response::new(ReleaseResponse::default()))
    }

    async fn acquire_all(
        &self,
        _: Request<AcquireAllRequest>,
    ) -> Result<Response<AcquireAllResponse>, Status> {
        Err(unused())
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        Err(unused())
    }

    type HoldStream = Pin<Box<dyn Stream<Item = Result<HoldResponse, Status>> + Send>>;

    /// Sends one message for each request, in the stream's own task.
    async fn hold(
        &self,
        request: Request<Streaming<HoldRequest>>,
    ) -> Result<Response<Self::HoldStream>, Status> {
        let lease = self.lease.clone();
        let answers = request.into_inner();
        let answers = answers.map(move |request| Ok(answer(request?, &lease)));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn check_fencing_token(
        &self,
        _: Request<CheckFencingTokenRequest>,
    ) -> Result<Response<CheckFencingTokenResponse>, Status> {
        Err(unused())
    }

    async fn set_lock_limit(
        &self,
        _: Request<SetLockLimitRequest>,
    ) -> Result<Response<SetLockLimitResponse>, Status> {
        Err(unused())
    }
}

/// Returns the response of a broker to a request without contention.
fn answer(request: HoldRequest, lease: &Lease) -> HoldResponse {
    let message = match request.message {
        Some(Told::Acquire(acquire)) => Some(Answer::Granted(Granted {
            call_id: acquire.call_id,
            lease: Some(lease.clone()),
            as_of_sequence: 0,
        })),
        Some(Told::Release(release)) => Some(Answer::Released(Released {
            call_id: release.call_id,
            ..Released::default()
        })),
        Some(
            Told::AcquireAll(_)
            | Told::Cancel(_)
            | Told::Attach(_)
            | Told::Heartbeat(_)
            | Told::Detach(_)
            | Told::Close(_)
            | Told::RefreshCredential(_),
        )
        | None => None,
    };
    HoldResponse { message }
}

fn unused() -> Status {
    Status::unimplemented("the benchmark acquires and releases")
}

fn lease() -> Lease {
    let target = LockTarget {
        namespace: "default".to_owned(),
        name: "bench/pair/100".to_owned(),
        mode: 1,
        permits: 0,
        limit: 0,
    };
    let grant = Grant {
        target: Some(target),
        fencing_token: 1_795_179_202_919_735,
        acquire_time: Some(Timestamp {
            seconds: 1_795_179_202,
            nanos: 919_000_000,
        }),
        hold_count: 1,
    };
    Lease {
        lease_id: "a".repeat(26),
        lease_token: "a".repeat(52),
        grants: vec![grant],
        ttl: Some(Duration {
            seconds: 10,
            nanos: 0,
        }),
        heartbeat_interval: Some(Duration {
            seconds: 3,
            nanos: 333_000_000,
        }),
        expire_time: Some(Timestamp {
            seconds: 1_795_179_212,
            nanos: 919_000_000,
        }),
    }
}
