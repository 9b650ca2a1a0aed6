//! Plain HTTP beside gRPC on the admin listener, for probes that speak nothing else.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tonic::Status;

use super::health::{Health, Probe};

/// Returns the two paths that probes ask for.
pub(super) fn routes(health: &Arc<Health>) -> Router {
    let answer = |probe| {
        let health = Arc::clone(health);
        get(move || async move {
            match health.why_not(probe) {
                None => (StatusCode::OK, "ok"),
                Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
            }
        })
    };
    let router = Router::new().route("/livez", answer(Probe::Live));
    router.route("/readyz", answer(Probe::Ready))
}

/// Answers what no route of the admin listener serves.
pub(super) async fn nothing_here(request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("no such service on this listener").into_http();
    }
    StatusCode::NOT_FOUND.into_response()
}
