//! `/metrics` on the admin listener, for whoever is known there.

use std::sync::{Arc, OnceLock};

use crate::{
    access::Gate,
    broker::Broker,
    grpc,
    metrics::{Metrics, Standing},
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

/// Returns the path that Prometheus asks for.
pub(super) fn route(metrics: &Metrics, gate: &Gate, broker: &Arc<OnceLock<Broker>>) -> Router {
    let (metrics, gate, broker) = (metrics.clone(), gate.clone(), Arc::clone(broker));
    let scrape = get(move |request: Request| {
        let (metrics, broker) = (metrics.clone(), Arc::clone(&broker));
        let peer = request.extensions().get::<Peer>();
        let authorization = request.headers().get(AUTHORIZATION);
        let authorization = authorization.map(|header| header.as_bytes());
        let caller = grpc::authenticate(&gate, peer, authorization);
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
    let standing = match broker {
        Some(broker) => broker.standing().await,
        None => Standing::default(),
    };
    match metrics.text(&standing) {
        Some(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
