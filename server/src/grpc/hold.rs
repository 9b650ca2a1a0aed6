//! Lease streams (`Hold`): decodes requests and encodes responses. Nothing here
//! waits for the store.

mod call_spans;
mod encode;
mod response_buffer;

use std::{
    future,
    sync::Arc,
    task::{Poll, ready},
};

use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use leasehold_proto::v1::{
    self as pb, HoldRequest, HoldResponse, hold_request::Message as Request,
};
use tokio::{sync::watch, time::Instant};
use tonic::{Code, Status, Streaming};

use self::{
    call_spans::CallSpans,
    encode::{refused, response},
    response_buffer::{RequestBackpressure, Sender},
};
use super::{decode, status::ErrorResponse};
use crate::{
    access::Verb,
    broker::{
        Broker,
        lease_stream::{StreamCaller, StreamCommand},
    },
    config::ReloadableConfig,
    lock::{AcquireCall, LockKey},
    rate_limit::RateLimit,
    request::{RequestContext, RequestError},
    trace::{Span, Tracing},
    transport::ConnectionLoad,
};

/// Rate limit for heartbeats of a stream. The shortest TTL requires three per second.
const HEARTBEATS_PER_SECOND: u32 = 20;
/// The burst covers the heartbeats of a client that sends three per second, if the network delays
/// them for the longest TTL and then delivers them at once.
const HEARTBEATS: RateLimit = RateLimit::per_second(HEARTBEATS_PER_SECOND, 200);

/// An input of the stream. Values are short-lived.
#[expect(clippy::large_enum_variant, reason = "nothing keeps it")]
enum Inbound {
    Message(Result<HoldRequest, Status>),
    /// The rules have changed, or the credential has ended.
    Rules,
}

/// A message that was rejected before it became a command.
struct Rejected;

/// Sends responses to the client.
#[derive(Clone)]
struct ClientSender {
    responses: Sender,
    calls: CallSpans,
}

/// Converts inputs of the stream to commands.
struct CommandReader {
    context: RequestContext,
    client: ClientSender,
    /// Time from which further heartbeats conform to the rate limit.
    arrival_time: Instant,
}

/// Serves one stream until its client ends it.
///
/// # Errors
/// If there are too many streams.
pub(super) fn serve(
    broker: &Broker,
    context: RequestContext,
    live: watch::Receiver<ReloadableConfig>,
    tracing: &Tracing,
    incoming: Streaming<HoldRequest>,
    load: Option<Arc<ConnectionLoad>>,
) -> Result<BoxStream<'static, Result<HoldResponse, Status>>, Status> {
    let (sender, requests, events) = response_buffer::buffer(load);
    let calls = CallSpans::new(tracing);
    let client = ClientSender {
        responses: sender,
        calls,
    };
    let caller = StreamCaller {
        name: Arc::clone(&context.caller.name),
        expires: context.caller.deadline(),
        reconnects_at: context.caller.reconnects_at(),
    };
    let viewer = context.clone();
    let input = merge_inputs(incoming, requests, context.changes());
    let reader = CommandReader {
        context,
        client: client.clone(),
        arrival_time: Instant::now(),
    };
    let commands = input.scan(reader, move |reader, input| {
        reader.context.limits = live.borrow().limits;
        future::ready(reader.read_command(input))
    });
    let event_sink = Arc::new(move |event| client.send(Box::new(response(event, &viewer))));
    let result = broker.hold(caller, yield_after_rejections(commands).boxed(), event_sink);
    result.map_err(RequestError::from)?;
    Ok(events.boxed())
}

/// Merges the client's messages with changes of access, and ends when the messages end. Messages
/// are read only while there is room for responses.
fn merge_inputs(
    mut incoming: Streaming<HoldRequest>,
    requests: RequestBackpressure,
    changes: impl Stream<Item = ()> + Send,
) -> impl Stream<Item = Inbound> + Send {
    let mut changes = Box::pin(changes.fuse());
    stream::poll_fn(move |cx| {
        if requests.poll_room(cx).is_ready()
            && let Poll::Ready(next) = incoming.poll_next_unpin(cx)
        {
            return Poll::Ready(next.map(Inbound::Message));
        }
        match changes.poll_next_unpin(cx) {
            Poll::Ready(Some(())) => Poll::Ready(Some(Inbound::Rules)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    })
}

/// Forwards the commands of a client. Yields to other tasks after each rejected message, so that a
/// client that sends many of them does not block other tasks.
fn yield_after_rejections(
    commands: impl Stream<Item = Result<StreamCommand, Rejected>> + Send,
) -> impl Stream<Item = StreamCommand> + Send {
    let mut commands = Box::pin(commands);
    stream::poll_fn(move |cx| match ready!(commands.poll_next_unpin(cx)) {
        Some(Ok(command)) => Poll::Ready(Some(command)),
        Some(Err(Rejected)) => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        None => Poll::Ready(None),
    })
}

impl ClientSender {
    /// Sends a response. Returns false if the client has disconnected.
    fn send(&self, response: Box<HoldResponse>) -> bool {
        self.calls.finish(&response);
        self.responses.send(response)
    }
}

impl CommandReader {
    /// Converts an input to a command, unless the message is rejected here. `None` ends the stream:
    /// the connection failed, the client has disconnected, or it exceeds the rate limit for
    /// heartbeats.
    fn read_command(&mut self, input: Inbound) -> Option<Result<StreamCommand, Rejected>> {
        let message = match input {
            Inbound::Message(request) => request.ok()?.message,
            Inbound::Rules => return Some(Ok(self.rules())),
        };
        let Some(message) = message else {
            return Some(Err(Rejected));
        };
        if matches!(message, Request::Heartbeat(_))
            && HEARTBEATS.check(&mut self.arrival_time).is_err()
        {
            let message = format!(
                "more than {HEARTBEATS_PER_SECOND} heartbeats a second; send one heartbeat every \
                 heartbeat_interval"
            );
            let (code, reason) = (Code::ResourceExhausted, pb::ErrorReason::QuotaExceeded);
            let error = ErrorResponse::new(code, reason, message);
            self.client.responses.fail(error.into());
            return None;
        }
        let span = self.client.calls.start(&message);
        match decode(message, &mut self.context, span) {
            Ok(command) => Some(Ok(command)),
            Err((call_id, error)) => {
                let response = Box::new(refused(call_id, error));
                self.client.send(response).then_some(Err(Rejected))
            }
        }
    }

    /// Returns the command that applies the current rules to the stream.
    fn rules(&self) -> StreamCommand {
        if self.context.check_credential().is_err() {
            return StreamCommand::Expire;
        }
        let context = self.context.clone();
        let access_filter = Arc::new(move |lock: &LockKey| context.can(Verb::Acquire, lock));
        StreamCommand::Restrict { may: access_filter }
    }
}

pub(super) fn decode(
    message: Request,
    context: &mut RequestContext,
    span: Span,
) -> Result<StreamCommand, (i64, RequestError)> {
    match message {
        Request::Acquire(acquire) => {
            let call_id = acquire.call_id;
            let decoded = decode::hold_acquire(acquire, &context.limits);
            let command = authorize_acquire(context, call_id, decoded, span);
            command.map_err(|error| (call_id, error))
        }
        Request::AcquireAll(acquire) => {
            let call_id = acquire.call_id;
            let decoded = decode::hold_acquire_all(acquire, &context.limits);
            let command = authorize_acquire(context, call_id, decoded, span);
            command.map_err(|error| (call_id, error))
        }
        Request::Cancel(cancel) => Ok(StreamCommand::Cancel {
            call_id: cancel.call_id,
        }),
        Request::Attach(attach) => {
            let call_id = attach.call_id;
            let rejected = |error| (call_id, error);
            let attach = decode::attach(attach, &context.limits);
            let (lease, number) = attach.map_err(rejected)?;
            context.authorize_presented(&lease).map_err(rejected)?;
            Ok(StreamCommand::Attach {
                call_id,
                lease,
                number,
                span,
            })
        }
        Request::Release(release) => {
            let call_id = release.call_id;
            let rejected = |error| (call_id, error);
            let (lease_id, lock, entry) = decode::hold_release(release).map_err(rejected)?;
            let authorized = context.authorize(Verb::Acquire, &lock);
            authorized.map_err(rejected)?;
            Ok(StreamCommand::Release {
                call_id,
                lease_id,
                lock,
                entry,
            })
        }
        Request::Detach(detach) => {
            let call_id = detach.call_id;
            let lease_id = decode::detach(detach);
            let lease_id = lease_id.map_err(|error| (call_id, error))?;
            Ok(StreamCommand::Detach { call_id, lease_id })
        }
        Request::Close(_) => Ok(StreamCommand::Close),
        Request::RefreshCredential(refresh) => {
            let call_id = refresh.call_id;
            let refreshed = context.reauthenticate(&refresh.authorization);
            context.caller = refreshed.map_err(|error| (call_id, error))?;
            Ok(StreamCommand::Refresh {
                call_id,
                expires: context.caller.deadline(),
            })
        }
        Request::Heartbeat(heartbeat) => Ok(StreamCommand::Heartbeat {
            sequence: heartbeat.sequence,
        }),
    }
}

fn authorize_acquire(
    context: &RequestContext,
    call_id: i64,
    decoded: Result<(AcquireCall, u32), RequestError>,
    span: Span,
) -> Result<StreamCommand, RequestError> {
    let (call, number) = decoded?;
    context.authorize_acquire(&call)?;
    Ok(StreamCommand::Acquire {
        call_id,
        call: Box::new(call),
        number,
        span,
    })
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use futures::task::noop_waker_ref;

    use super::*;

    #[test]
    fn the_stream_yields_after_each_rejected_message() {
        let commands = stream::iter([Err(Rejected), Err(Rejected), Ok(StreamCommand::Close)]);
        let mut commands = std::pin::pin!(yield_after_rejections(commands));
        let mut cx = Context::from_waker(noop_waker_ref());
        let mut is_command = || matches!(commands.poll_next_unpin(&mut cx), Poll::Ready(Some(_)));
        assert_eq!(
            [is_command(), is_command(), is_command()],
            [false, false, true]
        );
    }
}
