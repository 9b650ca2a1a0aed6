//! Brokers in this process that keep locks on a quorum of independent servers, with small bounds.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use leasehold_server::{
    broker::{Broker, stream::StreamAge},
    lock::{
        Acquire, AcquireCall, ArgumentsHash, BrokerId, LeaseRef, LockKey, Mode, Owner, Release,
        RequestId, Target, Terms, Ttl, Via,
    },
    quotas::{QuotaLimits, Quotas},
    store::{
        Acquired, Store, StoreError,
        redis::{
            connection::{NodeError, RedisConfig},
            era::EraBounds,
            scripts::Scripts,
        },
        redlock::RedlockStore,
    },
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    broker_process::KEY_PREFIX,
    redis_server::RedisServer,
    redlock::RedlockDeployment,
    shared_redis::config_of,
    world::{lease, new_call, with_ttl},
};

/// The shortest validity, which bounds what a quorum may take.
pub const TTL_MS: u64 = 1_000;
/// The longest.
pub const TTL_MAX_MS: u64 = 2_000;
/// `Q` of these bounds.
pub const Q: Duration = Duration::from_millis(2_650 + 1_000);
/// A caller knows within this time that there is no quorum.
pub const PROMPT: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A broker of them.
pub struct RedlockBroker {
    pub store: Arc<RedlockStore>,
    pub broker: Broker,
    _stop: DropGuard,
}

impl RedlockDeployment {
    /// How brokers reach them; empty ones are trusted at the first contact.
    #[must_use]
    pub fn configs(&self) -> Vec<RedisConfig> {
        self.configs_at(self.servers().iter().map(RedisServer::addr))
    }

    /// The same by other ways.
    pub fn configs_at(&self, addrs: impl IntoIterator<Item = SocketAddr>) -> Vec<RedisConfig> {
        let addrs = addrs.into_iter();
        let config = |addr| RedisConfig {
            deployment_key: Some(self.key().clone()),
            bounds: EraBounds {
                ttl_max_ms: TTL_MAX_MS,
                lock_delay_max_ms: 0,
                former_master_max_ms: 0,
            },
            ..config_of(addr, KEY_PREFIX, true)
        };
        addrs.map(config).collect()
    }

    /// A broker of all of them.
    pub async fn broker(&self) -> RedlockBroker {
        RedlockBroker::start(self.configs(), Scripts::standard())
            .await
            .expect("the nodes are fit")
    }
}

impl RedlockBroker {
    /// Connects.
    pub async fn start(configs: Vec<RedisConfig>, scripts: Scripts) -> Result<Self, NodeError> {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let store =
            RedlockStore::start(configs, BrokerId::random(), scripts, &tasks, stop.clone()).await?;
        let store = Arc::new(store);
        let age = StreamAge {
            most: DAY,
            grace: DAY,
        };
        let quotas = Quotas::new(unlimited);
        Ok(Self {
            broker: Broker::new(Arc::clone(&store) as Arc<dyn Store>, quotas, age),
            store,
            _stop: stop.drop_guard(),
        })
    }

    /// Acquires once, and how long that took.
    pub async fn timed(&self, call: &Acquire) -> (Result<Acquired, StoreError>, Duration) {
        let start = tokio::time::Instant::now();
        let acquired = self.store.acquire(call).await;
        (acquired, start.elapsed())
    }

    /// Acquires, which must succeed.
    pub async fn granted(&self, call: &Acquire) -> LeaseRef {
        let acquired = self.store.acquire(call).await;
        let Ok(Acquired::Granted(grant)) = acquired else {
            panic!("{acquired:?} instead of a grant");
        };
        lease(call, grant.fencing_token)
    }

    /// Releases, which must succeed.
    pub async fn release(&self, lease: &LeaseRef) {
        let released = self.store.release(lease, Release::All, Via::Anywhere).await;
        released.expect("a quorum answers");
    }
}

/// A call of the shortest ttl that does not wait.
#[must_use]
pub fn call(lock: &LockKey) -> Acquire {
    with_ttl(new_call(lock), TTL_MS)
}

/// A call as clients make it, which waits in line.
#[must_use]
pub fn waiting(lock: &LockKey, wait: Duration) -> AcquireCall {
    AcquireCall {
        targets: vec![Target {
            lock: lock.clone(),
            mode: Mode::Exclusive,
        }],
        under: None,
        owner: Owner::default(),
        ttl: Ttl::from_stored(TTL_MS),
        terms: Terms::default(),
        wait_ms: u64::try_from(wait.as_millis()).expect("a short wait"),
        request_id: RequestId::random(),
        arguments: ArgumentsHash::of(&[b"arguments"]),
    }
}

/// Returns limits that no test reaches.
#[must_use]
pub fn unlimited() -> QuotaLimits {
    QuotaLimits {
        locks_per_caller: u32::MAX,
        locks_per_namespace: u32::MAX,
        locks: u32::MAX,
        acquires_per_second: u32::MAX,
        acquires_at_once: u32::MAX,
    }
}
