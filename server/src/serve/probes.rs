//! Plain HTTP beside gRPC on the admin listener, for probes that speak nothing else.

use std::sync::Arc;

use axum::{
    extract::Request,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tonic::{Status, service::Routes};

use super::health::{Health, Probe};

/// The services, and the two paths that probes ask for.
pub(super) fn beside(services: Routes, health: &Arc<Health>) -> Routes {
    let answer = |probe| {
        let health = Arc::clone(health);
        get(move || async move {
            match health.why_not(probe) {
                None => (StatusCode::OK, "ok"),
                Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
            }
        })
    };
    let router = services.into_axum_router();
    let router = router.route("/livez", answer(Probe::Live));
    let router = router.route("/readyz", answer(Probe::Ready));
    router.fallback(nothing_here).into()
}

async fn nothing_here(request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("no such service on this listener").into_http();
    }
    StatusCode::NOT_FOUND.into_response()
}
