//! Time limit for the arrival of request bodies over plain HTTP.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use axum::{Error, body::HttpBody as _, extract::Request};
use futures::future::{BoxFuture, FutureExt as _};

use super::{
    deadline::suspend_safe_sleep,
    hooked_body::{Hook, PolledFrame, hooked},
};

/// Time in which a body must be complete.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Wraps the request's body so that it fails after [`BODY_TIMEOUT`].
pub(super) async fn limit(request: Request) -> Request {
    request.map(|body| match body.is_end_stream() {
        true => body,
        false => hooked(body, Deadline(suspend_safe_sleep(BODY_TIMEOUT).boxed())),
    })
}

struct Deadline(BoxFuture<'static, ()>);

impl Hook for Deadline {
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame {
        if polled.is_pending() && self.0.poll_unpin(cx).is_ready() {
            let message = "the body was not complete within 10 s";
            return Poll::Ready(Some(Err(Error::new(message))));
        }
        polled
    }
}
