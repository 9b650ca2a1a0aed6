//! Encoding of lease-stream events as response messages.

use leasehold_proto::v1::{self as pb, HoldResponse, hold_response::Message as Response};
use tonic::Code;

use crate::{
    access::Verb,
    broker::lease_stream::{CallError, LeaseEndedReason, QueueUpdate, RenewedLease, StreamEvent},
    grpc::{encode, status::ErrorResponse},
    lock::HEARTBEAT_WHILE_WAITING_MS,
    recent_events::LeaseEndReason,
    request::{RequestContext, RequestError},
};

pub(super) fn response(event: StreamEvent, context: &RequestContext) -> HoldResponse {
    let message = match event {
        StreamEvent::Queued(update) => Response::Queued(queued(&update, context)),
        StreamEvent::Granted {
            call_id,
            lease,
            as_of,
        } => Response::Granted(pb::Granted {
            call_id,
            lease: Some(encode::lease(&lease)),
            as_of_sequence: as_of,
        }),
        StreamEvent::Refused { call_id, error } => {
            return refused(call_id, error_response(error, context));
        }
        StreamEvent::Attached {
            call_id,
            lease_id,
            interval_ms,
        } => Response::Attached(pb::LeaseAttached {
            call_id,
            lease_id: lease_id.to_string(),
            heartbeat_interval: Some(encode::duration(interval_ms)),
        }),
        StreamEvent::Acknowledged {
            sequence,
            leases,
            interval_ms,
        } => Response::Ack(pb::HeartbeatAck {
            sequence,
            leases: leases.into_iter().map(extended).collect(),
            heartbeat_interval: interval_ms.map(encode::duration),
        }),
        StreamEvent::Released { call_id, result } => Response::Released(pb::Released {
            call_id,
            already_released: result.already_released,
            hold_count: encode::count(result.hold_count),
        }),
        StreamEvent::Ended {
            lease_id,
            reason: ended_reason,
        } => {
            let (reason, message) = end_reason(ended_reason);
            Response::Ended(pb::LeaseEnded {
                lease_id: lease_id.to_string(),
                reason: reason.into(),
                message,
            })
        }
        StreamEvent::Done { call_id } => Response::Done(pb::Done { call_id }),
        StreamEvent::ReleaseRequested {
            lease_id,
            grace_ms,
            reason,
        } => Response::ReleaseRequested(pb::ReleaseRequested {
            lease_id: lease_id.to_string(),
            grace: Some(encode::duration(grace_ms)),
            message: release_reason(reason),
        }),
        StreamEvent::Reconnect { delay_ms } => Response::Reconnect(pb::Reconnect {
            delay: Some(encode::duration(delay_ms)),
        }),
    };
    HoldResponse {
        message: Some(message),
    }
}

fn release_reason(reason: Option<String>) -> String {
    let explanation = reason.map_or_else(
        || "it reaches max_hold, or an operator revokes it".to_owned(),
        |reason| format!("an operator revokes it: {reason}"),
    );
    format!("the lease is not extended beyond its grace period; {explanation}")
}

fn queued(update: &QueueUpdate, context: &RequestContext) -> pb::Queued {
    let may_observe = context.can(Verb::Observe, &update.lock);
    let holders = update.holders.iter().filter(|_| may_observe);
    let closure = update.closure.clone().map(|mut closure| {
        if !may_observe {
            closure.redact();
        }
        encode::closure(&closure)
    });
    let interval_ms = update.ttl.heartbeat_interval_ms();
    pb::Queued {
        call_id: update.call_id,
        position: encode::count(update.position),
        queue_length: encode::count(update.queue_length),
        holders: holders
            .map(|holder| encode::holder(&update.lock, holder))
            .collect(),
        heartbeat_interval: Some(encode::duration(
            interval_ms.min(HEARTBEAT_WHILE_WAITING_MS),
        )),
        closure,
        recovery: update.recovery.as_ref().map(encode::recovery),
    }
}

fn extended(extended: RenewedLease) -> pb::LeaseExtended {
    pb::LeaseExtended {
        lease_id: extended.lease_id.to_string(),
        ttl: Some(encode::duration(extended.ttl.as_millis())),
        queue_length: encode::count(extended.queue_length),
        grant_count: i32::try_from(extended.locks).unwrap_or(i32::MAX),
    }
}

pub(super) fn refused(call_id: i64, error: impl Into<ErrorResponse>) -> HoldResponse {
    HoldResponse {
        message: Some(Response::Refused(error.into().into_refused(call_id))),
    }
}

fn error_response(error: CallError, context: &RequestContext) -> ErrorResponse {
    use pb::ErrorReason as Reason;
    match error {
        CallError::Failed(failure) => RequestError::from(context.redact_holders(failure)).into(),
        CallError::CallIdReused => ErrorResponse::new(
            Code::InvalidArgument,
            Reason::CallIdReused,
            "call_id is in use on this stream: choose another",
        ),
        CallError::TooManyLeases => ErrorResponse::new(
            Code::ResourceExhausted,
            Reason::TooManyLeases,
            "the stream has 1000 leases and waiting calls, the maximum: open another stream",
        ),
        CallError::TooManyCommands => ErrorResponse::new(
            Code::ResourceExhausted,
            Reason::QuotaExceeded,
            "1000 commands for this lease are in progress: wait for their responses",
        ),
        CallError::NotHere => ErrorResponse::new(
            Code::NotFound,
            Reason::LeaseNotFound,
            "the lease is not attached to this stream: attach it first",
        ),
        CallError::Denied => ErrorResponse::new(
            Code::PermissionDenied,
            Reason::PermissionDenied,
            "the policy no longer allows you to acquire the lock",
        ),
        CallError::Cancelled => ErrorResponse::new(
            Code::Cancelled,
            Reason::Cancelled,
            "the wait was cancelled: acquire again to join the end of the queue",
        ),
    }
}

fn end_reason(ended_reason: LeaseEndedReason) -> (pb::LeaseEndReason, String) {
    use pb::LeaseEndReason as Reason;
    let (reason, message) = match ended_reason {
        LeaseEndedReason::Revoked { reason } => {
            let message = format!("{}: {reason}", LeaseEndReason::Revoked.explanation());
            return (Reason::Revoked, message);
        }
        LeaseEndedReason::Released => (Reason::Released, "the lease was released elsewhere"),
        LeaseEndedReason::Expired => (Reason::Expired, LeaseEndReason::Expired.explanation()),
        LeaseEndedReason::Lost => (Reason::StoreLost, LeaseEndReason::StoreLost.explanation()),
        LeaseEndedReason::MaxHold => (Reason::MaxHold, LeaseEndReason::MaxHold.explanation()),
        LeaseEndedReason::Moved => (Reason::Moved, "the lease is attached to another stream"),
        LeaseEndedReason::CredentialExpired => (
            Reason::CredentialExpired,
            "the credential of the stream is no longer valid: send a new one with \
             RefreshCredential before it expires",
        ),
        LeaseEndedReason::Denied => (
            Reason::CredentialExpired,
            "the policy no longer allows the credential of the stream to hold the lock",
        ),
    };
    (reason, message.to_owned())
}
