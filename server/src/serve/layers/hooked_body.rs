//! HTTP bodies with a hook that inspects each frame.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
};
use http_body::{Frame, SizeHint};

/// Result of polling a body for its next frame.
pub(super) type PolledFrame = Poll<Option<Result<Frame<Bytes>, Error>>>;

/// Inspects each result of polling a body. The hook is dropped with the body.
pub(super) trait Hook: Send + Unpin + 'static {
    /// Returns the result to pass on in place of `polled`.
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame;
}

impl<F> Hook for F
where
    F: FnMut(PolledFrame, &mut Context<'_>) -> PolledFrame + Send + Unpin + 'static,
{
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame {
        self(polled, cx)
    }
}

pub(super) struct Hooked<H> {
    pub(super) body: Body,
    pub(super) hook: H,
}

/// Adds a hook to a body.
pub(super) fn hooked<F>(body: Body, hook: F) -> Body
where
    F: FnMut(PolledFrame, &mut Context<'_>) -> PolledFrame + Send + Unpin + 'static,
{
    Body::new(Hooked { body, hook })
}

impl<H: Hook> HttpBody for Hooked<H> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.hook.polled(polled, cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
