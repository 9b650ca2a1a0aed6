//! Admits calls by their headers: a caller without a good credential is answered before a byte of the call's message
//! is read. Services find the [`Caller`](crate::access::Caller) among the extensions of the request.

use axum::{
    extract::{Request, State},
    http::header::AUTHORIZATION,
    middleware::Next,
    response::Response,
};

use crate::{access::Gate, grpc, transport::Peer};

/// The one service that everybody may call: probes have no credentials.
const OPEN: &str = "/grpc.health.v1.Health/";

/// The check of credentials. Cheap to clone.
#[derive(Clone)]
pub(super) struct Admission {
    gate: Gate,
}

impl Admission {
    /// Creates the check by these rules.
    pub(super) fn new(gate: Gate) -> Self {
        Self { gate }
    }
}

/// Admits a call, or answers it.
pub(super) async fn admit(
    State(admission): State<Admission>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.uri().path().starts_with(OPEN) {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<Peer>();
    let authorization = request.headers().get(AUTHORIZATION);
    let authorization = authorization.map(|header| header.as_bytes());
    match grpc::authenticate(&admission.gate, peer, authorization) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refused) => refused.into_http(),
    }
}
