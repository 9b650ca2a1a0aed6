//! The spans of the calls on a lease stream: each from the message that asks to the one that answers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold_proto::v1::{
    ErrorReason, HoldResponse, hold_request::Message as Ask, hold_response::Message as Told,
};
use tonic::Code;

use crate::{
    grpc::traced::{begin, ended},
    lock::TraceParent,
    trace::{Caller, Traced, Tracing},
};

/// Those without an answer, if anything is traced.
#[derive(Clone)]
pub(super) struct Calls(Option<Arc<On>>);

struct On {
    tracing: Tracing,
    open: Mutex<HashMap<i64, Traced>>,
}

impl Calls {
    pub(super) fn new(tracing: &Tracing) -> Self {
        Self(tracing.is_on().then(|| {
            Arc::new(On {
                tracing: tracing.clone(),
                open: Mutex::default(),
            })
        }))
    }

    /// A call, if the message is one. A second one of the same name is refused as such, and no other.
    pub(super) fn asked(&self, message: &Ask) -> Traced {
        let (call_id, method, traceparent) = match message {
            Ask::Acquire(ask) => (
                ask.call_id,
                "leasehold.v1.LockService/Hold Acquire",
                ask.traceparent.as_str(),
            ),
            Ask::AcquireAll(ask) => (
                ask.call_id,
                "leasehold.v1.LockService/Hold AcquireAll",
                ask.traceparent.as_str(),
            ),
            Ask::Attach(ask) => (ask.call_id, "leasehold.v1.LockService/Hold Attach", ""),
            Ask::Cancel(_)
            | Ask::Release(_)
            | Ask::Detach(_)
            | Ask::Close(_)
            | Ask::RefreshCredential(_)
            | Ask::Heartbeat(_) => return Traced::default(),
        };
        if !traceparent.is_empty() {
            tracing::debug!(call_id, traceparent, "a call on a lease stream");
        }
        let Some(on) = &self.0 else {
            return Traced::default();
        };
        let caller = TraceParent::parse(traceparent).map(|parent| Caller::new(parent, None));
        let traced = begin(&on.tracing, method, caller);
        if traced.is_recording() {
            on.open().entry(call_id).or_insert_with(|| traced.clone());
        }
        traced
    }

    /// The client is told something, perhaps the answer to a call.
    pub(super) fn told(&self, response: &HoldResponse) {
        let Some(on) = &self.0 else {
            return;
        };
        let (call_id, code, reason) = match &response.message {
            Some(Told::Granted(told)) => (told.call_id, Code::Ok, None),
            Some(Told::Attached(told)) => (told.call_id, Code::Ok, None),
            Some(Told::Refused(told)) => {
                let reason = told.reason().as_str_name();
                let reason = reason.trim_start_matches("ERROR_REASON_");
                let is_known = told.reason() != ErrorReason::Unspecified;
                let code = Code::from_i32(told.code);
                (told.call_id, code, is_known.then_some(reason))
            }
            Some(
                Told::Queued(_)
                | Told::Ack(_)
                | Told::Released(_)
                | Told::Ended(_)
                | Told::ReleaseRequested(_)
                | Told::Reconnect(_)
                | Told::Done(_),
            )
            | None => return,
        };
        let Some(traced) = on.open().remove(&call_id) else {
            return;
        };
        ended(&traced, code, reason);
        traced.end();
    }
}

impl On {
    fn open(&self) -> MutexGuard<'_, HashMap<i64, Traced>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
