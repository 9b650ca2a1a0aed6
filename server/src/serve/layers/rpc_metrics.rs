//! Counts calls by their gRPC status, which is in the headers of a response without messages and in
//! the trailers of any other.

use std::{
    ops::ControlFlow,
    task::{Context, Poll},
};

use axum::{extract::Request, http::HeaderMap, response::Response};

use super::hooks::{PolledFrame, RequestResponseHook, hooked_body};
use crate::{
    metrics::{CallInProgress, Calls, Metrics},
    serve::methods::METHODS,
};

const STATUS: &str = "grpc-status";

/// Creates the counters of all offered methods.
pub(super) fn rpc_metrics(metrics: &Metrics) -> Calls {
    metrics.calls(METHODS.values().map(|method| method.metrics.clone()))
}

/// Counts each call from its headers to the end of its response.
impl RequestResponseHook for Calls {
    type State = Option<CallInProgress>;

    fn on_request(&self, request: &mut Request) -> ControlFlow<Response, Self::State> {
        ControlFlow::Continue(Calls::start(self, request.uri().path()))
    }

    fn on_response(counting: Option<CallInProgress>, response: Response) -> Response {
        let Some(mut counting) = counting else {
            return response;
        };
        if response.headers().contains_key(STATUS) {
            counting.end(code(response.headers()));
        }
        let count = move |polled: PolledFrame, _: &mut Context<'_>| {
            match &polled {
                Poll::Pending => {}
                Poll::Ready(Some(Ok(frame))) => {
                    if let Some(trailers) = frame.trailers_ref() {
                        counting.end(code(trailers));
                    }
                }
                Poll::Ready(Some(Err(_)) | None) => counting.end(None),
            }
            polled
        };
        response.map(|body| hooked_body(body, count))
    }
}

fn code(headers: &HeaderMap) -> Option<usize> {
    headers.get(STATUS)?.to_str().ok()?.parse().ok()
}
