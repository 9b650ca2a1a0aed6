//! Generic layers for synchronous checks and hooks. Many calls may wait for their messages at the
//! same time, and a layer that is an `async fn` needs about 3 KiB for each of them.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use axum::{extract::Request, response::Response};
use futures::future::{Either, FutureExt as _, Map, Ready, ready};
use tower::{Layer, Service};

type Outcome = Result<Response, Infallible>;

/// A synchronous check of requests.
pub(super) trait Check: Clone {
    /// Returns the response if the request must be rejected.
    fn reject(&self, request: &mut Request) -> Option<Response>;
}

/// A pair of hooks: one on the request, one on its response.
pub(super) trait RequestResponseHook: Clone {
    /// State passed from the request to the response.
    type State: Send + 'static;

    /// Returns the state that the response needs.
    fn on_request(&self, request: &mut Request) -> Self::State;

    /// Returns the response to send.
    fn on_response(state: Self::State, response: Response) -> Response;
}

/// Layer that applies a [`Check`].
#[derive(Clone)]
pub(super) struct CheckLayer<C>(pub(super) C);

/// Layer that applies a [`RequestResponseHook`].
#[derive(Clone)]
pub(super) struct HookLayer<A>(pub(super) A);

/// Service whose requests are checked.
#[derive(Clone)]
pub(super) struct CheckedService<C, S> {
    check: C,
    inner: S,
}

/// Service whose requests and responses pass hooks.
#[derive(Clone)]
pub(super) struct HookService<A, S> {
    hook: A,
    inner: S,
}

impl<C: Check, S> Layer<S> for CheckLayer<C> {
    type Service = CheckedService<C, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let check = self.0.clone();
        CheckedService { check, inner }
    }
}

impl<A: RequestResponseHook, S> Layer<S> for HookLayer<A> {
    type Service = HookService<A, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let hook = self.0.clone();
        HookService { hook, inner }
    }
}

impl<C, S> Service<Request> for CheckedService<C, S>
where
    C: Check,
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Ready<Outcome>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        match self.check.reject(&mut request) {
            Some(response) => Either::Left(ready(Ok(response))),
            None => Either::Right(self.inner.call(request)),
        }
    }
}

impl<A, S> Service<Request> for HookService<A, S>
where
    A: RequestResponseHook,
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Map<S::Future, Box<dyn FnOnce(Outcome) -> Outcome + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let state = self.hook.on_request(&mut request);
        let end =
            Box::new(|response: Outcome| response.map(|response| A::on_response(state, response)));
        self.inner.call(request).map(end)
    }
}
