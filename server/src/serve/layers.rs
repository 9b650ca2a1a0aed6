//! What happens to a request before a service sees it, in layers with one concern each.

mod admission;
mod answers;
mod begun;
mod bodies;
mod browsers;
mod counting;
mod deadline;
mod hooked;
mod hosts;
mod messages;
mod places;
mod small;
mod spans;

use std::sync::Arc;

use axum::{
    Router,
    middleware::{from_fn_with_state, map_request},
};
use tonic::service::Routes;
use tower::ServiceBuilder;

use self::{
    admission::Admission,
    answers::Answers,
    begun::Begun,
    browsers::GrpcOnly,
    counting::calls,
    hosts::Hosts,
    messages::Arrival,
    places::AllPlaces,
    small::{Checking, Surrounding},
    spans::Spans,
};
use super::health::Health;
use crate::{
    access::Gate,
    config::{Config, Http2},
    trace::Tracing,
};

/// What the layers of both listeners need.
pub(super) struct Edge<'a> {
    pub(super) config: &'a Config,
    pub(super) gate: &'a Gate,
    pub(super) tracing: &'a Tracing,
    pub(super) health: &'a Arc<Health>,
}

/// Puts the layers of gRPC around the services of a listener, the outermost first.
pub(super) fn around_grpc(services: Routes, edge: &Edge<'_>) -> Router {
    let Config { metrics, http2, .. } = edge.config;
    let layers = ServiceBuilder::new()
        .layer(Checking(GrpcOnly(metrics.clone())))
        .layer(Surrounding(calls(metrics)))
        .layer(Checking(edge.admission()))
        .layer(Spans(edge.tracing.clone()))
        .layer(edge.arrival(http2))
        .layer(from_fn_with_state(AllPlaces::default(), places::take))
        .layer(Surrounding(Answers));
    services.into_axum_router().layer(layers)
}

/// Puts the layer of all routes around the API.
pub(super) fn around_api(routes: Router) -> Router {
    routes.layer(Checking(Begun))
}

/// Puts the layers of plain HTTP around what the admin listener serves besides gRPC.
pub(super) fn around_http(routes: Router) -> Router {
    let layers = ServiceBuilder::new()
        .layer(map_request(bodies::limit))
        .layer(Surrounding(Answers));
    routes.layer(layers)
}

/// Puts the layers of all routes around the admin listener.
pub(super) fn around_admin(routes: Router, edge: &Edge<'_>) -> Router {
    let layers = ServiceBuilder::new()
        .layer(Checking(Begun))
        .layer(Checking(edge.hosts()));
    routes.layer(layers)
}

impl Edge<'_> {
    fn admission(&self) -> Admission {
        Admission::new(self.gate.clone())
    }

    fn arrival(&self, http2: &Http2) -> Arrival {
        Arrival::new(Arc::clone(self.health), http2)
    }

    fn hosts(&self) -> Hosts {
        let Config {
            admin_hosts,
            metrics,
            ..
        } = self.config;
        Hosts::new(admin_hosts, self.gate.clone(), metrics.clone())
    }
}
