//! A gRPC server that records the credential of each call and forwards the call to a broker.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::poll_fn,
    marker::PhantomData,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures::future::{BoxFuture, FutureExt as _};
use http::{Request, Response};
use leasehold_proto::v1::{
    inspection_service_server::InspectionServiceServer, lock_service_server::LockServiceServer,
};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Status,
    body::Body,
    codegen::Service,
    server::NamedService,
    transport::{Channel, Server, server::TcpIncoming},
};

use crate::client::unary::channel;

/// Values of the `authorization` metadata of all calls, by method.
pub type Credentials = BTreeMap<String, Vec<Option<String>>>;

type SharedCredentials = Arc<Mutex<Credentials>>;

/// A recording server, which stops when dropped.
#[derive(Debug)]
pub struct CredentialRecorder {
    addr: SocketAddr,
    recorded: SharedCredentials,
    _serving: AbortOnDropHandle<()>,
}

/// A forwarder for the calls of the service that `S` serves.
struct RecordingService<S> {
    broker: Channel,
    recorded: SharedCredentials,
    service: PhantomData<fn() -> S>,
}

impl CredentialRecorder {
    /// Starts a server in front of `broker`.
    pub async fn start(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (broker, seen) = (channel(broker), SharedCredentials::default());
        let server = Server::builder()
            .add_service(RecordingService::<LockServiceServer<()>>::new(
                &broker, &seen,
            ))
            .add_service(RecordingService::<InspectionServiceServer<()>>::new(
                &broker, &seen,
            ));
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let serving = server.serve_with_incoming(incoming);
        let serving = serving.map(|ended| ended.expect("it serves to its end"));
        Self {
            addr,
            recorded: seen,
            _serving: AbortOnDropHandle::new(tokio::spawn(serving)),
        }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the credentials recorded so far.
    #[must_use]
    pub fn recorded(&self) -> Credentials {
        locked(&self.recorded).clone()
    }
}

impl<S> RecordingService<S> {
    fn new(broker: &Channel, seen: &SharedCredentials) -> Self {
        Self {
            broker: broker.clone(),
            recorded: Arc::clone(seen),
            service: PhantomData,
        }
    }
}

impl<S> Clone for RecordingService<S> {
    fn clone(&self) -> Self {
        Self::new(&self.broker, &self.recorded)
    }
}

impl<S: NamedService> NamedService for RecordingService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for RecordingService<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let credential = request.headers().get("authorization");
        let credential = credential.map(|value| String::from_utf8_lossy(value.as_bytes()).into());
        let method = request.uri().path().to_owned();
        locked(&self.recorded)
            .entry(method)
            .or_default()
            .push(credential);
        let mut broker = self.broker.clone();
        let passed_on = async move {
            poll_fn(|context| broker.poll_ready(context)).await?;
            broker.call(request).await
        };
        let or_status = passed_on.map(|response: Result<_, tonic::transport::Error>| {
            Ok(response.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        });
        or_status.boxed()
    }
}

fn locked(seen: &Mutex<Credentials>) -> MutexGuard<'_, Credentials> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
