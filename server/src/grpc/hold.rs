//! The lease stream at the edge: messages in, messages out. Nothing here waits for the store.

use std::{future::ready, sync::Arc};

use futures::{
    channel::mpsc,
    stream::{BoxStream, StreamExt as _},
};
use leasehold_proto::v1::{
    self as pb, HoldRequest, HoldResponse, hold_request::Message as Request,
    hold_response::Message as Response,
};
use tokio::sync::watch;
use tonic::{Code, Status, Streaming};

use super::{CALLER, decode, encode, status};
use crate::{
    broker::{
        Broker,
        stream::{Asked, Ended, Extended, Place, Refusal, Told},
    },
    config::Live,
    lock::HEARTBEAT_WHILE_WAITING_MS,
};

/// Messages to a client that does not read them; with more the stream is broken.
const UNREAD_MAX: usize = 10_000;

/// What a client has not read yet. Not the channel of tokio, whose blocks of 32 messages would be a
/// tenth of a stream's memory.
type Unread = mpsc::UnboundedSender<Box<HoldResponse>>;

/// Serves one stream until its client ends it.
pub(super) fn serve(
    broker: &Broker,
    live: watch::Receiver<Live>,
    incoming: Streaming<HoldRequest>,
) -> BoxStream<'static, Result<HoldResponse, Status>> {
    let (unread, told) = mpsc::unbounded();
    let refusals = unread.clone();
    let asked = incoming.scan(refusals, move |refusals, request| {
        ready(read(request, &live, refusals))
    });
    let tell = Arc::new(move |told| send(&unread, Box::new(response(told))));
    broker.hold(CALLER, asked.filter_map(ready).boxed(), tell);
    told.map(|response| Ok(*response)).boxed()
}

/// False if the client does not read, or is gone.
fn send(unread: &Unread, response: Box<HoldResponse>) -> bool {
    if unread.len() >= UNREAD_MAX {
        tracing::warn!("a client does not read its lease stream: it is ended");
        return false;
    }
    unread.unbounded_send(response).is_ok()
}

/// What a message asks; `Some(None)` if that was refused here. `None` ends the stream: it broke, or
/// its client does not read why it is refused.
fn read(
    request: Result<HoldRequest, Status>,
    live: &watch::Receiver<Live>,
    refusals: &Unread,
) -> Option<Option<Asked>> {
    let Some(message) = request.ok()?.message else {
        return Some(None);
    };
    match asked(message, live) {
        Ok(asked) => Some(Some(asked)),
        Err((call_id, status)) => {
            let refused = Box::new(refused(call_id, &status));
            send(refusals, refused).then_some(None)
        }
    }
}

fn asked(message: Request, live: &watch::Receiver<Live>) -> Result<Asked, (i64, Status)> {
    match message {
        Request::Acquire(acquire) => {
            let call_id = acquire.call_id;
            traced(call_id, &acquire.traceparent);
            let call = decode::hold_acquire(acquire, &live.borrow().limits);
            let (call, number) = call.map_err(|refused| (call_id, refused.into()))?;
            let call = Box::new(call);
            Ok(Asked::Acquire {
                call_id,
                call,
                number,
            })
        }
        Request::AcquireAll(acquire) => {
            let call_id = acquire.call_id;
            traced(call_id, &acquire.traceparent);
            let call = decode::hold_acquire_all(acquire, &live.borrow().limits);
            let (call, number) = call.map_err(|refused| (call_id, refused.into()))?;
            let call = Box::new(call);
            Ok(Asked::Acquire {
                call_id,
                call,
                number,
            })
        }
        Request::Cancel(cancel) => Ok(Asked::Cancel {
            call_id: cancel.call_id,
        }),
        Request::Attach(attach) => {
            let call_id = attach.call_id;
            let attach = decode::attach(attach, &live.borrow().limits);
            let (lease, number) = attach.map_err(|refused| (call_id, refused.into()))?;
            Ok(Asked::Attach {
                call_id,
                lease,
                number,
            })
        }
        Request::Release(release) => {
            let call_id = release.call_id;
            let release = decode::hold_release(release);
            let (lease_id, lock, entry) = release.map_err(|refused| (call_id, refused.into()))?;
            Ok(Asked::Release {
                call_id,
                lease_id,
                lock,
                entry,
            })
        }
        Request::Detach(detach) => {
            let call_id = detach.call_id;
            let lease_id = decode::detach(detach);
            let lease_id = lease_id.map_err(|refused| (call_id, refused.into()))?;
            Ok(Asked::Detach { call_id, lease_id })
        }
        Request::Close(_) => Ok(Asked::Close),
        Request::RefreshCredential(refresh) => {
            let status = status::not_yet("RefreshCredential");
            Err((refresh.call_id, status))
        }
        Request::Heartbeat(heartbeat) => Ok(Asked::Heartbeat {
            sequence: heartbeat.sequence,
        }),
    }
}

/// Names the trace that a call belongs to.
fn traced(call_id: i64, traceparent: &str) {
    if !traceparent.is_empty() {
        tracing::debug!(call_id, traceparent, "a call on a lease stream");
    }
}

fn response(told: Told) -> HoldResponse {
    let message = match told {
        Told::Queued(place) => Response::Queued(queued(&place)),
        Told::Granted {
            call_id,
            lease,
            as_of,
        } => Response::Granted(pb::Granted {
            call_id,
            lease: Some(encode::lease(&lease)),
            as_of_sequence: as_of,
        }),
        Told::Refused { call_id, why } => return refused(call_id, &status_of(why)),
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

fn queued(place: &Place) -> pb::Queued {
    let holders = place.holders.iter();
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

fn refused(call_id: i64, status: &Status) -> HoldResponse {
    HoldResponse {
        message: Some(Response::Refused(status::refused(call_id, status))),
    }
}

fn status_of(why: Refusal) -> Status {
    use pb::ErrorReason as Reason;
    match why {
        Refusal::Failed(failed) => failed.into(),
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
            let message = format!("an operator has revoked the lease: {reason}");
            return (Reason::Revoked, message);
        }
        Ended::Released => (Reason::Released, "the lease was given back elsewhere"),
        Ended::Expired => (Reason::Expired, "no heartbeat reached the store in time"),
        Ended::Lost => (
            Reason::StoreLost,
            "the store does not know the lease any more",
        ),
        Ended::MaxHold => (
            Reason::MaxHold,
            "the lease has been held for all of its max_hold",
        ),
        Ended::Moved => (Reason::Moved, "the lease is on another stream"),
    };
    (reason, message.to_owned())
}
