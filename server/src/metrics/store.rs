//! Instrumented store, which records the duration and the errors of each command.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};
use tokio::time::Instant;

use super::{Counters, Histograms, Metrics, Registrar, buckets, seconds};
use crate::{
    lock::{
        AcquireCommand, Attachment, AttemptId, BrokerId, DeploymentKey, ExpectedAttachment,
        FencingToken, Filter, Grant, LeaseRef, LockKey, LockState, ReleaseScope, RequestHash,
        RevokeCommand,
    },
    store::{
        Acquired, Assumption, Cancelled, Checked, Cursor, LeaseReply, LimitSet, Listed, Listener,
        Released, Renewal, Revoked, Store, StoreError, Touched,
    },
};

/// Operation of a store, with its label.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Acquire,
    Renew,
    Attach,
    Release,
    Cancel,
    Touch,
    SetLimit,
    Revoke,
    Get,
    List,
    Check,
    Watch,
}

pub(super) struct Families {
    durations: Histograms,
    errors: Counters,
    pub(super) failovers: Counter,
    pub(super) resyncs: Counter,
    broken: Counters,
}

/// Store wrapper that records metrics.
pub struct InstrumentedStore {
    store: Arc<dyn Store>,
    durations: Histograms,
    errors: Counters,
    /// Histogram of each operation, created by its first command.
    created: [OnceLock<Histogram>; Operation::Watch as usize + 1],
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
        registrar.seconds("store_request_duration", help, families.durations.clone());
        let help = "Commands that the store did not execute or did not reply to";
        registrar.plain("store_errors", help, families.errors.clone());
        let help = "Number of times that another server process, or the same one with other data, \
            took over the locks";
        registrar.plain("store_failovers", help, families.failovers.clone());
        let help = "Number of subscriptions to a server's messages, and of losses of such messages";
        registrar.plain("store_resyncs", help, families.resyncs.clone());
        let help = "Violations of an assumption of the guarantees by a server";
        registrar.plain("store_broken_assumptions", help, families.broken.clone());
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
        let label = vec![("assumption", name.to_owned())];
        self.broken.get_or_create(&label).clone()
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
            created: Default::default(),
        })
    }
}

impl InstrumentedStore {
    async fn time<T>(
        &self,
        operation: Operation,
        command: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started_at = Instant::now();
        let result = command.await;
        let label = || ("op", operation.name().to_owned());
        let create = || self.durations.get_or_create_owned(&vec![label()]);
        let duration = self.created[operation as usize].get_or_init(create);
        duration.observe(seconds(started_at.elapsed()));
        result.inspect_err(|error| {
            let labels = vec![label(), ("kind", error_kind(error).to_owned())];
            self.errors.get_or_create(&labels).inc();
        })
    }
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Attach => "attach",
            Self::Release => "release",
            Self::Cancel => "cancel",
            Self::Touch => "touch",
            Self::SetLimit => "set_limit",
            Self::Revoke => "revoke",
            Self::Get => "get",
            Self::List => "list",
            Self::Check => "check",
            Self::Watch => "watch",
        }
    }
}

fn error_kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable(_) => "unavailable",
        StoreError::NotExecuted(_) => "not_now",
        StoreError::Full(_) => "full",
        StoreError::Recovering { .. } => "recovering",
        StoreError::Unsupported(_) => "unsupported",
        StoreError::Corrupt(_) => "corrupt",
        StoreError::InvalidReply(_) => "garbled",
    }
}

#[async_trait]
impl Store for InstrumentedStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        self.time(Operation::Acquire, self.store.acquire(acquire))
            .await
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.time(Operation::Renew, self.store.renew(lease, renewal))
            .await
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        attachment: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.time(Operation::Attach, self.store.attach(lease, attachment))
            .await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        scope: ReleaseScope,
        expected_attachment: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        self.time(
            Operation::Release,
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
        self.time(Operation::Cancel, self.store.cancel(lock, request, attempt))
            .await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        self.time(Operation::Touch, self.store.touch(lock)).await
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        self.time(Operation::SetLimit, self.store.set_limit(lock, limit))
            .await
    }

    async fn revoke(&self, command: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        self.time(Operation::Revoke, self.store.revoke(command))
            .await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.time(Operation::Get, self.store.get(lock)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        max_count: usize,
    ) -> Result<Listed, StoreError> {
        self.time(Operation::List, self.store.list(filter, cursor, max_count))
            .await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.time(Operation::Check, self.store.check(lock, token))
            .await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        self.time(Operation::Watch, self.store.watch()).await
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
