//! Brokers with a RedLock store in the test's own process, with small bounds.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use leasehold_server::{
    broker::{Broker, lease_stream::StreamAge},
    lock::{
        AcquireCall, AcquireCommand, ArgumentsHash, BrokerId, ExpectedAttachment, LeaseOptions,
        LeaseRef, LockKey, Mode, Owner, ReleaseScope, RequestId, Target, Ttl,
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
    broker::process::KEY_PREFIX,
    redis::{server::RedisServer, shared_server::config_of},
    redlock::deployment::RedlockDeployment,
    store_fixture::{lease_of, new_call, with_ttl},
};

/// Shortest TTL of the tests. It bounds the duration of a quorum acquire.
pub const TTL_MS: u64 = 1_000;
/// Maximum TTL that the brokers grant.
pub const TTL_MAX_MS: u64 = 2_000;
/// Quarantine `Q` for these bounds.
pub const QUARANTINE: Duration = Duration::from_millis(2_650 + 1_000);
/// Time within which a caller receives the error that there is no quorum.
pub const NO_QUORUM_ERROR_WITHIN: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A broker and its RedLock store.
pub struct RedlockBroker {
    pub store: Arc<RedlockStore>,
    pub broker: Broker,
    _stop: DropGuard,
}

impl RedlockDeployment {
    /// Returns the configurations of brokers for all servers. A broker trusts a server that is
    /// empty at the first contact.
    #[must_use]
    pub fn configs(&self) -> Vec<RedisConfig> {
        self.configs_at(self.servers().iter().map(RedisServer::addr))
    }

    /// Returns the configurations for servers behind other addresses, for example of proxies.
    pub fn configs_at(&self, addrs: impl IntoIterator<Item = SocketAddr>) -> Vec<RedisConfig> {
        let addrs = addrs.into_iter();
        let config = |addr| RedisConfig {
            deployment_key: Some(self.key().clone()),
            span_limit: None,
            bounds: EraBounds {
                ttl_max_ms: TTL_MAX_MS,
                lock_delay_max_ms: 0,
                former_master_max_ms: 0,
            },
            ..config_of(addr, KEY_PREFIX, true)
        };
        addrs.map(config).collect()
    }

    /// Starts a broker on all servers.
    pub async fn start_broker(&self) -> RedlockBroker {
        RedlockBroker::start(self.configs(), Scripts::standard())
            .await
            .expect("the nodes are fit")
    }
}

impl RedlockBroker {
    pub async fn start(configs: Vec<RedisConfig>, scripts: Scripts) -> Result<Self, NodeError> {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let store =
            RedlockStore::start(configs, BrokerId::random(), scripts, &tasks, stop.clone()).await?;
        let store = Arc::new(store);
        let age = StreamAge {
            max_age: DAY,
            grace: DAY,
        };
        let quotas = Quotas::new(unlimited_quotas);
        Ok(Self {
            broker: Broker::new(Arc::clone(&store) as Arc<dyn Store>, quotas, age),
            store,
            _stop: stop.drop_guard(),
        })
    }

    /// Acquires once and returns the result and the duration.
    pub async fn acquire_timed(
        &self,
        call: &AcquireCommand,
    ) -> (Result<Acquired, StoreError>, Duration) {
        let start = tokio::time::Instant::now();
        let acquired = self.store.acquire(call).await;
        (acquired, start.elapsed())
    }

    /// Acquires and asserts that the lock is granted.
    pub async fn expect_granted(&self, call: &AcquireCommand) -> LeaseRef {
        let acquired = self.store.acquire(call).await;
        let Ok(Acquired::Granted(grant)) = acquired else {
            panic!("{acquired:?} instead of a grant");
        };
        lease_of(call, grant.fencing_token)
    }

    /// Releases and asserts success.
    pub async fn expect_released(&self, lease: &LeaseRef) {
        let released = self
            .store
            .release(lease, ReleaseScope::All, ExpectedAttachment::Any)
            .await;
        assert!(released.is_ok(), "a quorum answers: {released:?}");
    }
}

/// Returns an acquire with [`TTL_MS`] that does not wait.
#[must_use]
pub fn immediate_call(lock: &LockKey) -> AcquireCommand {
    with_ttl(new_call(lock), TTL_MS)
}

/// Returns an acquire as a client sends it, which waits in the queue.
#[must_use]
pub fn waiting_call(lock: &LockKey, wait: Duration) -> AcquireCall {
    AcquireCall {
        targets: vec![Target {
            lock: lock.clone(),
            mode: Mode::Exclusive,
        }],
        under: None,
        owner: Owner::default(),
        ttl: Ttl::from_stored(TTL_MS),
        options: LeaseOptions::default(),
        wait_ms: u64::try_from(wait.as_millis()).expect("a short wait"),
        request_id: RequestId::random(),
        arguments: ArgumentsHash::of(&[b"arguments"]),
    }
}

/// Returns limits that no test reaches.
#[must_use]
pub fn unlimited_quotas() -> QuotaLimits {
    QuotaLimits {
        locks_per_caller: u32::MAX,
        locks_per_namespace: u32::MAX,
        locks: u32::MAX,
        acquires_per_second: u32::MAX,
        acquires_in_flight: u32::MAX,
    }
}
