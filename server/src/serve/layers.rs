//! Tower layers around the services: each handles one concern of a request before the service
//! receives it.

mod authentication;
mod browser_guard;
mod call_limits;
mod call_started;
mod deadline;
mod generic;
mod hooked_body;
mod host_guard;
mod http_body_timeout;
mod request_messages;
mod response_tracking;
mod rpc_metrics;
mod rpc_spans;

use std::sync::Arc;

use axum::{
    Router,
    middleware::{from_fn_with_state, map_request},
};
use tonic::service::Routes;
use tower::ServiceBuilder;

use self::{
    authentication::Admission,
    browser_guard::GrpcOnly,
    call_limits::GlobalCallLimits,
    call_started::CallStarted,
    generic::{CheckLayer, HookLayer},
    host_guard::Hosts,
    request_messages::MessageLimits,
    response_tracking::ResponseTracking,
    rpc_metrics::rpc_metrics,
    rpc_spans::SpanLayer,
};
use super::health::Health;
use crate::{
    access::AccessControl,
    config::{Config, Http2},
    trace::Tracing,
};

/// Dependencies of the layers of both listeners.
pub(super) struct EdgeDependencies<'a> {
    pub(super) config: &'a Config,
    pub(super) access: &'a AccessControl,
    pub(super) tracing: &'a Tracing,
    pub(super) health: &'a Arc<Health>,
}

/// Wraps the gRPC services of a listener in their layers, the outermost first.
pub(super) fn wrap_grpc(services: Routes, edge: &EdgeDependencies<'_>) -> Router {
    let Config { metrics, http2, .. } = edge.config;
    let layers = ServiceBuilder::new()
        .layer(CheckLayer(GrpcOnly(metrics.clone())))
        .layer(HookLayer(rpc_metrics(metrics)))
        .layer(CheckLayer(edge.admission()))
        .layer(SpanLayer(edge.tracing.clone()))
        .layer(edge.message_limits(http2))
        .layer(from_fn_with_state(
            GlobalCallLimits::default(),
            call_limits::limit_expensive_calls,
        ))
        .layer(HookLayer(ResponseTracking));
    services.into_axum_router().layer(layers)
}

/// Wraps the API in the layer for all routes.
pub(super) fn wrap_api(routes: Router) -> Router {
    routes.layer(CheckLayer(CallStarted))
}

/// Wraps the plain HTTP routes of the admin listener in their layers.
pub(super) fn wrap_http(routes: Router) -> Router {
    let layers = ServiceBuilder::new()
        .layer(map_request(http_body_timeout::limit))
        .layer(HookLayer(ResponseTracking));
    routes.layer(layers)
}

/// Wraps the admin listener in the layers for all routes.
pub(super) fn wrap_admin(routes: Router, edge: &EdgeDependencies<'_>) -> Router {
    let layers = ServiceBuilder::new()
        .layer(CheckLayer(CallStarted))
        .layer(CheckLayer(edge.hosts()));
    routes.layer(layers)
}

impl EdgeDependencies<'_> {
    fn admission(&self) -> Admission {
        Admission::new(self.access.clone())
    }

    fn message_limits(&self, http2: &Http2) -> MessageLimits {
        MessageLimits::new(Arc::clone(self.health), http2)
    }

    fn hosts(&self) -> Hosts {
        let Config {
            admin_hosts,
            metrics,
            ..
        } = self.config;
        Hosts::new(admin_hosts, self.access.clone(), metrics.clone())
    }
}
