//! Spans of the calls on a lease stream, each from the request message to the response.

use std::{collections::HashMap, sync::Arc};

use leasehold_proto::v1::{
    ErrorReason, HoldResponse, hold_request::Message as Request, hold_response::Message as Response,
};
use parking_lot::Mutex;
use tonic::Code;

use crate::{
    grpc::rpc_spans::{record_end, start},
    lock::TraceParent,
    trace::{RemoteParent, Span, Tracing},
};

/// The spans of unanswered calls, if tracing is enabled.
#[derive(Clone)]
pub(super) struct CallSpans(Option<Arc<Inner>>);

struct Inner {
    tracing: Tracing,
    open: Mutex<HashMap<i64, Span>>,
}

impl CallSpans {
    pub(super) fn new(tracing: &Tracing) -> Self {
        Self(tracing.is_on().then(|| {
            Arc::new(Inner {
                tracing: tracing.clone(),
                open: Mutex::default(),
            })
        }))
    }

    /// Starts a span if the message starts a call. A call with the id of an unanswered call will be
    /// rejected, and its span is not stored.
    pub(super) fn start(&self, message: &Request) -> Span {
        let (call_id, method, traceparent) = match message {
            Request::Acquire(request) => (
                request.call_id,
                "leasehold.v1.LockService/Hold Acquire",
                request.traceparent.as_str(),
            ),
            Request::AcquireAll(request) => (
                request.call_id,
                "leasehold.v1.LockService/Hold AcquireAll",
                request.traceparent.as_str(),
            ),
            Request::Attach(request) => {
                (request.call_id, "leasehold.v1.LockService/Hold Attach", "")
            }
            Request::Cancel(_)
            | Request::Release(_)
            | Request::Detach(_)
            | Request::Close(_)
            | Request::RefreshCredential(_)
            | Request::Heartbeat(_) => return Span::default(),
        };
        if !traceparent.is_empty() {
            tracing::debug!(call_id, traceparent, "a call on a lease stream");
        }
        let Some(inner) = &self.0 else {
            return Span::default();
        };
        let caller = TraceParent::parse(traceparent).map(|parent| RemoteParent::new(parent, None));
        let span = start(&inner.tracing, method, caller);
        if span.is_recording() {
            let mut open = inner.open.lock();
            open.entry(call_id).or_insert_with(|| span.clone());
        }
        span
    }

    /// Ends the span of a call if `response` answers one.
    pub(super) fn finish(&self, response: &HoldResponse) {
        let Some(inner) = &self.0 else {
            return;
        };
        let (call_id, code, reason) = match &response.message {
            Some(Response::Granted(message)) => (message.call_id, Code::Ok, None),
            Some(Response::Attached(message)) => (message.call_id, Code::Ok, None),
            Some(Response::Refused(message)) => {
                let reason = message.reason().as_str_name();
                let reason = reason.trim_start_matches("ERROR_REASON_");
                let is_known = message.reason() != ErrorReason::Unspecified;
                let code = Code::from_i32(message.code);
                (message.call_id, code, is_known.then_some(reason))
            }
            Some(
                Response::Queued(_)
                | Response::Ack(_)
                | Response::Released(_)
                | Response::Ended(_)
                | Response::ReleaseRequested(_)
                | Response::Reconnect(_)
                | Response::Done(_),
            )
            | None => return,
        };
        let Some(span) = inner.open.lock().remove(&call_id) else {
            return;
        };
        record_end(&span, code, reason);
        span.end();
    }
}
