//! A span for each call of an admitted caller, from its headers to the headers of its answer: a unary call has been
//! done by then, and of a stream it is the opening.

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    middleware::Next,
    response::Response,
};
use data_encoding::BASE64_NOPAD;
use tonic::Status;

use crate::{
    grpc,
    lock::TraceParent,
    serve::methods::METHODS,
    trace::{Caller, Traced, Tracing},
};

/// Runs a call within its span, if it is to be traced.
pub(super) async fn trace(
    State(tracing): State<Tracing>,
    request: Request,
    next: Next,
) -> Response {
    let traced = begin(&tracing, &request);
    let answer = traced.clone().run(next.run(request)).await;
    if traced.is_recording() {
        let status = Status::from_header_map(answer.headers());
        grpc::traced::answered(&traced, status.as_ref());
    }
    traced.end();
    answer
}

fn begin(tracing: &Tracing, request: &Request) -> Traced {
    if !tracing.is_on() {
        return Traced::default();
    }
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
