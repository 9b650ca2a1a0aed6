//! Instrumented store, which records the duration and the errors of each command.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use tokio::time::Instant;

use super::{LabelCounters, Metrics, Registrar, buckets, labels::Label};
use crate::{
    lock::{
        AcquireCommand, ActiveClosure, ActiveRecovery, Attachment, AttemptId, BrokerId,
        CloseCommand, DeploymentKey, ExpectedAttachment, FencingToken, Filter, Grant, LeaseRef,
        LockKey, LockState, ReleaseScope, RequestHash, RevokeCommand,
    },
    store::{
        Acquired, Assumption, Cancelled, Checked, Cursor, LeaseReply, LimitSet, Listed, Listener,
        RecoveryState, Released, Renewal, Revoked, Store, StoreError, StorePart, Touched,
    },
};

/// Durations of commands by operation.
type Durations = Family<[Label; 1], Histogram, fn() -> Histogram>;
/// Errors by operation and kind.
type Errors = Family<[Label; 2], Counter>;

pub(super) struct Families {
    durations: Durations,
    errors: Errors,
    pub(super) failovers: Counter,
    pub(super) resyncs: Counter,
    broken: LabelCounters,
}

/// Store wrapper that records metrics.
pub struct InstrumentedStore {
    store: Arc<dyn Store>,
    durations: Durations,
    errors: Errors,
}

impl Families {
    pub(super) fn new(registrar: &mut Registrar<'_>) -> Self {
        let families = Self {
            durations: Family::new_with_constructor(|| Histogram::new(buckets::STORE)),
            errors: Family::default(),
            failovers: Counter::default(),
            resyncs: Counter::default(),
            broken: Family::default(),
        };
        let help = "Time from a command to the store to its reply, by script";
        registrar.seconds("store_request_duration", help, &families.durations);
        let help = "Commands that the store did not execute or did not reply to";
        registrar.plain("store_errors", help, &families.errors);
        let help = "Number of times that another server process, or the same one with other data, \
            took over the locks";
        registrar.plain("store_failovers", help, &families.failovers);
        let help = "Number of subscriptions to a server's messages, and of losses of such messages";
        registrar.plain("store_resyncs", help, &families.resyncs);
        let help = "Violations of an assumption of the guarantees by a server";
        registrar.plain("store_broken_assumptions", help, &families.broken);
        // Prometheus detects an increase only in a series that existed before.
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
        self.broken.get_or_create_owned(&[("assumption", name)])
    }
}

impl Metrics {
    /// Wraps the store if metrics are on, otherwise returns it.
    #[must_use]
    pub fn instrument(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let Some(inner) = &self.0 else {
            return store;
        };
        Arc::new(InstrumentedStore {
            store,
            durations: inner.store.durations.clone(),
            errors: inner.store.errors.clone(),
        })
    }
}

impl InstrumentedStore {
    async fn time<T>(
        &self,
        operation: &'static str,
        command: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started_at = Instant::now();
        let result = command.await;
        self.record(operation, started_at.elapsed(), &result);
        result
    }

    fn record<T>(
        &self,
        operation: &'static str,
        duration: Duration,
        result: &Result<T, StoreError>,
    ) {
        let label = ("op", operation);
        let durations = self.durations.get_or_create(&[label]);
        durations.observe(duration.as_secs_f64());
        if let Err(error) = result {
            let labels = [label, ("kind", error_kind(error))];
            self.errors.get_or_create(&labels).inc();
        }
    }
}

fn error_kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable(_) => "unavailable",
        StoreError::NotExecuted(_) => "not_now",
        StoreError::Full(_) => "full",
        StoreError::Overloaded => "overloaded",
        StoreError::Recovering { .. } => "recovering",
        StoreError::Unsupported(_) => "unsupported",
        StoreError::Corrupt(_) => "corrupt",
        StoreError::InvalidReply(_) => "garbled",
    }
}

#[async_trait]
impl Store for InstrumentedStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        self.time("acquire", self.store.acquire(acquire)).await
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.time("renew", self.store.renew(lease, renewal)).await
    }

    fn part_of(&self, lock: &LockKey) -> StorePart {
        self.store.part_of(lock)
    }

    /// Each renewal counts as a call, which took as long as all of them.
    async fn renew_many(
        &self,
        leases: &[LeaseRef],
        renewal: Renewal,
    ) -> Vec<Result<LeaseReply<Grant>, StoreError>> {
        let started_at = Instant::now();
        let results = self.store.renew_many(leases, renewal).await;
        for result in &results {
            self.record("renew", started_at.elapsed(), result);
        }
        results
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        attachment: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.time("attach", self.store.attach(lease, attachment))
            .await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        scope: ReleaseScope,
        expected_attachment: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        self.time(
            "release",
            self.store.release(lease, scope, expected_attachment),
        )
        .await
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        self.time("cancel", self.store.cancel(lock, request, attempt))
            .await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        self.time("touch", self.store.touch(lock)).await
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        self.time("set_limit", self.store.set_limit(lock, limit))
            .await
    }

    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        self.time("close", self.store.close(close)).await
    }

    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        self.time("open", self.store.open(lock)).await
    }

    async fn revoke(&self, command: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        self.time("revoke", self.store.revoke(command)).await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.time("get", self.store.get(lock)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        max_count: usize,
    ) -> Result<Listed, StoreError> {
        self.time("list", self.store.list(filter, cursor, max_count))
            .await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.time("check", self.store.check(lock, token)).await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        self.time("watch", self.store.watch()).await
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
        self.store.listen(listener);
    }
}
