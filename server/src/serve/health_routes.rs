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
use crate::{broker::Broker, inspection::InspectionService, store::RecoveryState};

/// Returns the routes of both health checks. The readiness of a broker whose store recovers says
/// so, without the name of the server: callers of probes are not authenticated.
pub(super) fn routes(health: &Arc<Health>, inspection: &InspectionService) -> Router {
    let inspection = inspection.clone();
    let ready_text = move || match inspection.broker().map(Broker::recovery) {
        Some(RecoveryState::Recovering { recovery, .. }) => {
            format!("ok; {}", recovery.sentence("the store"))
        }
        Some(RecoveryState::Granting | RecoveryState::Unknown) | None => "ok".to_owned(),
    };
    let (live, ready) = (Arc::clone(health), Arc::clone(health));
    Router::new()
        .route(
            "/livez",
            get(async move || answer(live.failure(Probe::Live), || "ok".to_owned())),
        )
        .route(
            "/readyz",
            get(async move || answer(ready.failure(Probe::Ready), ready_text)),
        )
}

fn answer(failure: Option<&'static str>, ok: impl FnOnce() -> String) -> (StatusCode, String) {
    match failure {
        None => (StatusCode::OK, ok()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason.to_owned()),
    }
}

/// Rejects requests that match no route of the admin listener.
pub(super) async fn nothing_here(request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("no such service on this listener").into_http();
    }
    StatusCode::NOT_FOUND.into_response()
}
