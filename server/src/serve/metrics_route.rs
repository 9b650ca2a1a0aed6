//! `/metrics` on the admin listener, for authenticated callers.

use crate::{
    broker::Broker,
    inspection::InspectionService,
    metrics::{BrokerStatus, Metrics},
    request::bearer_token,
    transport::Peer,
};
use axum::{
    Router,
    extract::Request,
    http::{
        StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE},
    },
    response::{IntoResponse as _, Response},
    routing::get,
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the route `/metrics`.
pub(super) fn route(metrics: &Metrics, inspection: &InspectionService) -> Router {
    let (metrics, inspection) = (metrics.clone(), inspection.clone());
    let scrape = get(move |request: Request| {
        let (metrics, inspection) = (metrics.clone(), inspection.clone());
        let peer = request.extensions().get::<Peer>();
        let authorization = request.headers().get(AUTHORIZATION);
        let bearer = authorization.map(|header| bearer_token(header.as_bytes()));
        let authenticated = inspection.authenticate(peer, bearer);
        async move {
            if authenticated.is_err() {
                let how = [(WWW_AUTHENTICATE, "Bearer")];
                return (StatusCode::UNAUTHORIZED, how).into_response();
            }
            answer(&metrics, inspection.broker()).await
        }
    });
    Router::new().route("/metrics", scrape)
}

async fn answer(metrics: &Metrics, broker: Option<&Broker>) -> Response {
    let status = match broker {
        Some(broker) => broker.status().await,
        None => BrokerStatus::default(),
    };
    match metrics.text(&status) {
        Some(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
