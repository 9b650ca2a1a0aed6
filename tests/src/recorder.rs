//! A gRPC server that notes the credential of each call and passes the call on to a broker.

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

use crate::client::channel;

/// What `authorization` said in each call, by the called method.
pub type Credentials = BTreeMap<String, Vec<Option<String>>>;

type Shared = Arc<Mutex<Credentials>>;

/// Ends when dropped.
#[derive(Debug)]
pub struct Recorder {
    addr: SocketAddr,
    seen: Shared,
    _serving: AbortOnDropHandle<()>,
}

/// The calls of the service that `S` serves.
struct Recording<S> {
    broker: Channel,
    seen: Shared,
    service: PhantomData<fn() -> S>,
}

impl Recorder {
    /// Before `broker`.
    pub async fn start(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        let (broker, seen) = (channel(broker), Shared::default());
        let server = Server::builder()
            .add_service(Recording::<LockServiceServer<()>>::new(&broker, &seen))
            .add_service(Recording::<InspectionServiceServer<()>>::new(
                &broker, &seen,
            ));
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let serving = server.serve_with_incoming(incoming);
        let serving = serving.map(|ended| ended.expect("it serves to its end"));
        Self {
            addr,
            seen,
            _serving: AbortOnDropHandle::new(tokio::spawn(serving)),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it has seen so far.
    #[must_use]
    pub fn seen(&self) -> Credentials {
        locked(&self.seen).clone()
    }
}

impl<S> Recording<S> {
    fn new(broker: &Channel, seen: &Shared) -> Self {
        Self {
            broker: broker.clone(),
            seen: Arc::clone(seen),
            service: PhantomData,
        }
    }
}

impl<S> Clone for Recording<S> {
    fn clone(&self) -> Self {
        Self::new(&self.broker, &self.seen)
    }
}

impl<S: NamedService> NamedService for Recording<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Recording<S> {
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
        locked(&self.seen)
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
