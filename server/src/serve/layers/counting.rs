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
    response::Response,
};

use super::small::Around;
use crate::{
    metrics::{Calls, Counting, Metrics},
    serve::methods::METHODS,
};

const STATUS: &str = "grpc-status";

/// Returns the counters of all methods that a broker offers.
pub(super) fn calls(metrics: &Metrics) -> Calls {
    metrics.calls(METHODS.values().map(|method| method.counted.clone()))
}

/// Counts a call, from its headers to the end of its answer.
impl Around for Calls {
    type Noted = Option<Counting>;

    fn begin(&self, request: &mut Request) -> Option<Counting> {
        Calls::begin(self, request.uri().path())
    }

    fn end(counting: Option<Counting>, answer: Response) -> Response {
        let Some(mut counting) = counting else {
            return answer;
        };
        if answer.headers().contains_key(STATUS) {
            counting.end(code(answer.headers()));
        }
        answer.map(|body| Body::new(Counted { body, counting }))
    }
}

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

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.counting.end(code(trailers));
                }
            }
            Poll::Ready(Some(Err(_)) | None) => self.counting.end(None),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
