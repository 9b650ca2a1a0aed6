//! Counts calls by what their answers say: the status comes with the headers of an answer that has no
//! message, and behind the messages of any other.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::HeaderMap,
    middleware::{Next, from_fn},
    response::Response,
};
use leasehold_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};
use tonic::service::Routes;

use super::traced::traced;
use crate::{
    metrics::{Calls, Counting, Kind, Method, Metrics},
    trace::Tracing,
};

/// A frame of a body, or that there is no more.
type Polled = Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>>;

/// The calls of all methods that a broker offers.
pub(super) fn calls(metrics: &Metrics) -> Calls {
    let sets = [FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET];
    let files = sets.into_iter().flat_map(|set| {
        let set = FileDescriptorSet::decode(set).unwrap_or_default();
        set.file
    });
    metrics.calls(files.flat_map(|file| {
        let package = file.package().to_owned();
        file.service.into_iter().flat_map(move |service| {
            let name = format!("{package}.{}", service.name());
            let methods = service.method.into_iter();
            methods.map(move |method| Method {
                service: name.clone(),
                name: method.name().to_owned(),
                kind: kind(&method),
            })
        })
    }))
}

fn kind(method: &MethodDescriptorProto) -> Kind {
    match (method.client_streaming(), method.server_streaming()) {
        (false, false) => Kind::Unary,
        (true, false) => Kind::ClientStream,
        (false, true) => Kind::ServerStream,
        (true, true) => Kind::BidiStream,
    }
}

/// The same, counted, and traced in the same go.
pub(super) fn counted(routes: Routes, calls: Calls, tracing: &Tracing) -> Routes {
    let tracing = tracing.clone();
    let count = from_fn(move |request: Request, next: Next| {
        let (counting, tracing) = (calls.begin(request.uri().path()), tracing.clone());
        async move {
            let answer = traced(&tracing, request, next).await;
            let Some(mut counting) = counting else {
                return answer;
            };
            begun(&mut counting, &answer);
            answer.map(|body| Body::new(Counted { body, counting }))
        }
    });
    routes.into_axum_router().layer(count).into()
}

/// An answer has begun, and may be over already.
pub(super) fn begun(counting: &mut Counting, answer: &Response) {
    if answer.headers().contains_key(STATUS) {
        counting.end(code(answer.headers()));
    }
}

/// An answer has gone on.
pub(super) fn went_on(counting: &mut Counting, polled: &Polled) {
    match polled {
        Poll::Pending => {}
        Poll::Ready(Some(Ok(frame))) => {
            if let Some(trailers) = frame.trailers_ref() {
                counting.end(code(trailers));
            }
        }
        Poll::Ready(Some(Err(_)) | None) => counting.end(None),
    }
}

const STATUS: &str = "grpc-status";

fn code(headers: &HeaderMap) -> Option<usize> {
    headers.get(STATUS)?.to_str().ok()?.parse().ok()
}

/// The answer of a call.
struct Counted {
    body: Body,
    counting: Counting,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        went_on(&mut self.counting, &polled);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
