//! The lease stream at the edge: messages in, messages out. Nothing here waits for the store.

mod calls;
mod told;
mod unread;

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
    calls::Calls,
    told::{refused, response},
    unread::{Requests, Sender},
};
use super::{admit::Asking, decode, status};
use crate::{
    access::Verb,
    broker::{
        Broker,
        stream::{Asked, StreamCaller},
    },
    config::Live,
    lock::LockKey,
    pace::Pace,
    trace::{Traced, Tracing},
    transport::Load,
};

/// The shortest ttl wants three.
const HEARTBEATS_PER_SECOND: u32 = 20;
/// What was held up on the way for the longest ttl comes at once.
const HEARTBEATS: Pace = Pace::per_second(HEARTBEATS_PER_SECOND, 200);

/// What comes to the stream. On its way for a moment only.
#[expect(clippy::large_enum_variant, reason = "nothing keeps it")]
enum Heard {
    Message(Result<HoldRequest, Status>),
    /// The rules have become others, or the credential has ended.
    Rules,
}

/// The way to the client.
#[derive(Clone)]
struct Client {
    unread: Sender,
    calls: Calls,
}

/// What hears it.
struct Reader {
    asking: Asking,
    client: Client,
    /// From when on heartbeats could keep their rate.
    due: Instant,
}

/// Serves one stream until its client ends it.
///
/// # Errors
/// If there are too many streams.
pub(super) fn serve(
    broker: &Broker,
    asking: Asking,
    (live, tracing): (watch::Receiver<Live>, &Tracing),
    (incoming, load): (Streaming<HoldRequest>, Option<Arc<Load>>),
) -> Result<BoxStream<'static, Result<HoldResponse, Status>>, Status> {
    let (unread, requests, told) = unread::queue(load);
    let calls = Calls::new(tracing);
    let client = Client { unread, calls };
    let caller = StreamCaller {
        name: Arc::clone(&asking.caller.name),
        expires: asking.caller.deadline(),
        moves_at: asking.caller.moves_at(),
    };
    let veil = asking.clone();
    let heard = heard((incoming, requests), asking.changes());
    let reader = Reader {
        asking,
        client: client.clone(),
        due: Instant::now(),
    };
    let asked = heard.scan(reader, move |reader, heard| {
        reader.asking.limits = live.borrow().limits;
        future::ready(reader.hear(heard))
    });
    let tell = Arc::new(move |told| client.send(Box::new(response(told, &veil))));
    let held = broker.hold(caller, in_turn(asked).boxed(), tell);
    held.map_err(|error| status::of_all(&error, None))?;
    Ok(told.boxed())
}

/// Ends with the client's messages, which are read while there is room for the answers.
fn heard(
    (mut incoming, requests): (Streaming<HoldRequest>, Requests),
    changes: impl Stream<Item = ()> + Send,
) -> impl Stream<Item = Heard> + Send {
    let mut changes = Box::pin(changes.fuse());
    stream::poll_fn(move |cx| {
        if requests.poll_room(cx).is_ready()
            && let Poll::Ready(next) = incoming.poll_next_unpin(cx)
        {
            return Poll::Ready(next.map(Heard::Message));
        }
        match changes.poll_next_unpin(cx) {
            Poll::Ready(Some(())) => Poll::Ready(Some(Heard::Rules)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    })
}

/// Passes on what a client asks. Each message that was refused costs its turn: a client that sends many of them keeps
/// other tasks from nothing.
fn in_turn(asked: impl Stream<Item = Option<Asked>> + Send) -> impl Stream<Item = Asked> + Send {
    let mut asked = Box::pin(asked);
    stream::poll_fn(move |cx| match ready!(asked.poll_next_unpin(cx)) {
        Some(Some(asked)) => Poll::Ready(Some(asked)),
        Some(None) => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        None => Poll::Ready(None),
    })
}

impl Client {
    /// False if it is gone.
    fn send(&self, response: Box<HoldResponse>) -> bool {
        self.calls.told(&response);
        self.unread.send(response)
    }
}

impl Reader {
    /// What that asks; `Some(None)` if it was refused here. `None` ends the stream: it broke, or its
    /// client does not read why it is refused, or floods it.
    fn hear(&mut self, heard: Heard) -> Option<Option<Asked>> {
        let message = match heard {
            Heard::Message(request) => request.ok()?.message,
            Heard::Rules => return Some(Some(self.rules())),
        };
        let Some(message) = message else {
            return Some(None);
        };
        if matches!(message, Request::Heartbeat(_)) && HEARTBEATS.take(&mut self.due).is_err() {
            self.client.unread.fail(flooded());
            return None;
        }
        let traced = self.client.calls.asked(&message);
        match asked(message, &mut self.asking, traced) {
            Ok(asked) => Some(Some(asked)),
            Err((call_id, status)) => {
                let refused = Box::new(refused(call_id, &status));
                self.client.send(refused).then_some(None)
            }
        }
    }

    /// What the client may go on with by the rules that are in force now.
    fn rules(&self) -> Asked {
        if !self.asking.is_known() {
            return Asked::Expire;
        }
        let asking = self.asking.clone();
        let may = Arc::new(move |lock: &LockKey| asking.may(Verb::Acquire, lock));
        Asked::Restrict { may }
    }
}

fn flooded() -> Status {
    let message = format!(
        "more than {HEARTBEATS_PER_SECOND} heartbeats a second; send them as often as \
         heartbeat_interval says"
    );
    let reason = pb::ErrorReason::QuotaExceeded;
    status::plain(Code::ResourceExhausted, reason, &message)
}

pub(super) fn asked(
    message: Request,
    asking: &mut Asking,
    traced: Traced,
) -> Result<Asked, (i64, Status)> {
    match message {
        Request::Acquire(acquire) => {
            let call_id = acquire.call_id;
            let call = decode::hold_acquire(acquire, asking);
            let (call, number) = call.map_err(|refused| (call_id, refused.into()))?;
            let call = Box::new(call);
            Ok(Asked::Acquire {
                call_id,
                call,
                number,
                traced,
            })
        }
        Request::AcquireAll(acquire) => {
            let call_id = acquire.call_id;
            let call = decode::hold_acquire_all(acquire, asking);
            let (call, number) = call.map_err(|refused| (call_id, refused.into()))?;
            let call = Box::new(call);
            Ok(Asked::Acquire {
                call_id,
                call,
                number,
                traced,
            })
        }
        Request::Cancel(cancel) => Ok(Asked::Cancel {
            call_id: cancel.call_id,
        }),
        Request::Attach(attach) => {
            let call_id = attach.call_id;
            let attach = decode::attach(attach, asking);
            let (lease, number) = attach.map_err(|refused| (call_id, refused.into()))?;
            Ok(Asked::Attach {
                call_id,
                lease,
                number,
                traced,
            })
        }
        Request::Release(release) => {
            let call_id = release.call_id;
            let release = decode::hold_release(release, asking);
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
            let call_id = refresh.call_id;
            let refreshed = asking.refreshed(&refresh.authorization);
            asking.caller = refreshed.map_err(|status| (call_id, status))?;
            Ok(Asked::Refresh {
                call_id,
                expires: asking.caller.deadline(),
            })
        }
        Request::Heartbeat(heartbeat) => Ok(Asked::Heartbeat {
            sequence: heartbeat.sequence,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use futures::task::noop_waker_ref;

    use super::*;

    #[test]
    fn each_refused_message_costs_a_turn() {
        let asked = stream::iter([None, None, Some(Asked::Close)]);
        let mut asked = std::pin::pin!(in_turn(asked));
        let mut cx = Context::from_waker(noop_waker_ref());
        let mut is_asked = || matches!(asked.poll_next_unpin(&mut cx), Poll::Ready(Some(_)));
        assert_eq!([is_asked(), is_asked(), is_asked()], [false, false, true]);
    }
}
