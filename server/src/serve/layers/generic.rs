//! Generic layer for synchronous hooks. Many calls may wait for their messages at the same time,
//! and a layer that is an `async fn` needs about 3 KiB for each of them.

use std::{
    convert::Infallible,
    ops::ControlFlow,
    task::{Context, Poll},
};

use axum::{extract::Request, response::Response};
use futures::future::{Either, FutureExt as _, Map, Ready, ready};
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
