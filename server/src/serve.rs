//! Server lifecycle: starts the store, both listeners and the broker, and drains them on shutdown.

mod banner;
mod health;
mod health_routes;
mod layers;
mod listeners;
mod log_filter;
mod methods;
mod metrics_route;

use std::{
    future::Future,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold_proto::FILE_DESCRIPTOR_SET;
use thiserror::Error;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{
    service::Routes,
    transport::{Server, server::Router},
};

pub use self::listeners::Listeners;
use self::{
    health::{Health, Phase},
    layers::{EdgeDependencies, limit_expensive_calls, wrap_admin, wrap_api, wrap_grpc, wrap_http},
};
use crate::{
    access::{AccessControl, RulesReloader},
    broker::{Broker, lease_stream::StreamAge},
    config::{Config, Http2, StoreSettings},
    console, grpc,
    inspection::InspectionService,
    lock::BrokerId,
    metrics::Listener,
    quotas::Quotas,
    store::{
        Store,
        memory::Memory,
        redis::{RedisStore, connection::NodeError, scripts::Scripts},
        redlock::{self, RedlockStore},
    },
    trace::Tracing,
    transport::{Acceptor, AllowedProtocol, Incoming, ListenerSettings, Tls},
};

const READY_PROBE: Duration = Duration::from_millis(100);
/// Maximum age of a connection accepted during a drain. After it the client reconnects, possibly to
/// another broker.
const DRAIN_CONNECTION_AGE: Duration = Duration::from_millis(500);
/// Maximum number of concurrent calls on a connection of the admin listener. Operators and probes
/// make few.
const ADMIN_STREAMS_MAX: u32 = 64;

/// Reason why a broker failed to start or stopped without a shutdown request.
#[derive(Debug, Error)]
pub enum RunError {
    /// A socket could not be bound.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        address: SocketAddr,
        /// Cause, and what to do about it.
        reason: String,
    },
    /// The certificate cannot be loaded.
    #[error("{0}")]
    Tls(String),
    /// The tokens, the keys or the policy cannot be loaded.
    #[error("{0}")]
    Rules(String),
    /// The address of the trace collector is not usable.
    #[error("{0}")]
    Tracing(String),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] NodeError),
    /// A server stopped with an error.
    #[error("the server stopped: {0}")]
    Server(#[from] tonic::transport::Error),
    /// The descriptors of the API cannot be decoded, which means that the build is broken.
    #[error("cannot serve gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `shutdown` completes, then drains: clients are asked to reconnect elsewhere and are
/// served until they have done so, at most for `drain_timeout`. Leases and queue positions of
/// clients are kept.
///
/// # Errors
/// If a configured file or address cannot be used, the store cannot be used, or a server stops with
/// an error.
pub async fn run(
    config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let settings = config.settings.explicit_settings();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), settings, "starting");
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let tracing = Tracing::start(&config.tracing).map_err(RunError::Tracing)?;
    let live = config.live.subscribe();
    let ended = serve(config, listeners, &tracing, shutdown).await;
    let drain_timeout = live.borrow().drain_timeout;
    tracing.flush(tracing.flush_budget(drain_timeout)).await;
    ended
}

async fn serve(
    config: Config,
    listeners: Listeners,
    tracing: &Tracing,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let health = Health::starting();
    let stop = CancellationToken::new();
    let _stop_with_this_future = stop.clone().drop_guard();
    let broker = Arc::default();
    let (api, admin) = (listeners.api, listeners.admin);
    let tls = config
        .access
        .tls
        .clone()
        .map(|files| Tls::load(files, config.metrics.clone()))
        .transpose()
        .map_err(RunError::Tls)?;
    let tls = tls.map(Arc::new);
    let (rules, follower) = RulesReloader::start(config.access.rules.clone())
        .await
        .map_err(|problems| RunError::Rules(problems.join(" ")))?;
    let (newest, rules) = watch::channel(Arc::new(rules));
    let access = AccessControl::new(rules, config.metrics.clone());
    let follow = follower.run(newest, config.metrics.clone());
    let budget = Arc::default();
    let setup = |listener, protocol| ListenerSettings {
        tls: tls.clone(),
        protocol,
        limits: config.access.limits,
        listener,
        metrics: config.metrics.clone(),
        budget: Arc::clone(&budget),
    };
    let (api, calls) = Acceptor::new(api, setup(Listener::Api, AllowedProtocol::Http2));
    let (admin, probes) = Acceptor::new(admin, setup(Listener::Admin, AllowedProtocol::Either));
    let edge = EdgeDependencies {
        config: &config,
        access: &access,
        tracing,
        health: &health,
    };
    let follow_tls = async {
        if let Some(tls) = &tls {
            tls.watch_files().await;
        }
    };
    let inspection = InspectionService::new(
        Arc::clone(&broker),
        access.clone(),
        config.live.subscribe(),
        grpc::page_bounds(&config.http2),
    );
    let console = console::router(inspection.clone(), config.store.description(), stop.clone());
    let operators = admin_router(&edge, &inspection, console)
        .serve_with_incoming_shutdown(probes.connections(), stop.clone().cancelled_owned());
    let callers = serve_api(&edge, calls, &inspection, &broker, shutdown);
    tokio::select! {
        ended = callers => ended,
        ended = operators => ended.map_err(RunError::from),
        () = async { tokio::join!(api.run(), admin.run(), follow, follow_tls); } => Ok(()),
    }
}

async fn serve_api(
    edge: &EdgeDependencies<'_>,
    calls: Incoming,
    inspection: &InspectionService,
    started: &OnceLock<Broker>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let (config, tracing, health) = (edge.config, edge.tracing, edge.health);
    let mut shutdown = pin!(shutdown);
    let stop = CancellationToken::new();
    let _stop_with_this_future = stop.clone().drop_guard();
    let tasks = TaskTracker::new();
    let store_stop = stop.child_token();
    let ticks = Arc::clone(health).tick();
    tasks.spawn(store_stop.clone().run_until_cancelled_owned(ticks));
    let store = tokio::select! {
        store = build_store(config.store.clone(), &tasks, store_stop.clone()) => store?,
        () = &mut shutdown => return Ok(()),
    };
    let stream_age = StreamAge {
        max_age: config.http2.max_connection_age,
        grace: config.http2.max_connection_age_grace,
    };
    let broker = started.get_or_init(|| {
        let live = config.live.subscribe();
        let quotas = Quotas::new(move || live.borrow().quotas);
        let (store, metrics) = (Arc::clone(&store), config.metrics.clone());
        Broker::with_telemetry(store, quotas, stream_age, metrics, tracing)
    });
    edge.access.denials().attach_history(broker.history());
    let api = |server, stop: &CancellationToken| {
        let router = api_router(server, edge, inspection, broker)?;
        let stopped = stop.clone().cancelled_owned();
        let served = router.serve_with_incoming_shutdown(calls.connections(), stopped);
        Ok::<_, RunError>(served)
    };
    let (draining, stopped) = (stop.child_token(), stop.child_token());
    let mut api_server = pin!(api(server_with_max_age(&config.http2), &draining)?);
    let ready_then_stop = async {
        tokio::select! {
            () = wait_for_store(store.as_ref(), health) => shutdown.await,
            () = &mut shutdown => {}
        }
    };
    tokio::select! {
        ended = &mut api_server => return Ok(ended?),
        () = ready_then_stop => {}
    }
    tracing::info!("draining");
    health.set(Phase::Draining);
    let drain_timeout = config.live.borrow().drain_timeout;
    broker.drain(drain_timeout / 3);
    // Open connections receive a GOAWAY. New ones are still accepted: a client that finds no other
    // broker yet can release and renew.
    draining.cancel();
    let short_lived = server(&config.http2).max_connection_age(DRAIN_CONNECTION_AGE);
    let drain_server = api(short_lived, &stopped)?;
    let drained = async {
        let moved = async {
            broker.wait_until_idle().await;
            health.set(Phase::Stopped);
            stopped.cancel();
        };
        let (api_server, drain_server, ()) = tokio::join!(api_server, drain_server, moved);
        api_server.and(drain_server)?;
        store_stop.cancel();
        tasks.close();
        tasks.wait().await;
        Ok(())
    };
    let drained = timeout(tracing.remaining_budget(drain_timeout), drained);
    drained.await.unwrap_or_else(|_| {
        tracing::warn!("drain_timeout has passed: closing all connections that are still open");
        Ok(())
    })
}

async fn build_store(
    settings: StoreSettings,
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> Result<Arc<dyn Store>, RunError> {
    let broker = BrokerId::random();
    Ok(match settings {
        StoreSettings::Memory { quarantine } => Arc::new(Memory::new(quarantine).connect(broker)),
        StoreSettings::Redis(redis) => {
            Arc::new(RedisStore::start(*redis, broker, Scripts::standard(), tasks, stop).await?)
        }
        StoreSettings::Redlock { common, addresses } => {
            let nodes = redlock::nodes(&common, &addresses);
            Arc::new(RedlockStore::start(nodes, broker, Scripts::standard(), tasks, stop).await?)
        }
    })
}

/// Completes when the store has answered for the first time.
async fn wait_for_store(store: &dyn Store, health: &Health) {
    while let Err(error) = store.deployment_key().await {
        tracing::debug!(%error, "the store is not ready yet");
        sleep(READY_PROBE).await;
    }
    health.set(Phase::Serving);
    tracing::info!("serving");
}

fn api_router(
    mut server: Server,
    edge: &EdgeDependencies<'_>,
    inspection: &InspectionService,
    broker: &Broker,
) -> Result<Router, RunError> {
    let (config, access) = (edge.config, edge.access);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let http2 = &config.http2;
    let mut expensive = Routes::new(edge.health.service())
        .add_service(grpc::inspection_service(inspection.clone(), http2));
    // Reflection is offered only if callers need no credentials.
    if !access.requires_authentication() {
        expensive = expensive
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
    }
    let mut routes = limit_expensive_calls(expensive).add_service(grpc::lock_service(
        broker.clone(),
        inspection.clone(),
        config.live.subscribe(),
        edge.tracing.clone(),
        http2,
    ));
    if config.dev {
        routes = routes.add_service(grpc::admin_service(inspection.clone(), http2));
    }
    Ok(server.add_routes(wrap_api(wrap_grpc(routes, edge)).into()))
}

fn admin_router(
    edge: &EdgeDependencies<'_>,
    inspection: &InspectionService,
    console: axum::Router,
) -> Router {
    let (config, health) = (edge.config, edge.health);
    let http2 = &config.http2;
    let admin = grpc::admin_service(inspection.clone(), http2);
    let services = limit_expensive_calls(Routes::new(health.service())).add_service(admin);
    let plain = health_routes::routes(health, inspection)
        .merge(metrics_route::route(&config.metrics, inspection))
        .merge(log_filter::route(inspection))
        .merge(console);
    let routes = wrap_grpc(services, edge).merge(wrap_http(plain));
    let routes = wrap_admin(routes.fallback(health_routes::nothing_here), edge);
    server_with_max_age(http2)
        .max_concurrent_streams(http2.max_concurrent_streams.min(ADMIN_STREAMS_MAX))
        .accept_http1(true)
        .add_routes(routes.into())
}

/// Returns a server whose connections accept no new calls after `max_connection_age` and close with
/// their last call.
///
/// No `max_connection_age_grace` is set: with a grace, tonic 0.14 sends no GOAWAY and closes the
/// connection after it.
fn server_with_max_age(http2: &Http2) -> Server {
    server(http2).max_connection_age(http2.max_connection_age)
}

fn server(http2: &Http2) -> Server {
    let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    Server::builder()
        .max_concurrent_streams(http2.max_concurrent_streams)
        .http2_max_local_error_reset_streams(Some(count(http2.max_local_error_resets)))
        .http2_max_pending_accept_reset_streams(Some(count(http2.max_pending_accept_resets)))
        .http2_max_header_list_size(http2.max_header_list)
        .initial_connection_window_size(http2.connection_window)
        .initial_stream_window_size(http2.stream_window)
        .http2_keepalive_interval(Some(http2.keepalive_interval))
        .http2_keepalive_timeout(Some(http2.keepalive_timeout))
}
