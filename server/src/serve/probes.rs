//! Plain HTTP beside gRPC on the admin listener: for probes that speak nothing else, and for the operators' page.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tonic::{Status, service::Routes};

use super::{
    health::{Health, Probe},
    log_filter,
};
use crate::access::Gate;

/// The services, the two paths that probes ask for, that of the log, and the page.
pub(super) fn beside(services: Routes, health: &Arc<Health>, gate: &Gate, page: Router) -> Routes {
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
    let router = log_filter::beside(router, gate);
    router.merge(page).fallback(nothing_here).into()
}

async fn nothing_here(request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("no such service on this listener").into_http();
    }
    StatusCode::NOT_FOUND.into_response()
}
