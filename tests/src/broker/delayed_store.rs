//! A memory store whose acquires and replies to releases can be delayed, and whose events and
//! releases can be lost, as by a stalled or broken connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold_server::{
    lock::{
        AcquireCommand, ActiveClosure, ActiveRecovery, Attachment, AttemptId, BrokerId,
        CloseCommand, DeploymentKey, ExpectedAttachment, FencingToken, Filter, Grant, LeaseRef,
        LockKey, LockState, ReleaseScope, RequestHash, RevokeCommand,
    },
    store::{
        Acquired, Cancelled, Checked, Cursor, LeaseReply, LimitSet, Listed, Listener,
        RecoveryState, Released, Renewal, Revoked, Store, StoreError, Touched,
        memory::{Memory, MemoryStore},
    },
};
use tokio::sync::watch;

/// A broker's connection to the store.
pub struct DelayedStore {
    store: MemoryStore,
    is_delaying: watch::Sender<bool>,
    is_delaying_released: watch::Sender<bool>,
    /// Number of delayed acquires.
    delayed_count: watch::Sender<usize>,
    cancelled: watch::Sender<Option<Cancelled>>,
    is_losing_events: Arc<AtomicBool>,
    is_losing_release: watch::Sender<bool>,
    renewal_delay_ms: AtomicU64,
}

impl DelayedStore {
    /// Connects to an empty store, without delay.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::connect(&Memory::new(Duration::ZERO))
    }

    /// Connects a further broker to the store.
    #[must_use]
    pub fn connect(memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            store: memory.connect(BrokerId::random()),
            is_delaying: watch::Sender::default(),
            is_delaying_released: watch::Sender::default(),
            delayed_count: watch::Sender::default(),
            cancelled: watch::Sender::default(),
            is_losing_events: Arc::default(),
            is_losing_release: watch::Sender::default(),
            renewal_delay_ms: AtomicU64::default(),
        })
    }

    /// Loses the events for this broker from now on, or delivers them again.
    pub fn set_losing_events(&self, is_losing: bool) {
        self.is_losing_events.store(is_losing, Ordering::Relaxed);
    }

    /// Loses the next release, and returns once it is lost.
    pub async fn lose_one_release(&self) {
        self.is_losing_release.send_replace(true);
        let mut is_losing = self.is_losing_release.subscribe();
        let is_lost = is_losing.wait_for(|is_losing| !is_losing).await;
        is_lost.expect("the store lives");
    }

    /// Delays renewals from now on.
    pub fn set_renewal_delay_ms(&self, delay_ms: u64) {
        self.renewal_delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    /// Waits until this number of calls is in the queue of the lock.
    pub async fn wait_for_queue_length(&self, lock: &LockKey, length: u32) {
        loop {
            let state = self.store.get(lock).await.expect("it answers");
            if state.is_some_and(|state| state.queue_length == length) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Delays acquires from now on, or stops the delay and lets delayed acquires proceed.
    pub fn set_delaying(&self, is_late: bool) {
        self.is_delaying.send_replace(is_late);
    }

    /// Delays the replies to releases from now on, or stops the delay and delivers delayed replies.
    pub fn set_delaying_released(&self, is_late: bool) {
        self.is_delaying_released.send_replace(is_late);
    }

    /// Waits until exactly `count` acquires are delayed.
    pub async fn wait_for_delayed(&self, count: usize) {
        let mut held_up = self.delayed_count.subscribe();
        let reached = held_up.wait_for(|now| *now == count).await;
        reached.expect("the store lives");
    }

    /// Waits until an attempt was cancelled and returns the result of the cancellation.
    pub async fn wait_for_cancellation(&self) -> Cancelled {
        let mut cancelled = self.cancelled.subscribe();
        let done = cancelled.wait_for(Option::is_some).await;
        done.expect("the store lives").expect("some")
    }
}

#[async_trait]
impl Store for DelayedStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        self.delayed_count.send_modify(|held_up| *held_up += 1);
        let mut is_late = self.is_delaying.subscribe();
        let passes = is_late.wait_for(|is_late| !is_late).await;
        passes.expect("the store lives");
        self.delayed_count.send_modify(|held_up| *held_up -= 1);
        self.store.acquire(acquire).await
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        let delay_ms = self.renewal_delay_ms.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        self.store.renew(lease, renewal).await
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.store.attach(lease, to).await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        if self.is_losing_release.send_if_modified(std::mem::take) {
            return Err(StoreError::Unavailable("the reply is lost".to_owned()));
        }
        let released = self.store.release(lease, release, via).await;
        let mut is_late = self.is_delaying_released.subscribe();
        let passes = is_late.wait_for(|is_late| !is_late).await;
        passes.expect("the store lives");
        released
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

    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        self.store.close(close).await
    }

    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        self.store.open(lock).await
    }

    async fn revoke(&self, revoke: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        self.store.revoke(revoke).await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.store.get(lock).await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        page_size: usize,
    ) -> Result<Listed, StoreError> {
        self.store.list(filter, from, page_size).await
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

    fn recovery(&self) -> RecoveryState {
        self.store.recovery()
    }

    fn recovery_of(&self, lock: &LockKey) -> Option<ActiveRecovery> {
        self.store.recovery_of(lock)
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.store.deployment_key().await
    }

    fn listen(&self, listener: Listener) {
        let is_losing = Arc::clone(&self.is_losing_events);
        self.store.listen(Arc::new(move |event| {
            if !is_losing.load(Ordering::Relaxed) {
                listener(event);
            }
        }));
    }
}
