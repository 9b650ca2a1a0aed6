//! Authenticates calls by their headers: a caller without a valid credential is rejected before the
//! message of the call is read. Services find the [`Caller`](crate::access::Caller) in the
//! extensions of the request.

use axum::{extract::Request, http::header::AUTHORIZATION, response::Response};

use crate::{access::AccessControl, grpc, transport::Peer};

/// Path prefix of the health service, which needs no credentials: probes have none.
const UNAUTHENTICATED_PREFIX: &str = "/grpc.health.v1.Health/";

/// Returns a check that rejects calls which fail authentication by the rules of `access`.
pub(super) fn authentication(
    access: AccessControl,
) -> impl Fn(&mut Request) -> Option<Response> + Clone {
    move |request: &mut Request| {
        if request.uri().path().starts_with(UNAUTHENTICATED_PREFIX) {
            return None;
        }
        let peer = request.extensions().get::<Peer>();
        let authorization = request.headers().get(AUTHORIZATION);
        let authorization = authorization.map(|header| header.as_bytes());
        match grpc::authenticate(&access, peer, authorization) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                None
            }
            Err(status) => Some(status.into_http()),
        }
    }
}
