//! Admits calls by their headers: a caller without a good credential is answered before a byte of the call's message
//! is read. Services find the [`Caller`](crate::access::Caller) among the extensions of the request.

use axum::{extract::Request, http::header::AUTHORIZATION, response::Response};

use super::small::Check;
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

/// Answers a call that is not admitted.
impl Check for Admission {
    fn refusal(&self, request: &mut Request) -> Option<Response> {
        if request.uri().path().starts_with(OPEN) {
            return None;
        }
        let peer = request.extensions().get::<Peer>();
        let authorization = request.headers().get(AUTHORIZATION);
        let authorization = authorization.map(|header| header.as_bytes());
        match grpc::authenticate(&self.gate, peer, authorization) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                None
            }
            Err(refused) => Some(refused.into_http()),
        }
    }
}
