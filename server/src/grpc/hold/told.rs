//! What a stream's client is told, as messages.

use leasehold_proto::v1::{self as pb, HoldResponse, hold_response::Message as Response};
use tonic::{Code, Status};

use crate::{
    access::Verb,
    broker::stream::{Ended, Extended, Place, Refusal, Told},
    grpc::{admit::Asking, encode, status},
    history::EndReason,
    lock::HEARTBEAT_WHILE_WAITING_MS,
};

pub(super) fn response(told: Told, asking: &Asking) -> HoldResponse {
    let message = match told {
        Told::Queued(place) => Response::Queued(queued(&place, asking)),
        Told::Granted {
            call_id,
            lease,
            as_of,
        } => Response::Granted(pb::Granted {
            call_id,
            lease: Some(encode::lease(&lease)),
            as_of_sequence: as_of,
        }),
        Told::Refused { call_id, why } => return refused(call_id, &status_of(why, asking)),
        Told::Attached {
            call_id,
            lease_id,
            interval_ms,
        } => Response::Attached(pb::LeaseAttached {
            call_id,
            lease_id: lease_id.to_string(),
            heartbeat_interval: Some(encode::duration(interval_ms)),
        }),
        Told::Acknowledged {
            sequence,
            leases,
            interval_ms,
        } => Response::Ack(pb::HeartbeatAck {
            sequence,
            leases: leases.into_iter().map(extended).collect(),
            heartbeat_interval: interval_ms.map(encode::duration),
        }),
        Told::Released {
            call_id,
            given_back,
        } => {
            let pb::ReleaseResponse {
                already_released,
                hold_count,
            } = encode::released(given_back);
            Response::Released(pb::Released {
                call_id,
                already_released,
                hold_count,
            })
        }
        Told::Ended { lease_id, why } => {
            let (reason, message) = end_reason(why);
            Response::Ended(pb::LeaseEnded {
                lease_id: lease_id.to_string(),
                reason: reason.into(),
                message,
            })
        }
        Told::Done { call_id } => Response::Done(pb::Done { call_id }),
        Told::ReleaseRequested {
            lease_id,
            grace_ms,
            reason,
        } => Response::ReleaseRequested(pb::ReleaseRequested {
            lease_id: lease_id.to_string(),
            grace: Some(encode::duration(grace_ms)),
            message: why_asked(reason),
        }),
        Told::Reconnect { delay_ms } => Response::Reconnect(pb::Reconnect {
            delay: Some(encode::duration(delay_ms)),
        }),
    };
    HoldResponse {
        message: Some(message),
    }
}

fn why_asked(reason: Option<String>) -> String {
    let why = reason.map_or_else(
        || "max_hold, or an operator, ends it".to_owned(),
        |reason| format!("an operator takes it away: {reason}"),
    );
    format!("the lease is not extended beyond grace; {why}")
}

fn queued(place: &Place, asking: &Asking) -> pb::Queued {
    let holders = match asking.may(Verb::Observe, &place.lock) {
        true => place.holders.as_slice(),
        false => &[],
    };
    let holders = holders.iter();
    let interval_ms = place.ttl.heartbeat_interval_ms();
    pb::Queued {
        call_id: place.call_id,
        position: encode::count(place.position),
        queue_length: encode::count(place.queue_length),
        holders: holders
            .map(|holder| encode::holder(&place.lock, holder))
            .collect(),
        heartbeat_interval: Some(encode::duration(
            interval_ms.min(HEARTBEAT_WHILE_WAITING_MS),
        )),
    }
}

fn extended(extended: Extended) -> pb::LeaseExtended {
    pb::LeaseExtended {
        lease_id: extended.lease_id.to_string(),
        ttl: Some(encode::duration(extended.ttl.as_millis())),
        queue_length: encode::count(extended.queue_length),
        grant_count: i32::try_from(extended.locks).unwrap_or(i32::MAX),
    }
}

pub(super) fn refused(call_id: i64, status: &Status) -> HoldResponse {
    HoldResponse {
        message: Some(Response::Refused(status::refused(call_id, status))),
    }
}

fn status_of(why: Refusal, asking: &Asking) -> Status {
    use pb::ErrorReason as Reason;
    match why {
        Refusal::Failed(failed) => asking.veiled(failed).into(),
        Refusal::CallIdReused => status::plain(
            Code::InvalidArgument,
            Reason::CallIdReused,
            "call_id is in use on this stream: choose another",
        ),
        Refusal::TooManyLeases => status::plain(
            Code::ResourceExhausted,
            Reason::TooManyLeases,
            "the stream has 1000 leases and waits: open another stream",
        ),
        Refusal::TooManyCommands => status::plain(
            Code::ResourceExhausted,
            Reason::QuotaExceeded,
            "1000 commands for this lease are under way: wait for their answers",
        ),
        Refusal::NotHere => status::plain(
            Code::NotFound,
            Reason::LeaseNotFound,
            "the lease is not on this stream: attach it first",
        ),
        Refusal::Denied => status::plain(
            Code::PermissionDenied,
            Reason::PermissionDenied,
            "the policy does not allow you to acquire the lock any more",
        ),
        Refusal::Cancelled => status::plain(
            Code::Cancelled,
            Reason::Cancelled,
            "the wait was given up: acquire again to join the end of the line",
        ),
    }
}

fn end_reason(why: Ended) -> (pb::LeaseEndReason, String) {
    use pb::LeaseEndReason as Reason;
    let (reason, message) = match why {
        Ended::Revoked { reason } => {
            let message = format!("{}: {reason}", EndReason::Revoked.why());
            return (Reason::Revoked, message);
        }
        Ended::Released => (Reason::Released, "the lease was given back elsewhere"),
        Ended::Expired => (Reason::Expired, EndReason::Expired.why()),
        Ended::Lost => (Reason::StoreLost, EndReason::StoreLost.why()),
        Ended::MaxHold => (Reason::MaxHold, EndReason::MaxHold.why()),
        Ended::Moved => (Reason::Moved, "the lease is on another stream"),
        Ended::CredentialExpired => (
            Reason::CredentialExpired,
            "the credential of the stream is worth nothing any more: show a new one with \
             RefreshCredential in time",
        ),
        Ended::Denied => (
            Reason::CredentialExpired,
            "the policy does not allow the credential of the stream to hold the lock any more",
        ),
    };
    (reason, message.to_owned())
}
