//! Stores of brokers on a Redis Cluster, without the rest of a broker, with small bounds.

use std::time::Duration;

use leasehold_server::{
    lock::{
        AcquireCommand, BrokerId, ExpectedAttachment, Grant, LeaseRef, LockKey, RecoveryCause,
        ReleaseScope,
    },
    store::{
        Acquired, Event, LeaseReply, Renewal, Store, StoreError,
        redis::{
            RedisStore,
            connection::{NodeError, RedisConfig},
            era::EraBounds,
            location::StoreLocation,
            scripts::Scripts,
        },
    },
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cluster::{
        deployment::{ClusterDeployment, slot_of},
        shared::deployment_key,
    },
    redis::shared_server::config_address,
    store_fixture::{events, lease_of, lock_key, new_call, with_ttl},
};

pub const PREFIX: &str = "lh:";
/// Maximum TTL, and TTL of every lease.
pub const TTL_MS: u64 = 2_000;
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s.
pub const QUARANTINE: Duration = Duration::from_millis(2_650 + 2_000 + 1_000);
/// Maximum time of a call.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(1);

const EVENT_LIMIT: Duration = Duration::from_secs(10);

/// The store of one broker.
pub struct ClusterStore {
    pub store: RedisStore,
    events: mpsc::UnboundedReceiver<Event>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Returns the configuration of a store on a cluster.
#[must_use]
pub fn config(cluster: &ClusterDeployment) -> RedisConfig {
    let seeds = (0..3).map(|index| config_address(cluster.addr(index)));
    RedisConfig {
        key_prefix: PREFIX.to_owned(),
        deployment_key: Some(deployment_key()),
        bounds: EraBounds {
            ttl_max_ms: TTL_MS,
            lock_delay_max_ms: 0,
            former_master_max_ms: 2_000,
        },
        ..RedisConfig::at(StoreLocation::Cluster(seeds.collect()))
    }
}

/// Returns a lock in one of these slots.
#[must_use]
pub fn lock_in(slots: impl Fn(u16) -> bool, what: &str) -> LockKey {
    let mut locks = (0..).map(|number| lock_key("default", &format!("{what}-{number}")));
    let found = locks.find(|lock| slots(slot_of(&lock.encoded())));
    found.expect("every slot has locks")
}

#[must_use]
pub fn slot_of_lock(lock: &LockKey) -> u16 {
    slot_of(&lock.encoded())
}

impl ClusterStore {
    /// Connects to the cluster.
    pub async fn try_start(config: RedisConfig) -> Result<Self, NodeError> {
        Self::start_with(config, Scripts::standard()).await
    }

    /// Connects to the cluster with these scripts.
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

    /// Connects to the cluster, which must succeed.
    pub async fn start(config: RedisConfig) -> Self {
        let store = Self::try_start(config).await;
        store.expect("the cluster is fit")
    }

    /// Sends an acquire that does not wait.
    pub async fn try_acquire(
        &self,
        lock: &LockKey,
    ) -> (AcquireCommand, Result<Acquired, StoreError>) {
        let call = with_ttl(new_call(lock), TTL_MS);
        let reply = self.store.acquire(&call).await;
        (call, reply)
    }

    /// Sends an acquire that does not wait and must be granted.
    pub async fn expect_granted(&self, lock: &LockKey) -> LeaseRef {
        match self.try_acquire(lock).await {
            (call, Ok(Acquired::Granted(grant))) => lease_of(&call, grant.fencing_token),
            (_, other) => panic!("{other:?} instead of a grant"),
        }
    }

    /// Returns true if a new acquire is rejected because the store recovers.
    pub async fn is_recovering(&self, lock: &LockKey) -> bool {
        let (_, reply) = self.try_acquire(lock).await;
        matches!(reply, Err(StoreError::Recovering { .. }))
    }

    /// Returns the reason why the slot of the lock recovers, if it is known.
    pub fn recovery_cause(&self, lock: &LockKey) -> Option<RecoveryCause> {
        self.store.recovery_of(lock)?.recovery.cause
    }

    pub async fn renew(&self, lease: &LeaseRef) -> Result<LeaseReply<Grant>, StoreError> {
        self.store.renew(lease, Renewal::default()).await
    }

    /// Renews, which must succeed.
    pub async fn expect_renewed(&self, lease: &LeaseRef) {
        let renewed = self.renew(lease).await;
        assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    }

    /// Releases, which must succeed.
    pub async fn expect_released(&self, lease: &LeaseRef) {
        let released = self
            .store
            .release(lease, ReleaseScope::All, ExpectedAttachment::Any)
            .await;
        assert!(matches!(released, Ok(Ok(_))), "{released:?}");
    }

    /// Waits for the next event.
    pub async fn next_event(&mut self) -> Event {
        let event = timeout(EVENT_LIMIT, self.events.recv()).await;
        event.expect("notified in time").expect("events go on")
    }

    /// Returns an event that has already arrived.
    pub fn try_event(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Stops the store and all its tasks.
    pub async fn shut_down(self) {
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
