//! How a call came out, on its span, by the conventions of OpenTelemetry for gRPC.

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::trace::{Caller, Traced, Tracing};

/// The span of a call of this method, `leasehold.v1.LockService/Acquire`.
pub(crate) fn begin(tracing: &Tracing, method: &'static str, caller: Option<Caller>) -> Traced {
    let traced = tracing.serve(method, caller);
    traced.note("rpc.system.name", "grpc");
    traced.note("rpc.method", method);
    traced
}

/// The call was answered; `None`: with what it asked for.
pub(crate) fn answered(traced: &Traced, status: Option<&Status>) {
    if !traced.is_recording() {
        return;
    }
    match status {
        None => ended(traced, Code::Ok, None),
        Some(status) => {
            let details = status.get_error_details();
            let reason = details.error_info().map(|info| info.reason.as_str());
            ended(traced, status.code(), reason);
        }
    }
}

/// The same by the parts of a status; `reason` as in `google.rpc.ErrorInfo`.
pub(super) fn ended(traced: &Traced, code: Code, reason: Option<&str>) {
    let name = name(code);
    traced.note("rpc.response.status_code", name);
    if let Some(reason) = reason {
        traced.note("leasehold.outcome", reason.to_lowercase());
    }
    if is_fault(code) {
        traced.note("error.type", name);
        traced.fail(name);
    }
}

/// What the server is to blame for; the rest is an answer like others.
fn is_fault(code: Code) -> bool {
    match code {
        Code::Unknown
        | Code::DeadlineExceeded
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => true,
        Code::Ok
        | Code::Cancelled
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unauthenticated => false,
    }
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
