//! Counts calls by what their answers say: the status comes with the headers of an answer that has no
//! message, and behind the messages of any other.

use std::task::{Context, Poll};

use axum::{extract::Request, http::HeaderMap, response::Response};

use super::{
    hooked::{Hook, PolledFrame, hooked},
    small::Around,
};
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
        answer.map(|body| hooked(body, counting))
    }
}

fn code(headers: &HeaderMap) -> Option<usize> {
    headers.get(STATUS)?.to_str().ok()?.parse().ok()
}

impl Hook for Counting {
    fn polled(&mut self, polled: PolledFrame, _: &mut Context<'_>) -> PolledFrame {
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.end(code(trailers));
                }
            }
            Poll::Ready(Some(Err(_)) | None) => self.end(None),
        }
        polled
    }
}
