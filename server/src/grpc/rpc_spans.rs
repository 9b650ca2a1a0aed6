//! Spans of calls and their results, by the conventions of OpenTelemetry for gRPC.

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::trace::{RemoteParent, Span, Tracing};

/// Starts the span of a call of `method`, for example `leasehold.v1.LockService/Acquire`.
pub(crate) fn start(tracing: &Tracing, method: &'static str, caller: Option<RemoteParent>) -> Span {
    let span = tracing.start_server_span(method, caller);
    span.set_attribute("rpc.system.name", "grpc");
    span.set_attribute("rpc.method", method);
    span
}

/// Records the result of a call on its span; `None` is success.
pub(crate) fn record_response(span: &Span, status: Option<&Status>) {
    if !span.is_recording() {
        return;
    }
    match status {
        None => record_end(span, Code::Ok, None),
        Some(status) => {
            let details = status.get_error_details();
            let reason = details.error_info().map(|info| info.reason.as_str());
            record_end(span, status.code(), reason);
        }
    }
}

/// Records the result of a call by its code and `reason`, which has the form of
/// `google.rpc.ErrorInfo`.
pub(super) fn record_end(span: &Span, code: Code, reason: Option<&str>) {
    let (name, is_fault) = describe(code);
    span.set_attribute("rpc.response.status_code", name);
    if let Some(reason) = reason {
        span.set_attribute("leasehold.outcome", reason.to_lowercase());
    }
    if is_fault {
        span.set_attribute("error.type", name);
        span.set_error(name);
    }
}

/// Returns the name of a code, and true if the code reports a fault of the server.
fn describe(code: Code) -> (&'static str, bool) {
    match code {
        Code::Ok => ("OK", false),
        Code::Cancelled => ("CANCELLED", false),
        Code::Unknown => ("UNKNOWN", true),
        Code::InvalidArgument => ("INVALID_ARGUMENT", false),
        Code::DeadlineExceeded => ("DEADLINE_EXCEEDED", true),
        Code::NotFound => ("NOT_FOUND", false),
        Code::AlreadyExists => ("ALREADY_EXISTS", false),
        Code::PermissionDenied => ("PERMISSION_DENIED", false),
        Code::ResourceExhausted => ("RESOURCE_EXHAUSTED", false),
        Code::FailedPrecondition => ("FAILED_PRECONDITION", false),
        Code::Aborted => ("ABORTED", false),
        Code::OutOfRange => ("OUT_OF_RANGE", false),
        Code::Unimplemented => ("UNIMPLEMENTED", true),
        Code::Internal => ("INTERNAL", true),
        Code::Unavailable => ("UNAVAILABLE", true),
        Code::DataLoss => ("DATA_LOSS", true),
        Code::Unauthenticated => ("UNAUTHENTICATED", false),
    }
}
