//! Hooks on requests, on responses, and on each frame of a body. They are synchronous: many calls
//! may wait for their messages at the same time, and a layer that is an `async fn` needs about 3 KiB
//! for each of them.

use std::{
    convert::Infallible,
    ops::ControlFlow,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
    extract::Request,
    response::Response,
};
use futures::future::{Either, FutureExt as _, Map, Ready, ready};
use http_body::{Frame, SizeHint};
use tower::{Layer, Service};

type Outcome = Result<Response, Infallible>;

/// A pair of hooks: one on the request, one on its response.
pub(super) trait RequestResponseHook: Clone {
    /// State passed from the request to the response.
    type State: Send + 'static;

    /// Returns the state that the response needs, or the response of a rejected request.
    fn on_request(&self, request: &mut Request) -> ControlFlow<Response, Self::State>;

    /// Returns the response to send.
    fn on_response(state: Self::State, response: Response) -> Response;
}

/// A check, which returns the response of a rejected request.
impl<F: Fn(&mut Request) -> Option<Response> + Clone> RequestResponseHook for F {
    type State = ();

    fn on_request(&self, request: &mut Request) -> ControlFlow<Response> {
        match self(request) {
            Some(response) => ControlFlow::Break(response),
            None => ControlFlow::Continue(()),
        }
    }

    fn on_response((): (), response: Response) -> Response {
        response
    }
}

/// Layer that applies a [`RequestResponseHook`].
#[derive(Clone)]
pub(super) struct HookLayer<H>(pub(super) H);

/// Service whose requests and responses pass a hook.
#[derive(Clone)]
pub(super) struct HookService<H, S> {
    hook: H,
    inner: S,
}

impl<H: RequestResponseHook, S> Layer<S> for HookLayer<H> {
    type Service = HookService<H, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let hook = self.0.clone();
        HookService { hook, inner }
    }
}

impl<H, S> Service<Request> for HookService<H, S>
where
    H: RequestResponseHook,
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future =
        Either<Ready<Outcome>, Map<S::Future, Box<dyn FnOnce(Outcome) -> Outcome + Send>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let state = match self.hook.on_request(&mut request) {
            ControlFlow::Continue(state) => state,
            ControlFlow::Break(response) => return Either::Left(ready(Ok(response))),
        };
        let end =
            Box::new(|response: Outcome| response.map(|response| H::on_response(state, response)));
        Either::Right(self.inner.call(request).map(end))
    }
}

/// Result of polling a body for its next frame.
pub(super) type PolledFrame = Poll<Option<Result<Frame<Bytes>, Error>>>;

/// Inspects each result of polling a body. The hook is dropped with the body.
pub(super) trait BodyHook: Send + Unpin + 'static {
    /// Returns the result to pass on in place of `polled`.
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame;
}

impl<F> BodyHook for F
where
    F: FnMut(PolledFrame, &mut Context<'_>) -> PolledFrame + Send + Unpin + 'static,
{
    fn polled(&mut self, polled: PolledFrame, cx: &mut Context<'_>) -> PolledFrame {
        self(polled, cx)
    }
}

/// Body whose frames pass a hook.
pub(super) struct HookedBody<H> {
    pub(super) body: Body,
    pub(super) hook: H,
}

/// Adds a hook to a body.
pub(super) fn hooked_body<F>(body: Body, hook: F) -> Body
where
    F: FnMut(PolledFrame, &mut Context<'_>) -> PolledFrame + Send + Unpin + 'static,
{
    Body::new(HookedBody { body, hook })
}

impl<H: BodyHook> HttpBody for HookedBody<H> {
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
