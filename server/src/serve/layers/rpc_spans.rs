//! Creates a span for each call of an authenticated caller, from the request's headers to the
//! response's headers. At the end of the span a unary call is complete, and a stream is open.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use axum::{extract::Request, http::HeaderMap, response::Response};
use data_encoding::BASE64_NOPAD;
use futures::future::{BoxFuture, FutureExt as _};
use tonic::Status;
use tower::{Layer, Service};

use crate::{
    grpc,
    lock::TraceParent,
    serve::methods::METHODS,
    trace::{RemoteParent, Span, Tracing},
};

/// Layer that creates the spans of a broker with tracing. Cheap to clone.
#[derive(Clone)]
pub(super) struct SpanLayer(pub(super) Tracing);

/// Service whose calls run within spans.
#[derive(Clone)]
pub(super) struct SpanService<S> {
    tracing: Tracing,
    inner: S,
}

impl<S> Layer<S> for SpanLayer {
    type Service = SpanService<S>;

    fn layer(&self, inner: S) -> SpanService<S> {
        let tracing = self.0.clone();
        SpanService { tracing, inner }
    }
}

impl<S> Service<Request> for SpanService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let span = begin(&self.tracing, &request);
        let response = self.inner.call(request);
        async move {
            let response = span.clone().run(response).await?;
            if span.is_recording() {
                let status = Status::from_header_map(response.headers());
                grpc::rpc_spans::record_response(&span, status.as_ref());
            }
            span.end();
            Ok(response)
        }
        .boxed()
    }
}

fn begin(tracing: &Tracing, request: &Request) -> Span {
    let method = METHODS.get(request.uri().path());
    match method.and_then(|method| method.span) {
        Some(name) => grpc::rpc_spans::start(tracing, name, caller(request.headers())),
        None => Span::default(),
    }
}

/// Reads the parent span from `traceparent`, or from the older `grpc-trace-bin`.
fn caller(headers: &HeaderMap) -> Option<RemoteParent> {
    let text = |name| headers.get(name)?.to_str().ok();
    let parent = text("traceparent").and_then(TraceParent::parse);
    let parent = parent.or_else(|| {
        let binary = text("grpc-trace-bin")?.trim_end_matches('=');
        TraceParent::from_binary(&BASE64_NOPAD.decode(binary.as_bytes()).ok()?)
    });
    Some(RemoteParent::new(parent?, text("tracestate")))
}
