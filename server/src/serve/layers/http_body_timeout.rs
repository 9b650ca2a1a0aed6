//! Time limit for the arrival of request bodies over plain HTTP.

use std::{task::Poll, time::Duration};

use axum::{Error, body::HttpBody as _, extract::Request};
use futures::future::FutureExt as _;

use super::{deadline::suspend_safe_sleep, hooks::hooked_body};

/// Time in which a body must be complete.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Wraps the request's body so that it fails after [`BODY_TIMEOUT`].
pub(super) async fn limit(request: Request) -> Request {
    request.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        let mut deadline = suspend_safe_sleep(BODY_TIMEOUT).boxed();
        hooked_body(body, move |polled, cx| {
            if polled.is_pending() && deadline.poll_unpin(cx).is_ready() {
                let message = "the body was not complete within 10 s";
                return Poll::Ready(Some(Err(Error::new(message))));
            }
            polled
        })
    })
}
