//! Receives the messages of calls: within a time, within what a connection may have incomplete, and a call's only
//! message before anything is done for the call.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::request::Parts,
    response::Response,
};
use futures::future::{BoxFuture, Either, FutureExt as _};
use http_body::{Frame, SizeHint};
use tokio::time::sleep;
use tonic::Status;
use tower::{Layer, Service};

use super::{
    deadline::passed,
    hooked::{Hook, Hooked, PolledFrame},
};
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
/// The least size of all pieces of a message but the first.
const SEGMENT: usize = 4_096;

/// The layer, with what messages keep to. Cheap to clone.
#[derive(Clone)]
pub(super) struct Arrival {
    health: Arc<Health>,
    bytes_max: usize,
}

/// A service that is called when messages are there: with a call's only message once it is complete, and with one of
/// several messages as they come.
#[derive(Clone)]
pub(super) struct Receiving<S> {
    arrival: Arrival,
    inner: S,
}

/// Which part of a request must arrive in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Everything,
    FirstMessage,
    Nothing,
}

/// Counts the messages of a call as they come.
struct Messages {
    message: Message,
    /// Bytes of a call with one message, which are kept until the call has ended.
    kept: usize,
    partial: Option<Partial>,
    arrival: Arrival,
    due: Due,
    /// Made when the client is waited for.
    late: Option<BoxFuture<'static, Status>>,
}

/// The only message of a call. Its bytes are counted until it is decoded: the call may have to wait for a place.
struct Complete {
    message: Segments,
    _counted: Option<Partial>,
}

/// Bytes in pieces that are never moved: one that grew would leave each of its former sizes behind in the memory of the
/// process, for as long as its neighbours live.
#[derive(Default)]
struct Segments {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
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

impl<S> Layer<S> for Arrival {
    type Service = Receiving<S>;

    fn layer(&self, inner: S) -> Receiving<S> {
        let arrival = self.clone();
        Receiving { arrival, inner }
    }
}

impl<S> Service<Request> for Receiving<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let method = METHODS.get(request.uri().path());
        let is_one = method.is_some_and(|method| method.takes_one_message());
        let due = match is_one {
            true => Due::Everything,
            false => Due::FirstMessage,
        };
        let peer = request.extensions().get::<Peer>();
        let partial = peer.map(|peer| peer.load.call());
        let (parts, body) = request.into_parts();
        let messages = Messages {
            message: Message::default(),
            kept: 0,
            partial,
            arrival: self.arrival.clone(),
            due,
            late: None,
        };
        let messages = Hooked {
            body,
            hook: messages,
        };
        if !is_one {
            let request = Request::from_parts(parts, Body::new(messages));
            return Either::Left(self.inner.call(request));
        }
        let mut inner = self.inner.clone();
        std::mem::swap(&mut inner, &mut self.inner);
        // Each waits on the heap for itself, so that the larger future begins when the message is there.
        let waits = (complete(messages).boxed(), Box::new(parts));
        Either::Right(once_complete(inner, waits).boxed())
    }
}

/// Passes a call on once its only message is complete.
async fn once_complete<S>(
    mut inner: S,
    (message, parts): (BoxFuture<'static, Result<Complete, Status>>, Box<Parts>),
) -> Result<Response, Infallible>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    match message.await {
        Ok(message) => {
            let request = Request::from_parts(*parts, Body::new(message));
            inner.call(request).await
        }
        Err(refused) => Ok(refused.into_http()),
    }
}

/// Reads the body to its end. One that is longer than a legal message is cut, for the decoder to refuse.
async fn complete(mut messages: Hooked<Messages>) -> Result<Complete, Status> {
    let most = messages.hook.arrival.bytes_max.saturating_add(PREFIX);
    let mut message = Segments::default();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut messages).poll_frame(cx)).await {
        let frame = frame.map_err(|error| Status::from_error(error.into_inner()))?;
        if let Some(bytes) = frame.data_ref() {
            message.extend(bytes);
        }
        if message.bytes > most {
            break;
        }
    }
    let mut partial = messages.hook.partial;
    if let Some(partial) = &mut partial {
        partial.arrived();
    }
    Ok(Complete {
        message,
        _counted: partial,
    })
}

impl Messages {
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
        let before = self.message.here;
        let is_complete = self.message.more(bytes);
        if let Some(partial) = &mut self.partial {
            partial.frame_taken(bytes.len());
            if self.due != Due::Everything {
                let whole = (before + bytes.len()).saturating_sub(self.message.here);
                partial.undecoded(whole);
            }
        }
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

impl Hook for Messages {
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame {
        if let (Poll::Pending, Some(partial)) = (&polled, &mut self.partial) {
            // It is asked for more when all before is decoded.
            partial.undecoded(0);
        }
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
}

impl HttpBody for Complete {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.message.next();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.message.bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.message.bytes as u64)
    }
}

impl Segments {
    fn extend(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        let fits = |last: &&mut Vec<u8>| last.capacity() - last.len() >= bytes.len();
        if let Some(last) = self.pieces.back_mut().filter(fits) {
            last.extend_from_slice(bytes);
            return;
        }
        // Most messages come as a whole.
        let least = if self.pieces.is_empty() { 0 } else { SEGMENT };
        let mut piece = Vec::with_capacity(bytes.len().max(least));
        piece.extend_from_slice(bytes);
        self.pieces.push_back(piece);
    }
}

impl Iterator for Segments {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len();
        Some(piece)
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

    #[test]
    fn segments_keep_all_bytes_in_order_and_little_more() {
        let mut segments = Segments::default();
        let bytes: Vec<u8> = (0..20_000_u32).map(|number| number as u8).collect();
        for piece in [&bytes[..10], &bytes[10..13], &bytes[13..9_000]] {
            segments.extend(piece);
        }
        bytes[9_000..]
            .chunks(1)
            .for_each(|byte| segments.extend(byte));
        assert_eq!(segments.bytes, bytes.len());
        let kept: usize = segments.pieces.iter().map(Vec::capacity).sum();
        assert!(kept <= bytes.len() + 2 * SEGMENT, "{kept}");
        assert_eq!(segments.flatten().collect::<Vec<_>>(), bytes);
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
