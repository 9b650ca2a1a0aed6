//! Bodies with a hook, which sees each frame on its way.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
};
use http_body::{Frame, SizeHint};

/// What a body has when it is asked for its next frame.
pub(super) type PolledFrame = Poll<Option<Result<Frame<Bytes>, Error>>>;

/// Sees what a body has each time it is asked, and is dropped with the body.
pub(super) trait Hook: Send + Unpin + 'static {
    /// Returns what is passed on.
    fn polled(&mut self, polled: PolledFrame, _: &mut Context<'_>) -> PolledFrame {
        polled
    }
}

/// A body and its hook.
pub(super) struct Hooked<H> {
    pub(super) body: Body,
    pub(super) hook: H,
}

/// Returns the body with a hook.
pub(super) fn hooked(body: Body, hook: impl Hook) -> Body {
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
