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
    body::{Body, HttpBody as _},
    extract::Request,
    response::Response,
};
use futures::{
    future::{BoxFuture, Either, FutureExt as _},
    stream::{self, StreamExt as _},
};
use tokio::time::sleep;
use tonic::Status;
use tower::{Layer, Service};

use super::{
    deadline::suspend_safe_sleep,
    hooks::{BodyHook, HookedBody, PolledFrame},
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
    incoming: IncomingCall,
    limits: MessageLimits,
    scope: DeadlineScope,
    /// Deadline, created when the client is first waited for.
    deadline: Option<BoxFuture<'static, Status>>,
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
        let limits = self.clone();
        ReceivingService { limits, inner }
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
        // Every connection is the peer of its requests.
        let Some(peer) = request.extensions().get::<Peer>() else {
            return Either::Left(self.inner.call(request));
        };
        let incoming = peer.load.call();
        let method = METHODS.get(request.uri().path());
        let has_one_message = method.is_some_and(|method| method.takes_one_message());
        let (parts, body) = request.into_parts();
        let hook = MessageReader {
            message: Message::default(),
            kept_bytes: 0,
            incoming,
            limits: self.limits.clone(),
            scope: match has_one_message {
                true => DeadlineScope::Everything,
                false => DeadlineScope::FirstMessage,
            },
            deadline: None,
        };
        let messages = HookedBody { body, hook };
        if !has_one_message {
            let request = Request::from_parts(parts, Body::new(messages));
            return Either::Left(self.inner.call(request));
        }
        let mut inner = self.inner.clone();
        std::mem::swap(&mut inner, &mut self.inner);
        // Both parts are boxed separately, so that the larger future is created only when the
        // message is complete.
        let (message, parts) = (complete(messages).boxed(), Box::new(parts));
        let once_complete = async move {
            match message.await {
                Ok(message) => inner.call(Request::from_parts(*parts, message)).await,
                Err(status) => Ok(status.into_http()),
            }
        };
        Either::Right(once_complete.boxed())
    }
}

/// Reads the body to its end. A body longer than the largest allowed message is truncated; the
/// decoder then rejects it.
async fn complete(mut messages: HookedBody<MessageReader>) -> Result<Body, Status> {
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
    let mut incoming = messages.hook.incoming;
    incoming.message_complete();
    let pieces = stream::iter(message.pieces).map(move |piece| {
        // Counts the bytes until they are decoded, because the call may have to wait for a
        // concurrency permit.
        let _counted = &incoming;
        Ok::<_, Infallible>(piece)
    });
    Ok(Body::from_stream(pieces))
}

impl MessageReader {
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.scope == DeadlineScope::Nothing {
            return Poll::Pending;
        }
        let late = || self.limits.clone().until_late().boxed();
        let deadline = self.deadline.get_or_insert_with(late);
        deadline.poll_unpin(cx)
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let before = self.message.received;
        let is_complete = self.message.consume(bytes);
        self.incoming.frame_consumed(bytes.len());
        if self.scope == DeadlineScope::Everything {
            self.kept_bytes += bytes.len();
        } else {
            let decoded_bytes = (before + bytes.len()).saturating_sub(self.message.received);
            self.incoming.set_undecoded(decoded_bytes);
            self.kept_bytes = self.message.received;
            if is_complete {
                self.clear_deadline();
                self.incoming.message_complete();
            }
        }
        match self.incoming.set_incomplete(self.kept_bytes) {
            true => Ok(()),
            false => Err(early_rejections::too_much_incomplete()),
        }
    }

    fn clear_deadline(&mut self) {
        (self.scope, self.deadline) = (DeadlineScope::Nothing, None);
    }
}

impl BodyHook for MessageReader {
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame {
        let result = match &polled {
            Poll::Pending => {
                // A body is polled for more only after all previous data has been decoded.
                self.incoming.set_undecoded(0);
                match self.poll_late(cx) {
                    Poll::Ready(status) => Err(status),
                    Poll::Pending => Ok(()),
                }
            }
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
        assert_eq!(
            segments.pieces.into_iter().flatten().collect::<Vec<_>>(),
            bytes
        );
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
