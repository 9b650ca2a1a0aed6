//! Authenticates calls by their headers: a caller without a valid credential is rejected before the
//! message of the call is read. Services find the [`Caller`](crate::access::Caller) in the
//! extensions of the request.

use axum::{extract::Request, http::header::AUTHORIZATION, response::Response};
use tonic::Status;

use crate::{
    access::AccessControl,
    request::{authenticate, bearer_token},
    transport::Peer,
};

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
        let bearer = authorization.map(|header| bearer_token(header.as_bytes()));
        match authenticate(&access, peer, bearer) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                None
            }
            Err(error) => Some(Status::from(error).into_http()),
        }
    }
}
