//! Runs a broker on sockets that the caller owns, until the caller says stop.

mod banner;
mod health;
mod layers;
mod listeners;
mod log_filter;
mod methods;
mod probes;
mod scrape;

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
    layers::{Edge, around_admin, around_api, around_grpc, around_http},
};
use crate::{
    access::{Follower, Gate},
    broker::{Broker, stream::StreamAge},
    config::{Config, Http2, StoreSettings},
    grpc::{self, Desk},
    lock::BrokerId,
    metrics::Listener,
    page,
    quotas::Quotas,
    store::{
        Store,
        memory::Memory,
        redis::{RedisStore, connection::NodeError, scripts::Scripts},
        redlock::{self, RedlockStore},
    },
    trace::Tracing,
    transport::{Accepted, Acceptor, Connections, Setup, Speaks, Tls},
};

const READY_PROBE: Duration = Duration::from_millis(100);
/// A connection that comes during a drain takes calls for so long: then its client may be led to
/// another broker.
const LATE_AGE: Duration = Duration::from_millis(500);
/// Calls at once on a connection of the admin listener: operators and probes make few.
const ADMIN_STREAMS_MAX: u32 = 64;

/// Why a broker did not start, or ended by itself.
#[derive(Debug, Error)]
pub enum RunError {
    /// A socket could not be bound.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why, and what to do.
        why: String,
    },
    /// The certificate cannot be used any more.
    #[error("{0}")]
    Tls(String),
    /// The tokens, the keys or the policy cannot be used any more.
    #[error("{0}")]
    Rules(String),
    /// The collector's address cannot be used.
    #[error("{0}")]
    Tracing(String),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] NodeError),
    /// The server ended by itself.
    #[error("the server ended: {0}")]
    Server(#[from] tonic::transport::Error),
    /// The API's own description cannot be read: the build is broken.
    #[error("cannot offer reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `shutdown` ends, then drains: clients are asked to move, and are served until they
/// have, within `drain_timeout`. Nothing that they hold or wait for is given up.
///
/// # Errors
/// If the store cannot be used, or the server ends by itself.
pub async fn run(
    config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let settings = config.settings.given();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), settings, "starting");
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let tracing = Tracing::start(&config.tracing).map_err(RunError::Tracing)?;
    let live = config.live.subscribe();
    let ended = serve(config, listeners, &tracing, shutdown).await;
    let drain_timeout = live.borrow().drain_timeout;
    tracing.flush(tracing.reserve(drain_timeout)).await;
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
    let (access, api, admin) = (&config.access, listeners.api, listeners.admin);
    let tls = access
        .tls
        .clone()
        .map(|files| Tls::load(files, config.metrics.clone()))
        .transpose()
        .map_err(RunError::Tls)?;
    let tls = tls.map(Arc::new);
    let (rules, follower) = Follower::start(access.rules.clone())
        .await
        .map_err(|problems| RunError::Rules(problems.join(" ")))?;
    let (newest, rules) = watch::channel(Arc::new(rules));
    let gate = Gate::new(rules, config.metrics.clone());
    let follow = follower.follow(newest, config.metrics.clone());
    let budget = Arc::default();
    let setup = |listener, speaks| Setup {
        tls: tls.clone(),
        speaks,
        limits: access.limits,
        counted: Connections {
            metrics: config.metrics.clone(),
            listener,
        },
        budget: Arc::clone(&budget),
    };
    let (api, calls) = Acceptor::new(api, setup(Listener::Api, Speaks::Http2));
    let (admin, probes) = Acceptor::new(admin, setup(Listener::Admin, Speaks::Either));
    let edge = Edge {
        config: &config,
        gate: &gate,
        tracing,
        health: &health,
    };
    let follow_tls = async {
        if let Some(tls) = &tls {
            tls.follow().await;
        }
    };
    let page = page::router(page::Setup {
        desk: Desk::new(
            Arc::clone(&broker),
            gate.clone(),
            config.live.subscribe(),
            &config.http2,
        ),
        store: config.store.described(),
        stop: stop.clone(),
    });
    let operators = admin_router(&edge, &broker, page)
        .serve_with_incoming_shutdown(probes.connections(), stop.clone().cancelled_owned());
    let callers = serve_api(&edge, calls, &broker, shutdown);
    tokio::select! {
        ended = callers => ended,
        ended = operators => ended.map_err(RunError::from),
        () = async { tokio::join!(api.run(), admin.run(), follow, follow_tls); } => Ok(()),
    }
}

async fn serve_api(
    edge: &Edge<'_>,
    calls: Accepted,
    started: &OnceLock<Broker>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let Edge {
        config,
        gate,
        tracing,
        health,
    } = *edge;
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
        most: config.http2.max_connection_age,
        grace: config.http2.max_connection_age_grace,
    };
    let broker = started.get_or_init(|| {
        let live = config.live.subscribe();
        let quotas = Quotas::new(move || live.borrow().quotas);
        let (store, metrics) = (Arc::clone(&store), config.metrics.clone());
        Broker::observed(store, quotas, stream_age, metrics, tracing)
    });
    gate.denials().keep(broker.history());
    let api = |server, stop: &CancellationToken| {
        let router = api_router(server, edge, broker)?;
        let stopped = stop.clone().cancelled_owned();
        let served = router.serve_with_incoming_shutdown(calls.connections(), stopped);
        Ok::<_, RunError>(served)
    };
    let (draining, over) = (stop.child_token(), stop.child_token());
    let mut early = pin!(api(aging(&config.http2), &draining)?);
    let ready_then_stop = async {
        tokio::select! {
            () = ready(store.as_ref(), health) => shutdown.await,
            () = &mut shutdown => {}
        }
    };
    tokio::select! {
        ended = &mut early => return Ok(ended?),
        () = ready_then_stop => {}
    }
    tracing::info!("draining");
    health.set(Phase::Draining);
    let drain_timeout = config.live.borrow().drain_timeout;
    broker.drain(drain_timeout / 3);
    // Connections that are open are told to go elsewhere. New ones are accepted all the same: who
    // finds no other broker yet can release and renew.
    draining.cancel();
    let short_lived = server(&config.http2).max_connection_age(LATE_AGE);
    let late = api(short_lived, &over)?;
    let drained = async {
        let moved = async {
            broker.idle().await;
            health.set(Phase::Over);
            over.cancel();
        };
        let (early, late, ()) = tokio::join!(early, late, moved);
        early.and(late)?;
        store_stop.cancel();
        tasks.close();
        tasks.wait().await;
        Ok(())
    };
    let drained = timeout(tracing.spare(drain_timeout), drained);
    drained.await.unwrap_or_else(|_| {
        tracing::warn!("drain_timeout has passed: connections that are still open are cut");
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

/// Ends when the store has answered for the first time.
async fn ready(store: &dyn Store, health: &Health) {
    while let Err(error) = store.deployment_key().await {
        tracing::debug!(%error, "the store is not ready yet");
        sleep(READY_PROBE).await;
    }
    health.set(Phase::Serving);
    tracing::info!("serving");
}

fn api_router(mut server: Server, edge: &Edge<'_>, broker: &Broker) -> Result<Router, RunError> {
    let Edge {
        config,
        gate,
        tracing,
        health,
    } = *edge;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let (live, http2) = (|| config.live.subscribe(), &config.http2);
    let mut routes = Routes::new(health.service())
        .add_service(grpc::lock_service(
            broker.clone(),
            gate.clone(),
            (live(), tracing.clone()),
            http2,
        ))
        .add_service(grpc::inspection_service(
            broker.clone(),
            gate.clone(),
            live(),
            http2,
        ));
    // What there is to call is for those who may call.
    if !gate.asks() {
        routes = routes
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
    }
    if config.dev {
        let broker = Arc::new(broker.clone().into());
        routes = routes.add_service(grpc::admin_service(broker, gate.clone(), live(), http2));
    }
    Ok(server.add_routes(around_api(around_grpc(routes, edge)).into()))
}

fn admin_router(edge: &Edge<'_>, broker: &Arc<OnceLock<Broker>>, page: axum::Router) -> Router {
    let Edge {
        config,
        gate,
        health,
        ..
    } = *edge;
    let (live, http2) = (config.live.subscribe(), &config.http2);
    let admin = grpc::admin_service(Arc::clone(broker), gate.clone(), live, http2);
    let services = Routes::new(health.service()).add_service(admin);
    let plain = probes::routes(health)
        .merge(scrape::route(&config.metrics, gate, broker))
        .merge(log_filter::route(gate))
        .merge(page);
    let routes = around_grpc(services, edge).merge(around_http(plain));
    let routes = around_admin(routes.fallback(probes::nothing_here), edge);
    aging(http2)
        .max_concurrent_streams(http2.max_concurrent_streams.min(ADMIN_STREAMS_MAX))
        .accept_http1(true)
        .add_routes(routes.into())
}

/// A connection that is old takes no new calls, and ends with the last that it has. (tonic 0.14 does so
/// without a `max_connection_age_grace` only: with one it says nothing, and cuts the connection then.)
fn aging(http2: &Http2) -> Server {
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
