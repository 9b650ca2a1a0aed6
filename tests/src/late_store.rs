//! A store in memory whose acquires can be held up on their way to it, as by a connection that stalls.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold_server::{
    lock::{
        Acquire, Attachment, AttemptId, BrokerId, DeploymentKey, FencingToken, Filter, LeaseRef,
        LockKey, LockState, Release, RequestHash, Revoke, Ttl, Via,
    },
    store::{
        Acquired, Attached, Cancelled, Checked, Cursor, LimitSet, Listed, Listener, Released,
        Renewed, Revoked, Store, StoreError, Touched,
        memory::{Memory, MemoryStore},
    },
};
use tokio::sync::watch;

/// One broker's way to it.
pub struct LateStore {
    store: MemoryStore,
    is_late: watch::Sender<bool>,
    /// How many acquires are on their way.
    held_up: watch::Sender<usize>,
    cancelled: watch::Sender<Option<Cancelled>>,
}

impl LateStore {
    /// To an empty store, held up by nothing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            store: Memory::new(Duration::ZERO).connect(BrokerId::random()),
            is_late: watch::Sender::default(),
            held_up: watch::Sender::default(),
            cancelled: watch::Sender::default(),
        })
    }

    /// From now on acquires stay on their way, until they need not any more.
    pub fn hold_up(&self, is_late: bool) {
        self.is_late.send_replace(is_late);
    }

    /// Waits until so many are on their way.
    pub async fn held_up(&self, count: usize) {
        let mut held_up = self.held_up.subscribe();
        let reached = held_up.wait_for(|now| *now == count).await;
        reached.expect("the store lives");
    }

    /// Waits until an attempt was cancelled: what that did.
    pub async fn cancelled(&self) -> Cancelled {
        let mut cancelled = self.cancelled.subscribe();
        let done = cancelled.wait_for(Option::is_some).await;
        done.expect("the store lives").expect("some")
    }
}

#[async_trait]
impl Store for LateStore {
    async fn acquire(&self, acquire: &Acquire) -> Result<Acquired, StoreError> {
        self.held_up.send_modify(|held_up| *held_up += 1);
        let mut is_late = self.is_late.subscribe();
        let passes = is_late.wait_for(|is_late| !is_late).await;
        passes.expect("the store lives");
        self.held_up.send_modify(|held_up| *held_up -= 1);
        self.store.acquire(acquire).await
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Renewed, StoreError> {
        self.store.renew(lease, ttl, via).await
    }

    async fn attach(&self, lease: &LeaseRef, to: Attachment) -> Result<Attached, StoreError> {
        self.store.attach(lease, to).await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: Release,
        via: Via,
    ) -> Result<Released, StoreError> {
        self.store.release(lease, release, via).await
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        let cancelled = self.store.cancel(lock, request, attempt).await?;
        self.cancelled.send_replace(Some(cancelled));
        Ok(cancelled)
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        self.store.touch(lock).await
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        self.store.set_limit(lock, limit).await
    }

    async fn revoke(&self, revoke: &Revoke) -> Result<Revoked, StoreError> {
        self.store.revoke(revoke).await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.store.get(lock).await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError> {
        self.store.list(filter, from, most).await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.store.check(lock, token).await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        self.store.watch().await
    }

    fn broker(&self) -> BrokerId {
        self.store.broker()
    }

    fn recovering_ms(&self) -> Option<u64> {
        self.store.recovering_ms()
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.store.deployment_key().await
    }

    fn listen(&self, listener: Listener) {
        self.store.listen(listener);
    }
}
