//! Well-behaved clients beside an abuse, each on its own connection: how fast they are served, and whether
//! they lose a lease.

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

use crate::{callers::Shows, clock::boottime, scale::count, until::until};

/// Connections that acquire and release.
const PAIRING: usize = 8;
/// Between two pairs of a connection: they do not keep the machine busy by themselves.
const PAUSE: Duration = Duration::from_millis(10);
/// Lease streams, each on a connection of its own, and the leases of each.
const STREAMS: usize = 4;
const LEASES: usize = 8;
/// How often the leases are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Calls needed for a p99 at full scale.
const CALLS_MIN: usize = 2_000;
/// Calls needed for a p99 at any scale.
const CALLS_LEAST: usize = 100;
/// A call that takes longer has failed.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Whom they call, and whom they trust.
#[derive(Debug, Clone)]
pub struct Reach {
    /// The broker's URL.
    pub url: String,
    /// With TLS.
    pub tls: Option<ClientTlsConfig>,
    /// The token that they show.
    pub token: Option<String>,
}

/// The crowd. It has a thread of its own, so that whoever abuses the broker in this process does not
/// delay it.
#[derive(Debug)]
pub struct Bystanders {
    shared: Arc<Shared>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

/// Calls since the last look.
#[derive(Debug, Clone)]
pub struct Served {
    /// How many.
    pub calls: usize,
    /// What all but five in a hundred did not exceed.
    pub p95: Duration,
    /// What all but one in a hundred did not exceed.
    pub p99: Duration,
    /// The slowest.
    pub most: Duration,
    /// What went wrong: calls that failed, leases that were lost.
    pub failures: Vec<String>,
}

#[derive(Debug, Default)]
struct Shared {
    latencies: Mutex<Vec<Duration>>,
    failures: Mutex<Vec<String>>,
}

impl Bystanders {
    /// Starts them; all leases are held when it returns.
    pub async fn start(reach: &Reach) -> Self {
        let (shared, stop) = (Arc::<Shared>::default(), CancellationToken::new());
        let ready = CancellationToken::new();
        let crowd = crowd(
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

    /// Waits until enough calls were served since the last look to tell their p99, and returns how all of them were served.
    pub async fn served(&self) -> Served {
        let enough = count(CALLS_MIN, CALLS_LEAST);
        let taken = until("calls of bystanders", async || {
            let mut latencies = lock(&self.shared.latencies);
            (latencies.len() >= enough).then(|| std::mem::take(&mut *latencies))
        });
        let mut latencies = taken.await;
        latencies.sort_unstable();
        let calls = latencies.len();
        Served {
            calls,
            p95: latencies[calls - calls / 20 - 1],
            p99: latencies[calls - calls / 100 - 1],
            most: latencies[calls - 1],
            failures: std::mem::take(&mut *lock(&self.shared.failures)),
        }
    }

    /// Begins to count calls anew.
    pub fn forget_calls(&self) {
        lock(&self.shared.latencies).clear();
    }

    /// Sends them home: each lease is given back, which needs that it was held.
    pub async fn leave(mut self) -> Vec<String> {
        self.stop.cancel();
        let thread = self.thread.take().expect("they are there");
        let ended = tokio::task::spawn_blocking(move || thread.join()).await;
        ended.expect("a thread ends").expect("no panic");
        std::mem::take(&mut *lock(&self.shared.failures))
    }
}

impl Drop for Bystanders {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn crowd(
    reach: Reach,
    shared: Arc<Shared>,
    stop: CancellationToken,
    ready: CancellationToken,
) {
    let holders = join_all((0..STREAMS).map(|number| Holder::start(&reach, number))).await;
    let pairs = (0..PAIRING).map(|number| pairs(&reach, number, &shared, &stop));
    let holds = holders
        .into_iter()
        .map(|holder| holder.hold(&shared, &stop));
    let pairs = join_all(pairs);
    ready.cancel();
    tokio::join!(pairs, join_all(holds));
}

/// Acquires and releases on one connection.
async fn pairs(reach: &Reach, number: usize, shared: &Shared, stop: &CancellationToken) {
    let shows = Shows(reach.token.clone());
    let mut locks = LockServiceClient::with_interceptor(reach.channel(), shows);
    let lock = format!("bystander/{number}");
    while !stop.is_cancelled() {
        if let Err(status) = pair(&mut locks, &lock, shared).await {
            shared.failed(format!("{lock}: {status}"));
        }
        sleep(PAUSE).await;
    }
}

async fn pair(
    locks: &mut LockServiceClient<InterceptedService<Channel, Shows>>,
    lock: &str,
    shared: &Shared,
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
    let begun = boottime();
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
    lock_all(shared, [between - begun, boottime() - between]);
    Ok(())
}

/// Keeps leases on one stream.
struct Holder {
    guards: Vec<Guard>,
    number: usize,
}

impl Holder {
    async fn start(reach: &Reach, number: usize) -> Self {
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
        for lease in 0..LEASES {
            let lock = client.lock(format!("held/{number}/{lease}"));
            guards.push(lock.acquire().await.expect("it is free"));
        }
        Self { guards, number }
    }

    async fn hold(self, shared: &Shared, stop: &CancellationToken) {
        let Self { mut guards, number } = self;
        while !stop.is_cancelled() {
            guards.retain(|guard| {
                if let Some(why) = guard.lost_reason() {
                    shared.failed(format!("a lease of stream {number} is lost: {why:?}"));
                }
                guard.lost_reason().is_none()
            });
            sleep(LOOK_EVERY).await;
        }
        for guard in guards {
            if let Err(error) = guard.release().await {
                shared.failed(format!("a lease of stream {number} is not there: {error}"));
            }
        }
    }
}

impl Reach {
    fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.url.clone()).expect("a URL");
        let endpoint = endpoint.tcp_nodelay(true).timeout(CALL_LIMIT);
        let endpoint = match &self.tls {
            None => Ok(endpoint),
            Some(tls) => endpoint.tls_config(tls.clone()),
        };
        endpoint.expect("certificates").connect_lazy()
    }
}

impl Shared {
    fn failed(&self, what: String) {
        lock(&self.failures).push(what);
    }
}

fn lock_all(shared: &Shared, latencies: [Duration; 2]) {
    lock(&shared.latencies).extend(latencies);
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
