//! A span for each call of an admitted caller, from its headers to the headers of its answer: a unary call has been
//! done by then, and of a stream it is the opening.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use axum::{extract::Request, http::HeaderMap, response::Response};
use data_encoding::BASE64_NOPAD;
use futures::future::{BoxFuture, Either, FutureExt as _};
use tonic::Status;
use tower::{Layer, Service};

use crate::{
    grpc,
    lock::TraceParent,
    serve::methods::METHODS,
    trace::{Caller, Traced, Tracing},
};

/// The layer, for the spans of a broker. Cheap to clone.
#[derive(Clone)]
pub(super) struct Spans(pub(super) Tracing);

/// A service whose calls run within their spans, if they are to be traced.
#[derive(Clone)]
pub(super) struct InSpans<S> {
    tracing: Tracing,
    inner: S,
}

impl<S> Layer<S> for Spans {
    type Service = InSpans<S>;

    fn layer(&self, inner: S) -> InSpans<S> {
        let tracing = self.0.clone();
        InSpans { tracing, inner }
    }
}

impl<S> Service<Request> for InSpans<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if !self.tracing.is_on() {
            return Either::Left(self.inner.call(request));
        }
        let traced = begin(&self.tracing, &request);
        let answer = self.inner.call(request);
        let in_span = async move {
            let answer = traced.clone().run(answer).await?;
            if traced.is_recording() {
                let status = Status::from_header_map(answer.headers());
                grpc::traced::answered(&traced, status.as_ref());
            }
            traced.end();
            Ok(answer)
        };
        Either::Right(in_span.boxed())
    }
}

fn begin(tracing: &Tracing, request: &Request) -> Traced {
    let method = METHODS.get(request.uri().path());
    match method.and_then(|method| method.span) {
        Some(name) => grpc::traced::begin(tracing, name, caller(request.headers())),
        None => Traced::default(),
    }
}

/// The two ways in which callers of gRPC tell their trace; the newer one counts.
fn caller(headers: &HeaderMap) -> Option<Caller> {
    let text = |name| headers.get(name)?.to_str().ok();
    let parent = text("traceparent").and_then(TraceParent::parse);
    let parent = parent.or_else(|| {
        let binary = text("grpc-trace-bin")?.trim_end_matches('=');
        TraceParent::from_binary(&BASE64_NOPAD.decode(binary.as_bytes()).ok()?)
    });
    Some(Caller::new(parent?, text("tracestate")))
}
