//! Bounds how long the body of a request in plain HTTP may take to arrive.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use axum::{Error, body::HttpBody as _, extract::Request};
use futures::future::{BoxFuture, FutureExt as _};

use super::{
    deadline::passed,
    hooked::{Hook, PolledFrame, hooked},
};

/// How soon a body must be complete.
const WITHIN: Duration = Duration::from_secs(10);

/// Passes a request on with a body that fails once it is late.
pub(super) async fn limit(request: Request) -> Request {
    request.map(|body| match body.is_end_stream() {
        true => body,
        false => hooked(body, Deadline(passed(WITHIN).boxed())),
    })
}

/// The deadline of a body.
struct Deadline(BoxFuture<'static, ()>);

impl Hook for Deadline {
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame {
        if polled.is_pending() && self.0.poll_unpin(cx).is_ready() {
            let why = "the body was not complete within 10 s";
            return Poll::Ready(Some(Err(Error::new(why))));
        }
        polled
    }
}
