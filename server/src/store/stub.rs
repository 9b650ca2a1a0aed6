//! A store for unit tests, which answers lists and watches only, and counts what it is asked.

use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::sleep;

use super::{
    Acquired, Attached, Cancelled, Checked, Cursor, LimitSet, Listed, Listener, Released, Renewed,
    Revoked, Scan, Store, StoreError, Touched,
};
use crate::lock::{
    Acquire, ArgumentsHash, Attachment, AttemptId, BrokerId, DeploymentKey, FencingToken, Filter,
    LeaseId, LeaseRef, LeaseToken, LockKey, LockState, Mode, Owner, Release, RequestHash,
    RequestId, Revoke, Terms, Ttl, Under, Via,
};

/// Steps of a list: more than any bound allows, and no endless loop where there is none.
const STEPS: usize = 400;

/// A store of long lists. All other commands stay without an answer.
#[derive(Default)]
pub(crate) struct Stub {
    /// Locks that each step of a list shows at most.
    locks: usize,
    /// Time that each step takes.
    takes: Duration,
    asked: AtomicUsize,
}

impl Stub {
    /// Creates a store each step of whose lists shows so many locks, and takes so long.
    pub(crate) fn listing(locks: usize, takes: Duration) -> Self {
        Self {
            locks,
            takes,
            ..Self::default()
        }
    }

    /// Returns how many commands were sent, watches excluded.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }

    async fn silent<T>(&self) -> T {
        self.asked.fetch_add(1, Relaxed);
        pending().await
    }
}

/// Returns a lock of the default namespace.
pub(crate) fn lock(name: &str) -> LockKey {
    LockKey::decode(&format!("{{default:{name}}}")).expect("a legal name")
}

/// Returns the public name of a lease.
pub(crate) fn lease_id(number: usize) -> LeaseId {
    LeaseToken::from_caller(number.to_string()).lease_id("")
}

/// Returns a call that nobody else makes.
pub(crate) fn acquire(lock: &LockKey, number: usize) -> Acquire {
    Acquire {
        lock: lock.clone(),
        mode: Mode::Shared,
        lease_id: lease_id(number),
        under: Under::NewLease,
        stream: None,
        request: RequestId::random().hash(),
        arguments: ArgumentsHash::of(&[]),
        attempt: AttemptId::random(),
        ttl: Ttl::from_stored(1_000),
        terms: Terms::default(),
        wait_ms: 60_000,
        owner: Owner::default(),
        rejoin: false,
    }
}

fn free() -> LockState {
    LockState {
        holders: Vec::new(),
        holder_count: 0,
        waiters: Vec::new(),
        queue_length: 0,
        closed_ms: 0,
        last_fencing_token: 1,
    }
}

#[async_trait]
impl Store for Stub {
    async fn acquire(&self, _: &Acquire) -> Result<Acquired, StoreError> {
        self.silent().await
    }

    async fn renew(&self, _: &LeaseRef, _: Option<Ttl>, _: Via) -> Result<Renewed, StoreError> {
        self.silent().await
    }

    async fn attach(&self, _: &LeaseRef, _: Attachment) -> Result<Attached, StoreError> {
        self.silent().await
    }

    async fn release(&self, _: &LeaseRef, _: Release, _: Via) -> Result<Released, StoreError> {
        self.silent().await
    }

    async fn cancel(
        &self,
        _: &LockKey,
        _: RequestHash,
        _: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        self.silent().await
    }

    async fn touch(&self, _: &LockKey) -> Result<Touched, StoreError> {
        self.silent().await
    }

    async fn set_limit(&self, _: &LockKey, _: Option<u32>) -> Result<LimitSet, StoreError> {
        self.silent().await
    }

    async fn revoke(&self, _: &Revoke) -> Result<Revoked, StoreError> {
        self.silent().await
    }

    async fn get(&self, _: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.silent().await
    }

    async fn list(
        &self,
        _: &Filter,
        _: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError> {
        let step = self.asked.fetch_add(1, Relaxed) + 1;
        if !self.takes.is_zero() {
            sleep(self.takes).await;
        }
        let numbers = 0..self.locks.min(most);
        Ok(Listed::Step {
            locks: numbers
                .map(|number| (lock(&format!("{step}-{number}")), free()))
                .collect(),
            next: (step < STEPS).then(|| Cursor::Scan(Scan::default())),
        })
    }

    async fn check(&self, _: &LockKey, _: FencingToken) -> Result<Checked, StoreError> {
        self.silent().await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn broker(&self) -> BrokerId {
        BrokerId::random()
    }

    fn recovering_ms(&self) -> Option<u64> {
        Some(0)
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.silent().await
    }

    fn listen(&self, _: Listener) {}
}
