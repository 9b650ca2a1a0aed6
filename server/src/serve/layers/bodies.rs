//! Bounds how long the body of a request in plain HTTP may take to arrive.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
};
use futures::future::{BoxFuture, FutureExt as _};

use super::deadline::passed;

/// How soon a body must be complete.
const WITHIN: Duration = Duration::from_secs(10);

/// Passes a request on with a body that fails once it is late.
pub(super) async fn limit(request: Request) -> Request {
    request.map(|body| match body.is_end_stream() {
        true => body,
        false => Body::new(InTime {
            body,
            deadline: passed(WITHIN).boxed(),
        }),
    })
}

/// A body with a deadline.
struct InTime {
    body: Body,
    deadline: BoxFuture<'static, ()>,
}

impl HttpBody for InTime {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() && self.deadline.poll_unpin(cx).is_ready() {
            let why = "the body was not complete within 10 s";
            return Poll::Ready(Some(Err(axum::Error::new(why))));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
