//! Authenticates calls by their headers: a caller without a valid credential is rejected before the
//! message of the call is read. Services find the [`RequestContext`] in the extensions of the
//! request.

use axum::{extract::Request, http::header::AUTHORIZATION, response::Response};
use tokio::sync::watch;
use tonic::Status;

use crate::{
    access::AccessControl,
    config::ReloadableConfig,
    request::{RequestContext, bearer_token},
    transport::Peer,
};

/// Path prefix of the health service, which needs no credentials: probes have none.
const UNAUTHENTICATED_PREFIX: &str = "/grpc.health.v1.Health/";

/// Returns a check that rejects calls which fail authentication by the rules of `access`.
pub(super) fn authentication(
    access: AccessControl,
    live: watch::Receiver<ReloadableConfig>,
) -> impl Fn(&mut Request) -> Option<Response> + Clone {
    move |request: &mut Request| {
        if request.uri().path().starts_with(UNAUTHENTICATED_PREFIX) {
            return None;
        }
        let peer = request.extensions().get::<Peer>();
        let authorization = request.headers().get(AUTHORIZATION);
        let bearer = authorization.map(|header| bearer_token(header.as_bytes()));
        let limits = live.borrow().limits;
        match RequestContext::authenticate(&access, limits, peer, bearer) {
            Ok(context) => {
                request.extensions_mut().insert(context);
                None
            }
            Err(error) => Some(Status::from(error).into_http()),
        }
    }
}
