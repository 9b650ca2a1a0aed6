//! `/metrics` on the admin listener, for authenticated callers.

use std::sync::{Arc, OnceLock};

use crate::{
    access::AccessControl,
    broker::Broker,
    metrics::{BrokerStatus, Metrics},
    request::{authenticate, bearer_token},
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
pub(super) fn route(
    metrics: &Metrics,
    access: &AccessControl,
    broker: &Arc<OnceLock<Broker>>,
) -> Router {
    let (metrics, access, broker) = (metrics.clone(), access.clone(), Arc::clone(broker));
    let scrape = get(move |request: Request| {
        let (metrics, broker) = (metrics.clone(), Arc::clone(&broker));
        let peer = request.extensions().get::<Peer>();
        let authorization = request.headers().get(AUTHORIZATION);
        let bearer = authorization.map(|header| bearer_token(header.as_bytes()));
        let caller = authenticate(&access, peer, bearer);
        async move {
            if caller.is_err() {
                let how = [(WWW_AUTHENTICATE, "Bearer")];
                return (StatusCode::UNAUTHORIZED, how).into_response();
            }
            answer(&metrics, broker.get()).await
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
