//! Receives request messages: enforces deadlines and the connection's limit on incomplete data. A
//! call's only message is read completely before the service is called.

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
    deadline::suspend_safe_sleep,
    hooked_body::{Hook, Hooked, PolledFrame},
};
use crate::{
    config::Http2,
    grpc::early_rejections,
    serve::{health::Health, methods::METHODS},
    transport::{IncomingCall, Peer},
};

/// Time in which the only message of a call, or the first one of a stream, must be complete.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the same messages after a drain has begun. The drain waits for these calls.
const MESSAGE_TIMEOUT_IN_DRAIN: Duration = Duration::from_secs(1);
/// Bytes before each gRPC message: a compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// Minimum size of each buffer of a message, except the first.
const SEGMENT_BYTES_MIN: usize = 4_096;

/// Layer that receives messages, with the limits for them. Cheap to clone.
#[derive(Clone)]
pub(super) struct MessageLimits {
    health: Arc<Health>,
    bytes_max: usize,
}

/// Service that is called once a call's only message is complete. A call with several messages is
/// passed on at once.
#[derive(Clone)]
pub(super) struct ReceivingService<S> {
    limits: MessageLimits,
    inner: S,
}

/// Part of a request that must arrive before the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeadlineScope {
    Everything,
    FirstMessage,
    Nothing,
}

/// Hook that counts the received messages of a call.
struct MessageReader {
    message: Message,
    /// Number of bytes kept: all bytes of a call with a single message, otherwise the bytes of the
    /// incomplete message.
    kept_bytes: usize,
    partial: Option<IncomingCall>,
    limits: MessageLimits,
    scope: DeadlineScope,
    /// Deadline, created when the client is first waited for.
    deadline: Option<BoxFuture<'static, Status>>,
}

/// Body with the only message of a call. Its bytes are counted until it is decoded, because the
/// call may have to wait for a concurrency permit.
struct CompleteBody {
    message: Segments,
    _counted: Option<IncomingCall>,
}

/// Byte buffer in segments that are never reallocated. A growing buffer would leave each of its
/// former sizes as a hole in the heap, for as long as the neighbouring allocations live.
#[derive(Default)]
struct Segments {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// Progress of receiving a message.
#[derive(Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    /// Number of received bytes of the prefix and the message.
    received: usize,
}

impl MessageLimits {
    /// Creates the layer with the limits of a listener.
    pub(super) fn new(health: Arc<Health>, http2: &Http2) -> Self {
        let bytes_max = usize::try_from(http2.max_request).unwrap_or(usize::MAX);
        Self { health, bytes_max }
    }

    /// Waits until messages are late, and returns the error.
    async fn until_late(self) -> Status {
        let in_drain = async {
            self.health.draining().await;
            sleep(MESSAGE_TIMEOUT_IN_DRAIN).await;
        };
        tokio::select! {
            () = suspend_safe_sleep(MESSAGE_TIMEOUT) => {
                early_rejections::late_message(MESSAGE_TIMEOUT)
            }
            () = in_drain => early_rejections::draining(),
        }
    }
}

impl<S> Layer<S> for MessageLimits {
    type Service = ReceivingService<S>;

    fn layer(&self, inner: S) -> ReceivingService<S> {
        let arrival = self.clone();
        ReceivingService {
            limits: arrival,
            inner,
        }
    }
}

impl<S> Service<Request> for ReceivingService<S>
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
        let has_one_message = method.is_some_and(|method| method.takes_one_message());
        let due = match has_one_message {
            true => DeadlineScope::Everything,
            false => DeadlineScope::FirstMessage,
        };
        let peer = request.extensions().get::<Peer>();
        let partial = peer.map(|peer| peer.load.call());
        let (parts, body) = request.into_parts();
        let messages = MessageReader {
            message: Message::default(),
            kept_bytes: 0,
            partial,
            limits: self.limits.clone(),
            scope: due,
            deadline: None,
        };
        let messages = Hooked {
            body,
            hook: messages,
        };
        if !has_one_message {
            let request = Request::from_parts(parts, Body::new(messages));
            return Either::Left(self.inner.call(request));
        }
        let mut inner = self.inner.clone();
        std::mem::swap(&mut inner, &mut self.inner);
        // Both parts are boxed separately, so that the larger future is created only when the
        // message is complete.
        let (message, parts) = (complete(messages).boxed(), Box::new(parts));
        Either::Right(once_complete(inner, message, parts).boxed())
    }
}

/// Calls the service once the only message of the call is complete.
async fn once_complete<S>(
    mut inner: S,
    message: BoxFuture<'static, Result<CompleteBody, Status>>,
    parts: Box<Parts>,
) -> Result<Response, Infallible>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    match message.await {
        Ok(message) => {
            let request = Request::from_parts(*parts, Body::new(message));
            inner.call(request).await
        }
        Err(status) => Ok(status.into_http()),
    }
}

/// Reads the body to its end. A body longer than the largest allowed message is truncated; the
/// decoder then rejects it.
async fn complete(mut messages: Hooked<MessageReader>) -> Result<CompleteBody, Status> {
    let bytes_max = messages.hook.limits.bytes_max.saturating_add(PREFIX_BYTES);
    let mut message = Segments::default();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut messages).poll_frame(cx)).await {
        let frame = frame.map_err(|error| Status::from_error(error.into_inner()))?;
        if let Some(bytes) = frame.data_ref() {
            message.extend(bytes);
        }
        if message.bytes > bytes_max {
            break;
        }
    }
    let mut partial = messages.hook.partial;
    if let Some(partial) = &mut partial {
        partial.message_complete();
    }
    Ok(CompleteBody {
        message,
        _counted: partial,
    })
}

impl MessageReader {
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.scope == DeadlineScope::Nothing {
            return Poll::Pending;
        }
        let arrival = &self.limits;
        let deadline = self
            .deadline
            .get_or_insert_with(|| arrival.clone().until_late().boxed());
        deadline.poll_unpin(cx)
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let before = self.message.received;
        let is_complete = self.message.consume(bytes);
        if let Some(partial) = &mut self.partial {
            partial.frame_consumed(bytes.len());
            if self.scope != DeadlineScope::Everything {
                let decoded_bytes = (before + bytes.len()).saturating_sub(self.message.received);
                partial.set_undecoded(decoded_bytes);
            }
        }
        if self.scope == DeadlineScope::Everything {
            self.kept_bytes += bytes.len();
        } else {
            self.kept_bytes = self.message.received;
            if is_complete {
                self.clear_deadline();
                if let Some(partial) = &mut self.partial {
                    partial.message_complete();
                }
            }
        }
        let kept_bytes = self.kept_bytes;
        let fits = self
            .partial
            .as_mut()
            .is_none_or(|partial| partial.set_incomplete(kept_bytes));
        match fits {
            true => Ok(()),
            false => Err(early_rejections::too_much_incomplete()),
        }
    }

    fn clear_deadline(&mut self) {
        (self.scope, self.deadline) = (DeadlineScope::Nothing, None);
    }
}

impl Hook for MessageReader {
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame {
        if let (Poll::Pending, Some(partial)) = (&polled, &mut self.partial) {
            // A body is polled for more only after all previous data has been decoded.
            partial.set_undecoded(0);
        }
        let result = match &polled {
            Poll::Pending => match self.poll_late(cx) {
                Poll::Ready(status) => Err(status),
                Poll::Pending => Ok(()),
            },
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                Some(bytes) => self.received(bytes),
                None => Ok(()),
            },
            Poll::Ready(Some(Err(_)) | None) => Ok(()),
        };
        match result {
            Ok(()) => polled,
            Err(status) => {
                self.clear_deadline();
                Poll::Ready(Some(Err(axum::Error::new(status))))
            }
        }
    }
}

impl HttpBody for CompleteBody {
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
        // Most messages arrive in one piece.
        let capacity_min = if self.pieces.is_empty() {
            0
        } else {
            SEGMENT_BYTES_MIN
        };
        let mut piece = Vec::with_capacity(bytes.len().max(capacity_min));
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
    /// Consumes bytes, and returns true if a message was completed.
    fn consume(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_complete = false;
        while !bytes.is_empty() {
            let count = match self.received.checked_sub(PREFIX_BYTES) {
                None => {
                    let count = bytes.len().min(PREFIX_BYTES - self.received);
                    self.prefix[self.received..self.received + count]
                        .copy_from_slice(&bytes[..count]);
                    count
                }
                Some(payload_bytes) => bytes.len().min(self.length() - payload_bytes),
            };
            self.received += count;
            bytes = &bytes[count..];
            if self.received >= PREFIX_BYTES && self.received - PREFIX_BYTES == self.length() {
                self.received = 0;
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
                complete += usize::from(message.consume(piece));
            }
            assert!((1..=2).contains(&complete), "{piece}: {complete}");
            assert_eq!(message.received, 2, "{piece}: the third has begun");
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
        let capacity: usize = segments.pieces.iter().map(Vec::capacity).sum();
        assert!(
            capacity <= bytes.len() + 2 * SEGMENT_BYTES_MIN,
            "{capacity}"
        );
        assert_eq!(segments.flatten().collect::<Vec<_>>(), bytes);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_late_after_ten_seconds_and_one_in_a_drain() {
        let health = Health::starting();
        let arrival = MessageLimits {
            health: Arc::clone(&health),
            bytes_max: 10,
        };
        let started_at = tokio::time::Instant::now();
        let status = arrival.clone().until_late().await;
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(started_at.elapsed(), MESSAGE_TIMEOUT);
        health.set(crate::serve::health::Phase::Draining);
        let started_at = tokio::time::Instant::now();
        let status = arrival.until_late().await;
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert_eq!(started_at.elapsed(), MESSAGE_TIMEOUT_IN_DRAIN);
    }
}
