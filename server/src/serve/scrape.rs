//! `/metrics` on the admin listener, for whoever is known there.

use std::sync::{Arc, OnceLock};

use axum::{
    extract::Request,
    http::{
        StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE},
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use tonic::service::Routes;

use crate::{
    access::{Gate, Shown},
    broker::Broker,
    metrics::{Metrics, Standing},
    transport::Peer,
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const BEARER: &str = "Bearer ";

/// The services, and the path that Prometheus asks for.
pub(super) fn beside(
    services: Routes,
    metrics: &Metrics,
    gate: &Gate,
    broker: &Arc<OnceLock<Broker>>,
) -> Routes {
    let (metrics, gate, broker) = (metrics.clone(), gate.clone(), Arc::clone(broker));
    let scrape = get(move |request: Request| {
        let (metrics, broker) = (metrics.clone(), Arc::clone(&broker));
        let is_known = is_known(&gate, &request);
        async move {
            if !is_known {
                let how = [(WWW_AUTHENTICATE, "Bearer")];
                return (StatusCode::UNAUTHORIZED, how).into_response();
            }
            answer(&metrics, broker.get()).await
        }
    });
    let router = services.into_axum_router();
    router.route("/metrics", scrape).into()
}

/// By a bearer token, or by the certificate of the connection.
fn is_known(gate: &Gate, request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    let shown = request.headers().get(AUTHORIZATION);
    let bearer = shown.map(|shown| {
        shown
            .to_str()
            .ok()
            .and_then(|text| text.strip_prefix(BEARER))
    });
    // One that cannot be read is not as none.
    let bearer = bearer.map(Option::unwrap_or_default);
    let caller = gate.caller(Shown {
        address: peer.map(|peer| peer.address.ip().to_canonical()),
        certified: peer.and_then(|peer| peer.identity.as_ref()),
        bearer,
    });
    caller.is_ok()
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
