//! A span for each call, from its headers to the headers of its answer: a unary call has been done by then, and of a
//! stream it is the opening.

use std::{collections::HashMap, sync::LazyLock};

use axum::{extract::Request, http::HeaderMap, middleware::Next, response::Response};
use data_encoding::BASE64_NOPAD;
use leasehold_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::Status;

use crate::{
    grpc,
    lock::TraceParent,
    trace::{Caller, Traced, Tracing},
};

/// The methods of the API by the paths of their calls.
static METHODS: LazyLock<HashMap<String, &'static str>> = LazyLock::new(methods);

/// Goes on with a call, traced if it is to be.
pub(super) async fn traced(tracing: &Tracing, request: Request, next: Next) -> Response {
    let traced = begin(tracing, &request);
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
    match METHODS.get(request.uri().path()) {
        Some(method) => grpc::traced::begin(tracing, method, caller(request.headers())),
        // Health and reflection: nobody waits for them.
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

fn methods() -> HashMap<String, &'static str> {
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap_or_default();
    let mut methods = HashMap::new();
    for file in &files.file {
        for service in &file.service {
            for method in &service.method {
                let name = format!("{}.{}/{}", file.package(), service.name(), method.name());
                // Spans keep them; they are made once in the life of the process.
                methods.insert(format!("/{name}"), &*name.leak());
            }
        }
    }
    methods
}
