//! HTTP health checks `/livez` and `/readyz` on the admin listener, for probes that do not use
//! gRPC.

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

/// Returns the routes of both health checks.
pub(super) fn routes(health: &Arc<Health>) -> Router {
    let route = |probe| {
        let health = Arc::clone(health);
        get(move || async move {
            match health.failure(probe) {
                None => (StatusCode::OK, "ok"),
                Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
            }
        })
    };
    let router = Router::new().route("/livez", route(Probe::Live));
    router.route("/readyz", route(Probe::Ready))
}

/// Rejects requests that match no route of the admin listener.
pub(super) async fn nothing_here(request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("no such service on this listener").into_http();
    }
    StatusCode::NOT_FOUND.into_response()
}
