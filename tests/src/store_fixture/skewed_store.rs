//! A store whose clock a test sets: before each call it writes the skew to a key beside the lock.
//! The store connects at its first call.

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
        AcquireCommand, ActiveClosure, Attachment, AttemptId, BrokerId, CloseCommand,
        DeploymentKey, ExpectedAttachment, FencingToken, Filter, Grant, LeaseRef, LockKey,
        LockState, ReleaseScope, RequestHash, RevokeCommand,
    },
    store::{
        Acquired, Cancelled, Checked, Cursor, LeaseReply, LimitSet, Listed, Listener,
        RecoveryState, Released, Renewal, Revoked, Store, StoreError, Touched,
        redis::{RedisStore, connection::RedisConfig, scripts::Scripts},
    },
};
use tokio::{
    sync::{Mutex, OnceCell},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{cluster::shared::master_of, redis::connection::RedisConnection};

/// Time to live of the tests' keys, in seconds.
const KEY_TTL_S: &str = "600";
/// Pause before a store that has just started retries a master to which it has no connection.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The skew of all brokers, and its value in the key of each lock.
pub(super) struct Skew {
    key: String,
    ms: AtomicI64,
    written: Mutex<HashMap<LockKey, i64>>,
}

/// The store of one broker.
pub(super) struct SkewedStore {
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
    /// Creates a skew of 0. `key` is the prefix of its keys.
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
        let words = ["SET", &key, &ms.to_string(), "EX", KEY_TTL_S];
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

impl SkewedStore {
    /// Returns the store after writing the skew of the lock. A broker that has made no call needs
    /// no events, so it is not connected before.
    async fn store_with_skew(&self, lock: &LockKey) -> &RedisStore {
        self.skew.write(lock).await;
        self.connected_store().await
    }

    async fn connected_store(&self) -> &RedisStore {
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
impl Store for SkewedStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        loop {
            match self
                .store_with_skew(&acquire.lock)
                .await
                .acquire(acquire)
                .await
            {
                Err(StoreError::NotExecuted(_)) => sleep(RETRY_PAUSE).await,
                answer => return answer,
            }
        }
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.store_with_skew(&lease.lock)
            .await
            .renew(lease, renewal)
            .await
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.store_with_skew(&lease.lock)
            .await
            .attach(lease, to)
            .await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        self.store_with_skew(&lease.lock)
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
        self.store_with_skew(lock)
            .await
            .cancel(lock, request, attempt)
            .await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        self.store_with_skew(lock).await.touch(lock).await
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        self.store_with_skew(lock)
            .await
            .set_limit(lock, limit)
            .await
    }

    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        self.store_with_skew(&close.lock).await.close(close).await
    }

    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        self.store_with_skew(lock).await.open(lock).await
    }

    async fn revoke(&self, revoke: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        self.store_with_skew(&revoke.lock)
            .await
            .revoke(revoke)
            .await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        self.connected_store().await.watch().await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.store_with_skew(lock).await.get(lock).await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError> {
        self.skew.write_all().await;
        loop {
            match self.connected_store().await.list(filter, from, most).await {
                Ok(Listed::Missing { .. }) => sleep(RETRY_PAUSE).await,
                answer => return answer,
            }
        }
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.store_with_skew(lock).await.check(lock, token).await
    }

    fn broker(&self) -> BrokerId {
        self.broker
    }

    fn recovery(&self) -> RecoveryState {
        RecoveryState::Unknown
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.connected_store().await.deployment_key().await
    }

    fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }
}
