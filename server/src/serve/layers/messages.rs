//! Receives the messages of calls: within a time, within what a connection may have incomplete, and a call's only
//! message before anything is done for the call.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use futures::future::{BoxFuture, FutureExt as _};
use tokio::time::sleep;
use tonic::Status;

use super::deadline::passed;
use crate::{
    config::Http2,
    grpc::early,
    serve::{health::Health, methods::METHODS},
    transport::{Partial, Peer},
};

/// How soon the only message of a call must be complete, and the first one of a stream.
const WITHIN: Duration = Duration::from_secs(10);
/// The same from the beginning of a drain on, which waits for calls.
const WITHIN_IN_DRAIN: Duration = Duration::from_secs(1);
/// Bytes before each message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What messages keep to. Cheap to clone.
#[derive(Clone)]
pub(super) struct Arrival {
    health: Arc<Health>,
    bytes_max: usize,
}

/// Which part of a request must arrive in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Everything,
    FirstMessage,
    Nothing,
}

/// The messages of a call, as they come.
struct Messages {
    body: Body,
    message: Message,
    /// Bytes of a call with one message, which are kept until the call has ended.
    kept: usize,
    partial: Option<Partial>,
    arrival: Arrival,
    due: Due,
    /// Made when the client is waited for.
    late: Option<BoxFuture<'static, Status>>,
}

/// How much of a message is there.
#[derive(Default)]
struct Message {
    prefix: [u8; PREFIX],
    /// Of the prefix and of the message.
    here: usize,
}

impl Arrival {
    /// Creates the bounds of a listener.
    pub(super) fn new(health: Arc<Health>, http2: &Http2) -> Self {
        let bytes_max = usize::try_from(http2.max_request).unwrap_or(usize::MAX);
        Self { health, bytes_max }
    }

    /// Waits until messages are late, and returns the refusal.
    async fn late(self) -> Status {
        let in_drain = async {
            self.health.draining().await;
            sleep(WITHIN_IN_DRAIN).await;
        };
        tokio::select! {
            () = passed(WITHIN) => early::late_message(WITHIN),
            () = in_drain => early::draining(),
        }
    }
}

/// Passes a call on once its only message is complete, or one of several messages as they come.
pub(super) async fn receive(
    State(arrival): State<Arrival>,
    request: Request,
    next: Next,
) -> Response {
    let method = METHODS.get(request.uri().path());
    let is_one = method.is_some_and(|method| method.takes_one_message());
    let peer = request.extensions().get::<Peer>();
    let partial = peer.map(|peer| peer.load.call());
    let (parts, body) = request.into_parts();
    let messages = Messages {
        body,
        message: Message::default(),
        kept: 0,
        partial,
        arrival,
        due: if is_one {
            Due::Everything
        } else {
            Due::FirstMessage
        },
        late: None,
    };
    let body = match is_one {
        false => Body::new(messages),
        true => match messages.complete().await {
            Ok(message) => Body::from(message),
            Err(refused) => return refused.into_http(),
        },
    };
    next.run(Request::from_parts(parts, body)).await
}

impl Messages {
    /// Reads the body to its end. One that is longer than a legal message is cut, for the decoder to refuse.
    async fn complete(mut self) -> Result<Vec<u8>, Status> {
        let most = self.arrival.bytes_max.saturating_add(PREFIX);
        let mut message = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut self).poll_frame(cx)).await {
            let frame = frame.map_err(|error| Status::from_error(error.into_inner()))?;
            if let Some(bytes) = frame.data_ref() {
                message.extend_from_slice(bytes);
            }
            if message.len() > most {
                break;
            }
        }
        Ok(message)
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.due == Due::Nothing {
            return Poll::Pending;
        }
        let arrival = &self.arrival;
        let late = self
            .late
            .get_or_insert_with(|| arrival.clone().late().boxed());
        late.poll_unpin(cx)
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let is_complete = self.message.more(bytes);
        if self.due == Due::Everything {
            self.kept += bytes.len();
        } else {
            self.kept = self.message.here;
            if is_complete {
                self.not_due();
                if let Some(partial) = &mut self.partial {
                    partial.arrived();
                }
            }
        }
        let kept = self.kept;
        let fits = self.partial.as_mut().is_none_or(|partial| partial.is(kept));
        match fits {
            true => Ok(()),
            false => Err(early::too_much_incomplete()),
        }
    }

    fn not_due(&mut self) {
        (self.due, self.late) = (Due::Nothing, None);
    }
}

impl HttpBody for Messages {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let kept = match &polled {
            Poll::Pending => match self.poll_late(cx) {
                Poll::Ready(refused) => Err(refused),
                Poll::Pending => Ok(()),
            },
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                Some(bytes) => self.received(bytes),
                None => Ok(()),
            },
            Poll::Ready(Some(Err(_)) | None) => Ok(()),
        };
        match kept {
            Ok(()) => polled,
            Err(refused) => {
                self.not_due();
                Poll::Ready(Some(Err(axum::Error::new(refused))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl Message {
    /// Takes bytes in, and returns whether a message has become complete.
    fn more(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_complete = false;
        while !bytes.is_empty() {
            let taken = match self.here.checked_sub(PREFIX) {
                None => {
                    let taken = bytes.len().min(PREFIX - self.here);
                    self.prefix[self.here..self.here + taken].copy_from_slice(&bytes[..taken]);
                    taken
                }
                Some(here) => bytes.len().min(self.length() - here),
            };
            self.here += taken;
            bytes = &bytes[taken..];
            if self.here >= PREFIX && self.here - PREFIX == self.length() {
                self.here = 0;
                is_complete = true;
            }
        }
        is_complete
    }

    fn length(&self) -> usize {
        let [_, a, b, c, d] = self.prefix;
        usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_complete_in_whatever_pieces_they_come() {
        let bytes = [0, 0, 0, 0, 2, 7, 7, 0, 0, 0, 0, 0, 0, 0];
        for piece in 1..=bytes.len() {
            let (mut message, mut complete) = (Message::default(), 0);
            for piece in bytes.chunks(piece) {
                complete += usize::from(message.more(piece));
            }
            assert!((1..=2).contains(&complete), "{piece}: {complete}");
            assert_eq!(message.here, 2, "{piece}: the third has begun");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_late_after_ten_seconds_and_one_in_a_drain() {
        let health = Health::starting();
        let arrival = Arrival {
            health: Arc::clone(&health),
            bytes_max: 10,
        };
        let begun = tokio::time::Instant::now();
        let late = arrival.clone().late().await;
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(begun.elapsed(), WITHIN);
        health.set(crate::serve::health::Phase::Draining);
        let begun = tokio::time::Instant::now();
        let late = arrival.late().await;
        assert_eq!(late.code(), tonic::Code::Unavailable);
        assert_eq!(begun.elapsed(), WITHIN_IN_DRAIN);
    }
}
