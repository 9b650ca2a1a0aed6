//! Commands to the store: how long each takes, and how it fails. A store that is counted is wrapped.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use tokio::time::Instant;

use super::{Counters, Histograms, Metrics, Names, buckets, seconds};
use crate::{
    lock::{
        Acquire, Attachment, AttemptId, BrokerId, DeploymentKey, FencingToken, Filter, LeaseRef,
        LockKey, LockState, Release, RequestHash, Revoke, Ttl, Via,
    },
    store::{
        Acquired, Assumption, Attached, Cancelled, Checked, Cursor, LimitSet, Listed, Listener,
        Released, Renewed, Revoked, Store, StoreError, Touched,
    },
};

const OPS: [&str; 12] = [
    "acquire",
    "renew",
    "attach",
    "release",
    "cancel",
    "touch",
    "set_limit",
    "revoke",
    "get",
    "list",
    "check",
    "watch",
];
const KINDS: [&str; 7] = [
    "unavailable",
    "not_now",
    "full",
    "recovering",
    "unsupported",
    "corrupt",
    "garbled",
];

pub(super) struct Families {
    durations: Histograms,
    errors: Counters,
    pub(super) failovers: Counter,
    pub(super) resyncs: Counter,
    broken: Counters,
}

/// A store whose commands are counted.
pub struct Measured {
    store: Arc<dyn Store>,
    ops: [Op; OPS.len()],
}

struct Op {
    name: &'static str,
    duration: OnceLock<Histogram>,
    durations: Histograms,
    errors: Counters,
    made: [OnceLock<Counter>; KINDS.len()],
}

impl Families {
    pub(super) fn new(names: &mut Names<'_>) -> Self {
        let families = Self {
            durations: Family::new_with_constructor(|| Histogram::new(buckets::STORE)),
            errors: Family::default(),
            failovers: Counter::default(),
            resyncs: Counter::default(),
            broken: Family::default(),
        };
        let about = "Time from a command to the store to its answer, by script";
        names.seconds("store_request_duration", about, families.durations.clone());
        let about = "Commands that the store did not execute, or did not answer";
        names.plain("store_errors", about, families.errors.clone());
        let about =
            "Times that another server, or the same with other data, came to keep the locks";
        names.plain("store_failovers", about, families.failovers.clone());
        let about = "Times that the broker began to hear a server, or had missed what it told";
        names.plain("store_resyncs", about, families.resyncs.clone());
        let about = "Violations of an assumption of the guarantees by a server";
        names.plain("store_broken_assumptions", about, families.broken.clone());
        // An increase counts from the first time on only if the series was there before.
        for assumption in [Assumption::Clock, Assumption::NoEviction] {
            families.broken(assumption);
        }
        families
    }

    pub(super) fn broken(&self, assumption: Assumption) -> Counter {
        let name = match assumption {
            Assumption::Clock => "clock",
            Assumption::NoEviction => "no_eviction",
        };
        let label = vec![("assumption", name.to_owned())];
        self.broken.get_or_create(&label).clone()
    }
}

impl Metrics {
    /// The same store, counted if anything is.
    #[must_use]
    pub fn measured(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let Some(all) = &self.0 else {
            return store;
        };
        let ops = OPS.map(|name| Op {
            name,
            duration: OnceLock::new(),
            durations: all.store.durations.clone(),
            errors: all.store.errors.clone(),
            made: Default::default(),
        });
        Arc::new(Measured { store, ops })
    }
}

impl Measured {
    async fn time<T>(
        &self,
        op: usize,
        command: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let done = command.await;
        let op = &self.ops[op];
        op.duration().observe(seconds(begun.elapsed()));
        done.inspect_err(|error| op.failed(error))
    }
}

impl Op {
    fn duration(&self) -> &Histogram {
        let label = || vec![("op", self.name.to_owned())];
        let make = || self.durations.get_or_create_owned(&label());
        self.duration.get_or_init(make)
    }

    fn failed(&self, error: &StoreError) {
        let kind = match error {
            StoreError::Unavailable(_) => 0,
            StoreError::NotNow(_) => 1,
            StoreError::Full(_) => 2,
            StoreError::Recovering { .. } => 3,
            StoreError::Unsupported(_) => 4,
            StoreError::Corrupt(_) => 5,
            StoreError::Garbled(_) => 6,
        };
        let make = || {
            let labels = vec![
                ("op", self.name.to_owned()),
                ("kind", KINDS[kind].to_owned()),
            ];
            self.errors.get_or_create_owned(&labels)
        };
        self.made[kind].get_or_init(make).inc();
    }
}

#[async_trait]
impl Store for Measured {
    async fn acquire(&self, acquire: &Acquire) -> Result<Acquired, StoreError> {
        self.time(0, self.store.acquire(acquire)).await
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        ttl: Option<Ttl>,
        via: Via,
    ) -> Result<Renewed, StoreError> {
        self.time(1, self.store.renew(lease, ttl, via)).await
    }

    async fn attach(&self, lease: &LeaseRef, to: Attachment) -> Result<Attached, StoreError> {
        self.time(2, self.store.attach(lease, to)).await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: Release,
        via: Via,
    ) -> Result<Released, StoreError> {
        self.time(3, self.store.release(lease, release, via)).await
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        self.time(4, self.store.cancel(lock, request, attempt))
            .await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        self.time(5, self.store.touch(lock)).await
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        self.time(6, self.store.set_limit(lock, limit)).await
    }

    async fn revoke(&self, revoke: &Revoke) -> Result<Revoked, StoreError> {
        self.time(7, self.store.revoke(revoke)).await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.time(8, self.store.get(lock)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, StoreError> {
        self.time(9, self.store.list(filter, from, most)).await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.time(10, self.store.check(lock, token)).await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        self.time(11, self.store.watch()).await
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
