//! Brokers' stores on a Redis Cluster, without the rest of a broker, with small bounds.

use std::time::Duration;

use leasehold_server::{
    lock::{Acquire, BrokerId, LeaseRef, LockKey, Release, Via},
    store::{
        Acquired, Event, Released, Renewed, Store, StoreError,
        redis::{
            RedisStore,
            connection::{NodeError, RedisConfig},
            era::EraBounds,
            place::Place,
            scripts::Scripts,
        },
    },
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cluster::{ClusterDeployment, slot_of},
    shared_cluster::deployment_key,
    shared_redis::address,
    world::{events, lease, lock_named, new_call, with_ttl},
};

/// What every key begins with.
pub const PREFIX: &str = "lh:";
/// The longest ttl, and that of every lease.
pub const TTL_MS: u64 = 2_000;
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s.
pub const QUARANTINE: Duration = Duration::from_millis(2_650 + 2_000 + 1_000);
/// What a call takes at most.
pub const PROMPT: Duration = Duration::from_secs(1);

const EVENT_LIMIT: Duration = Duration::from_secs(10);

/// One broker's store.
pub struct ClusterStore {
    pub store: RedisStore,
    events: mpsc::UnboundedReceiver<Event>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A cluster, as a broker is configured with it.
#[must_use]
pub fn config(cluster: &ClusterDeployment) -> RedisConfig {
    let seeds = (0..3).map(|index| address(cluster.addr(index)));
    RedisConfig {
        key_prefix: PREFIX.to_owned(),
        deployment_key: Some(deployment_key()),
        bounds: EraBounds {
            ttl_max_ms: TTL_MS,
            lock_delay_max_ms: 0,
            former_master_max_ms: 2_000,
        },
        ..RedisConfig::at(Place::Cluster(seeds.collect()))
    }
}

/// A lock whose record lies in one of these slots.
#[must_use]
pub fn lock_in(slots: impl Fn(u16) -> bool, what: &str) -> LockKey {
    let mut locks = (0..).map(|number| lock_named("default", &format!("{what}-{number}")));
    let found = locks.find(|lock| slots(slot_of(&lock.encoded())));
    found.expect("every slot has locks")
}

/// The slot of a lock.
#[must_use]
pub fn slot_of_lock(lock: &LockKey) -> u16 {
    slot_of(&lock.encoded())
}

impl ClusterStore {
    /// Connects.
    pub async fn try_start(config: RedisConfig) -> Result<Self, NodeError> {
        Self::start_with(config, Scripts::standard()).await
    }

    /// Connects, with scripts of its own.
    pub async fn start_with(config: RedisConfig, scripts: Scripts) -> Result<Self, NodeError> {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let broker = BrokerId::random();
        let store = RedisStore::start(config, broker, scripts, &tasks, stop.clone()).await?;
        Ok(Self {
            events: events(&store),
            store,
            tasks,
            stop,
        })
    }

    /// Connects; the cluster must be fit.
    pub async fn start(config: RedisConfig) -> Self {
        let store = Self::try_start(config).await;
        store.expect("the cluster is fit")
    }

    /// A call that does not wait.
    pub async fn ask(&self, lock: &LockKey) -> (Acquire, Result<Acquired, StoreError>) {
        let call = with_ttl(new_call(lock), TTL_MS);
        let reply = self.store.acquire(&call).await;
        (call, reply)
    }

    /// A call that does not wait and must be granted.
    pub async fn granted(&self, lock: &LockKey) -> LeaseRef {
        match self.ask(lock).await {
            (call, Ok(Acquired::Granted(grant))) => lease(&call, grant.fencing_token),
            (_, other) => panic!("{other:?} instead of a grant"),
        }
    }

    /// Whether a new call is told that the store recovers.
    pub async fn is_recovering(&self, lock: &LockKey) -> bool {
        let (_, reply) = self.ask(lock).await;
        matches!(reply, Err(StoreError::Recovering { .. }))
    }

    /// Renews.
    pub async fn renew(&self, lease: &LeaseRef) -> Result<Renewed, StoreError> {
        self.store.renew(lease, None, Via::Anywhere).await
    }

    /// Renews, which must succeed.
    pub async fn renewed(&self, lease: &LeaseRef) {
        let renewed = self.renew(lease).await;
        assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
    }

    /// Releases, which must succeed.
    pub async fn released(&self, lease: &LeaseRef) {
        let released = self.store.release(lease, Release::All, Via::Anywhere).await;
        assert!(matches!(released, Ok(Released::Now { .. })), "{released:?}");
    }

    /// The next event.
    pub async fn event(&mut self) -> Event {
        let event = timeout(EVENT_LIMIT, self.events.recv()).await;
        event.expect("told in time").expect("events go on")
    }

    /// An event that was told already.
    pub fn told(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Ends, with all of its tasks.
    pub async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for ClusterStore {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
