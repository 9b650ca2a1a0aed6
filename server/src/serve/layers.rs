//! What happens to a request before a service sees it, in layers with one concern each.

mod admission;
mod answers;
mod bodies;
mod browsers;
mod counting;
mod deadline;
mod hosts;
mod messages;
mod places;
mod spans;

use std::sync::Arc;

use axum::{
    Router,
    middleware::{from_fn, from_fn_with_state},
};
use tonic::service::Routes;
use tower::ServiceBuilder;

use self::{
    admission::Admission, counting::calls, hosts::Hosts, messages::Arrival, places::AllPlaces,
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
        .layer(from_fn_with_state(metrics.clone(), browsers::guard))
        .layer(from_fn_with_state(calls(metrics), counting::count))
        .layer(from_fn_with_state(edge.admission(), admission::admit))
        .layer(from_fn_with_state(edge.tracing.clone(), spans::trace))
        .layer(from_fn_with_state(edge.arrival(http2), messages::receive))
        .layer(from_fn_with_state(AllPlaces::default(), places::take))
        .layer(from_fn(answers::watch));
    services.into_axum_router().layer(layers)
}

/// Puts the layers of plain HTTP around what the admin listener serves besides gRPC.
pub(super) fn around_http(routes: Router) -> Router {
    let layers = ServiceBuilder::new()
        .layer(from_fn(bodies::limit))
        .layer(from_fn(answers::watch));
    routes.layer(layers)
}

/// Puts the layer of all routes around the admin listener.
pub(super) fn around_admin(routes: Router, edge: &Edge<'_>) -> Router {
    routes.layer(from_fn_with_state(edge.hosts(), hosts::guard))
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
