//! Tower layers around the services: each handles one concern of a request before the service
//! receives it.

mod authentication;
mod browser_guard;
mod call_limits;
mod deadline;
mod hooks;
mod host_guard;
mod http_body_timeout;
mod request_messages;
mod response_tracking;
mod rpc_metrics;
mod rpc_spans;

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware::{from_fn_with_state, map_request},
    response::Response,
};
use tonic::service::Routes;
use tower::ServiceBuilder;

use self::{
    authentication::authentication, browser_guard::browser_guard, hooks::HookLayer,
    host_guard::host_guard, request_messages::MessageLimits, response_tracking::ResponseTracking,
    rpc_metrics::rpc_metrics, rpc_spans::SpanLayer,
};
use super::health::Health;
use crate::{access::AccessControl, config::Config, trace::Tracing, transport::Peer};

/// Dependencies of the layers of both listeners.
pub(super) struct EdgeDependencies<'a> {
    pub(super) config: &'a Config,
    pub(super) access: &'a AccessControl,
    pub(super) tracing: &'a Tracing,
    pub(super) health: &'a Arc<Health>,
}

/// Wraps the gRPC services of a listener in their layers, the outermost first.
pub(super) fn wrap_grpc(services: Routes, edge: &EdgeDependencies<'_>) -> Router {
    let Config {
        metrics,
        http2,
        live,
        ..
    } = edge.config;
    let layers = ServiceBuilder::new()
        .layer(HookLayer(browser_guard(metrics.clone())))
        .layer(HookLayer(rpc_metrics(metrics)))
        .layer(HookLayer(authentication(
            edge.access.clone(),
            live.subscribe(),
        )))
        .option_layer(
            edge.tracing
                .is_on()
                .then(|| SpanLayer(edge.tracing.clone())),
        )
        .layer(MessageLimits::new(Arc::clone(edge.health), http2))
        .layer(HookLayer(ResponseTracking));
    services.into_axum_router().layer(layers)
}

/// Wraps services that have expensive calls in the layer that limits these calls.
pub(super) fn limit_expensive_calls(services: Routes) -> Routes {
    let limits = from_fn_with_state(
        call_limits::global_limits(),
        call_limits::limit_expensive_calls,
    );
    services.into_axum_router().route_layer(limits).into()
}

/// Wraps the API in the layer for all routes.
pub(super) fn wrap_api(routes: Router) -> Router {
    routes.layer(HookLayer(call_started))
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
    let names = edge.config.admin_hosts.as_slice().into();
    let hosts = host_guard(names, edge.access.clone(), edge.config.metrics.clone());
    let layers = ServiceBuilder::new()
        .layer(HookLayer(call_started))
        .layer(HookLayer(hosts));
    routes.layer(layers)
}

/// Notifies the connection that a request has reached a service.
fn call_started(request: &mut Request) -> Option<Response> {
    let peer = request.extensions().get::<Peer>()?;
    peer.load.call_started();
    None
}
