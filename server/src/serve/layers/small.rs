//! Two kinds of layers that have no task of their own to do. Many calls may wait for their messages at the same time, and
//! each layer around them that is an `async fn` keeps about 3 KiB for each of them.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use axum::{extract::Request, response::Response};
use futures::future::{Either, FutureExt as _, Map, Ready, ready};
use tower::{Layer, Service};

type Outcome = Result<Response, Infallible>;

/// A check of requests before they go on.
pub(super) trait Check: Clone {
    /// Returns the answer to a request that must not go on.
    fn refusal(&self, request: &mut Request) -> Option<Response>;
}

/// What is noted when a call comes, and done with its answer.
pub(super) trait Around: Clone {
    /// What is noted.
    type Noted: Send + 'static;

    /// Notes what its answer needs.
    fn begin(&self, request: &mut Request) -> Self::Noted;

    /// Returns the answer as it is sent.
    fn end(noted: Self::Noted, answer: Response) -> Response;
}

/// The layer of a [`Check`].
#[derive(Clone)]
pub(super) struct Checking<C>(pub(super) C);

/// The layer of an [`Around`].
#[derive(Clone)]
pub(super) struct Surrounding<A>(pub(super) A);

/// A service behind a check.
#[derive(Clone)]
pub(super) struct Checked<C, S> {
    check: C,
    inner: S,
}

/// A service whose answers something is done with.
#[derive(Clone)]
pub(super) struct Surrounded<A, S> {
    around: A,
    inner: S,
}

impl<C: Check, S> Layer<S> for Checking<C> {
    type Service = Checked<C, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let check = self.0.clone();
        Checked { check, inner }
    }
}

impl<A: Around, S> Layer<S> for Surrounding<A> {
    type Service = Surrounded<A, S>;

    fn layer(&self, inner: S) -> Self::Service {
        let around = self.0.clone();
        Surrounded { around, inner }
    }
}

impl<C, S> Service<Request> for Checked<C, S>
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
        match self.check.refusal(&mut request) {
            Some(answer) => Either::Left(ready(Ok(answer))),
            None => Either::Right(self.inner.call(request)),
        }
    }
}

impl<A, S> Service<Request> for Surrounded<A, S>
where
    A: Around,
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Map<S::Future, Box<dyn FnOnce(Outcome) -> Outcome + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let noted = self.around.begin(&mut request);
        let end = Box::new(|answer: Outcome| answer.map(|answer| A::end(noted, answer)));
        self.inner.call(request).map(end)
    }
}
