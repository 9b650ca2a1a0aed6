//! Control clients beside an abuse, each on its own connection, with their latency and their lost
//! leases.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use futures::future::join_all;
use leasehold::{Client as Sdk, ClientTlsConfig, Guard};
use leasehold_proto::v1::{AcquireRequest, ReleaseRequest};
use leasehold_proto::v1::{LockTarget, Owner, lock_service_client::LockServiceClient};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

use crate::{
    access::files_and_callers::BearerTokenInterceptor, clock::boottime, scale::scaled_count,
    until::until,
};

/// Number of connections that acquire and release.
const UNARY_CLIENTS: usize = 8;
/// Pause between two pairs of calls of a connection, so that the control clients do not keep the
/// machine busy.
const CALL_PAUSE: Duration = Duration::from_millis(10);
/// Number of lease streams, each on its own connection, and number of leases of each stream.
const STREAMS: usize = 4;
const LEASES_PER_STREAM: usize = 8;
/// Interval at which the leases are checked.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of calls for a p99 at full scale.
const CALLS_AT_FULL_SCALE: usize = 2_000;
/// Number of calls for a p99 at any scale.
const CALLS_MIN: usize = 100;
/// Time after which a call fails.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Address and credentials of the control clients.
#[derive(Debug, Clone)]
pub struct ControlClientOptions {
    pub url: String,
    /// TLS configuration, if the broker requires TLS.
    pub tls: Option<ClientTlsConfig>,
    /// Bearer token of the calls.
    pub token: Option<String>,
}

/// The control clients. They run on a thread of their own, so that an abuser in the same process
/// does not delay them.
#[derive(Debug)]
pub struct ControlClients {
    shared: Arc<SharedState>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

/// Statistics of the calls since the previous measurement.
#[derive(Debug, Clone)]
pub struct CallStatistics {
    pub calls: usize,
    /// 95th percentile of the latency.
    pub p95: Duration,
    /// 99th percentile of the latency.
    pub p99: Duration,
    pub max: Duration,
    /// Descriptions of failed calls and lost leases.
    pub failures: Vec<String>,
}

#[derive(Debug, Default)]
struct SharedState {
    latencies: Mutex<Vec<Duration>>,
    failures: Mutex<Vec<String>>,
}

impl ControlClients {
    /// Starts the control clients. All leases are held when it returns.
    pub async fn start(reach: &ControlClientOptions) -> Self {
        let (shared, stop) = (Arc::<SharedState>::default(), CancellationToken::new());
        let ready = CancellationToken::new();
        let crowd = run_clients(
            reach.clone(),
            Arc::clone(&shared),
            stop.clone(),
            ready.clone(),
        );
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build();
            runtime.expect("a runtime").block_on(crowd);
        });
        ready.cancelled().await;
        Self {
            shared,
            stop,
            thread: Some(thread),
        }
    }

    /// Waits until enough calls for a p99 were made since the previous measurement, and returns the
    /// statistics of these calls.
    pub async fn measure(&self) -> CallStatistics {
        let enough = scaled_count(CALLS_AT_FULL_SCALE, CALLS_MIN);
        let taken = until("calls of bystanders", async || {
            let mut latencies = lock(&self.shared.latencies);
            (latencies.len() >= enough).then(|| std::mem::take(&mut *latencies))
        });
        let mut latencies = taken.await;
        latencies.sort_unstable();
        let calls = latencies.len();
        CallStatistics {
            calls,
            p95: latencies[calls - calls / 20 - 1],
            p99: latencies[calls - calls / 100 - 1],
            max: latencies[calls - 1],
            failures: std::mem::take(&mut *lock(&self.shared.failures)),
        }
    }

    /// Restarts the measurement of calls.
    pub fn reset_calls(&self) {
        lock(&self.shared.latencies).clear();
    }

    /// Stops the control clients. Each lease is released, which fails if the lease was lost.
    /// Returns all failures.
    pub async fn stop(mut self) -> Vec<String> {
        self.stop.cancel();
        let thread = self.thread.take().expect("they are there");
        let ended = tokio::task::spawn_blocking(move || thread.join()).await;
        ended.expect("a thread ends").expect("no panic");
        std::mem::take(&mut *lock(&self.shared.failures))
    }
}

impl Drop for ControlClients {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn run_clients(
    reach: ControlClientOptions,
    shared: Arc<SharedState>,
    stop: CancellationToken,
    ready: CancellationToken,
) {
    let holders = join_all((0..STREAMS).map(|number| StreamHolder::start(&reach, number))).await;
    let pairs = (0..UNARY_CLIENTS).map(|number| repeat_calls(&reach, number, &shared, &stop));
    let holds = holders
        .into_iter()
        .map(|holder| holder.monitor_leases(&shared, &stop));
    let pairs = join_all(pairs);
    ready.cancel();
    tokio::join!(pairs, join_all(holds));
}

/// Acquires and releases repeatedly on one connection.
async fn repeat_calls(
    reach: &ControlClientOptions,
    number: usize,
    shared: &SharedState,
    stop: &CancellationToken,
) {
    let shows = BearerTokenInterceptor(reach.token.clone());
    let mut locks = LockServiceClient::with_interceptor(reach.channel(), shows);
    let lock = format!("bystander/{number}");
    while !stop.is_cancelled() {
        if let Err(status) = acquire_and_release(&mut locks, &lock, shared).await {
            shared.record_failure(format!("{lock}: {status}"));
        }
        sleep(CALL_PAUSE).await;
    }
}

async fn acquire_and_release(
    locks: &mut LockServiceClient<InterceptedService<Channel, BearerTokenInterceptor>>,
    lock: &str,
    shared: &SharedState,
) -> Result<(), tonic::Status> {
    let target = LockTarget {
        name: lock.to_owned(),
        mode: leasehold_proto::v1::LockMode::Exclusive.into(),
        ..LockTarget::default()
    };
    let owner = Owner {
        id: lock.to_owned(),
        ..Owner::default()
    };
    let started_at = boottime();
    let acquired = locks.acquire(AcquireRequest {
        target: Some(target),
        owner: Some(owner),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    });
    let lease = acquired.await?.into_inner().lease;
    let between = boottime();
    let released = locks.release(ReleaseRequest {
        lease,
        ..ReleaseRequest::default()
    });
    released.await?;
    record_latencies(shared, [between - started_at, boottime() - between]);
    Ok(())
}

/// Leases on one stream.
struct StreamHolder {
    guards: Vec<Guard>,
    number: usize,
}

impl StreamHolder {
    async fn start(reach: &ControlClientOptions, number: usize) -> Self {
        let client = Sdk::builder(&reach.url);
        let client = match &reach.tls {
            None => client,
            Some(tls) => client.tls(tls.clone()),
        };
        let client = match &reach.token {
            None => client,
            Some(token) => client.bearer_token(token),
        };
        let client = client.connect().await.expect("a broker that runs");
        let mut guards = Vec::new();
        for lease in 0..LEASES_PER_STREAM {
            let lock = client.lock(format!("held/{number}/{lease}"));
            guards.push(lock.acquire().await.expect("it is free"));
        }
        Self { guards, number }
    }

    async fn monitor_leases(self, shared: &SharedState, stop: &CancellationToken) {
        let Self { mut guards, number } = self;
        while !stop.is_cancelled() {
            guards.retain(|guard| {
                if let Some(reason) = guard.lost_reason() {
                    shared
                        .record_failure(format!("a lease of stream {number} is lost: {reason:?}"));
                }
                guard.lost_reason().is_none()
            });
            sleep(LEASE_CHECK_INTERVAL).await;
        }
        for guard in guards {
            if let Err(error) = guard.release().await {
                shared.record_failure(format!("a lease of stream {number} is not there: {error}"));
            }
        }
    }
}

impl ControlClientOptions {
    fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.url.clone()).expect("a URL");
        let endpoint = endpoint.tcp_nodelay(true).timeout(CALL_TIMEOUT);
        let endpoint = match &self.tls {
            None => Ok(endpoint),
            Some(tls) => endpoint.tls_config(tls.clone()),
        };
        endpoint.expect("certificates").connect_lazy()
    }
}

impl SharedState {
    fn record_failure(&self, what: String) {
        lock(&self.failures).push(what);
    }
}

fn record_latencies(shared: &SharedState, latencies: [Duration; 2]) {
    lock(&shared.latencies).extend(latencies);
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
