//! A store whose clock a test moves: before each call the lock's own skew is written beside it. It
//! connects when it is called first.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold_server::{
    lock::{
        Acquire, Attachment, AttemptId, BrokerId, DeploymentKey, FencingToken, Filter, LeaseRef,
        LockKey, LockState, Release, RequestHash, Revoke, Ttl, Via,
    },
    store::{
        Acquired, Attached, Cancelled, Checked, Cursor, LimitSet, Listed, Listener, Released,
        Renewed, Revoked, Store, StoreError, Touched,
        redis::{RedisStore, connection::RedisConfig, scripts::Scripts},
    },
};
use tokio::{
    sync::{Mutex, OnceCell},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{redis_connection::RedisConnection, shared_cluster::master_of};

/// Keys of tests outlive them no longer.
const KEPT_S: &str = "600";
/// How long a store that has just started waits before it asks a master to which it has no connection again.
const PAUSE: Duration = Duration::from_millis(10);

/// The skew of all brokers, and where it was written.
pub(super) struct Skew {
    key: String,
    ms: AtomicI64,
    written: Mutex<HashMap<LockKey, i64>>,
}

/// One broker's store.
pub(super) struct Skewed {
    pub(super) broker: BrokerId,
    pub(super) config: RedisConfig,
    pub(super) scripts: Scripts,
    pub(super) skew: Arc<Skew>,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    pub(super) listener: OnceLock<Listener>,
    pub(super) connected: OnceCell<RedisStore>,
}

impl Skew {
    /// Every key of it begins so.
    pub(super) fn new(key: String) -> Self {
        Self {
            key,
            ms: AtomicI64::new(0),
            written: Mutex::default(),
        }
    }

    pub(super) fn add(&self, ms: i64) {
        self.ms.fetch_add(ms, Ordering::SeqCst);
    }

    async fn write(&self, lock: &LockKey) {
        let ms = self.ms.load(Ordering::SeqCst);
        let mut written = self.written.lock().await;
        let known = written.entry(lock.clone()).or_default();
        if *known == ms {
            return;
        }
        let key = format!("{}{}", self.key, lock.encoded());
        let connection = RedisConnection::open(master_of(&key)).await;
        let mut connection = connection.expect("connect to the tests' cluster");
        let words = ["SET", &key, &ms.to_string(), "EX", KEPT_S];
        connection.must(&words).await;
        *known = ms;
    }

    async fn write_all(&self) {
        let known: Vec<_> = self.written.lock().await.keys().cloned().collect();
        for lock in known {
            self.write(&lock).await;
        }
    }
}

impl Skewed {
    /// The store, once the lock's clock is right. A broker that never called has nothing to hear.
    async fn at(&self, lock: &LockKey) -> &RedisStore {
        self.skew.write(lock).await;
        self.connected().await
    }

    async fn connected(&self) -> &RedisStore {
        let start = async || {
            let (config, scripts) = (self.config.clone(), self.scripts.clone());
            let stop = self.stop.clone();
            let store = RedisStore::start(config, self.broker, scripts, &self.tasks, stop).await;
            let store = store.expect("a cluster that can keep locks");
            if let Some(listener) = self.listener.get() {
                store.listen(Arc::clone(listener));
            }
            store
        };
        self.connected.get_or_init(start).await
    }
}

#[async_trait]
impl Store for Skewed {
    async fn acquire(&self, acquire: &Acquire) -> Result<Acquired, StoreError> {
        loop {
            match self.at(&acquire.lock).await.acquire(acquire).await {
                Err(StoreError::NotNow(_)) => sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Renewed, StoreError> {
        self.at(&lease.lock).await.renew(lease, ttl, via).await
    }

    async fn attach(&self, lease: &LeaseRef, to: Attachment) -> Result<Attached, StoreError> {
        self.at(&lease.lock).await.attach(lease, to).await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: Release,
        via: Via,
    ) -> Result<Released, StoreError> {
        self.at(&lease.lock)
            .await
            .release(lease, release, via)
            .await
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        self.at(lock).await.cancel(lock, request, attempt).await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        self.at(lock).await.touch(lock).await
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        self.at(lock).await.set_limit(lock, limit).await
    }

    async fn revoke(&self, revoke: &Revoke) -> Result<Revoked, StoreError> {
        self.at(&revoke.lock).await.revoke(revoke).await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        self.connected().await.watch().await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.at(lock).await.get(lock).await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError> {
        self.skew.write_all().await;
        loop {
            match self.connected().await.list(filter, from, most).await {
                Ok(Listed::Missing { .. }) => sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.at(lock).await.check(lock, token).await
    }

    fn broker(&self) -> BrokerId {
        self.broker
    }

    fn recovering_ms(&self) -> Option<u64> {
        None
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.connected().await.deployment_key().await
    }

    fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }
}
