//! Prometheus metrics. Counters of calls are resolved once, so that recording a call costs a few
//! atomic additions. [`Metrics::off`] records nothing.

mod acquires;
mod calls;
mod labels;
mod leases;
mod namespaces;
mod process;
mod status;
mod store;

use std::{fmt, sync::Arc};

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};

pub use self::{
    acquires::{AcquireTimer, WaitingGauge},
    calls::{CallInProgress, Calls, Kind, Method},
    labels::{File, Listener, RejectionReason},
    leases::RenewalSlack,
    status::BrokerStatus,
    store::InstrumentedStore,
};
use self::{
    calls::GrpcFamilies,
    labels::{Label, Labels},
    namespaces::Namespaces,
    status::StatusGauges,
};
use crate::{lock::LockError, recent_events::LeaseEnd, store::Assumption};

/// Histograms by label, with the function that creates them.
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;
type Counters = Family<Labels, Counter>;
/// Counters by a label with few values.
type LabelCounters = Family<[Label; 1], Counter>;

/// Metrics of a broker. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics(Option<Arc<Inner>>);

struct Inner {
    registry: Registry,
    namespaces: Namespaces,
    uncontended: Histogram,
    handover: Histogram,
    checks: LabelCounters,
    quotas: LabelCounters,
    credentials: LabelCounters,
    store: store::Families,
    gauges: StatusGauges,
    grpc: GrpcFamilies,
}

/// Entry of a gauge, removed when dropped.
#[derive(Debug)]
pub struct GaugeEntry(Gauge);

/// Registrar of metric families.
struct Registrar<'a>(&'a mut Registry);

impl Metrics {
    /// Returns metrics that record nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Returns metrics that record if `is_on`.
    #[must_use]
    pub fn enabled(is_on: bool) -> Self {
        Self(is_on.then(|| Arc::new(Inner::new())))
    }

    /// Returns true if metrics are recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records the end of a lease's hold on a lock.
    pub fn lease_ended(&self, end: &LeaseEnd) {
        if let Some(inner) = &self.0 {
            inner.namespaces.get(end.lock.namespace()).ended(end);
        }
    }

    /// Counts these namespaces by name instead of as `other`.
    pub fn count_by_name<'a>(&self, namespaces: impl Iterator<Item = &'a str>) {
        if let Some(inner) = &self.0 {
            namespaces.for_each(|name| inner.namespaces.count_by_name(name));
        }
    }

    /// Records the result of a fencing token check.
    pub fn token_checked(&self, result: Result<&u64, &LockError>) {
        if let Some(inner) = &self.0 {
            let label = ("result", labels::checked(result));
            inner.checks.get_or_create(&[label]).inc();
        }
    }

    /// Counts a call that a quota rejected. Other errors are ignored.
    pub fn over_quota(&self, error: &LockError) {
        if let (Some(inner), Some(quota)) = (&self.0, labels::quota(error)) {
            inner.quotas.get_or_create(&[("quota", quota)]).inc();
        }
    }

    /// Counts a request that access control rejected.
    pub fn request_rejected(&self, reason: RejectionReason) {
        if let Some(inner) = &self.0 {
            let label = ("reason", reason.name());
            inner.credentials.get_or_create(&[label]).inc();
        }
    }

    /// Counts a failover: another server, or the same one with other data, now keeps the locks.
    pub fn failed_over(&self) {
        if let Some(inner) = &self.0 {
            inner.store.failovers.inc();
        }
    }

    /// Counts a violation of an assumption of the guarantees by a server.
    pub fn connection_broken(&self, assumption: Assumption) {
        if let Some(inner) = &self.0 {
            inner.store.broken(assumption).inc();
        }
    }

    /// Counts a resynchronization, after a new verified connection to the store or lost messages.
    pub fn resynchronised(&self) {
        if let Some(inner) = &self.0 {
            inner.store.resyncs.inc();
        }
    }

    /// Returns all metrics as text, including the status of the broker. Returns `None` if metrics
    /// are off.
    #[must_use]
    pub fn text(&self, status: &BrokerStatus) -> Option<String> {
        let inner = self.0.as_ref()?;
        inner.gauges.set(status);
        inner.namespaces.update_oldest_waits();
        let mut text = String::new();
        // Encoding fails only if the sink fails, and writing to a string does not fail.
        encode(&mut text, &inner.registry).ok()?;
        Some(text)
    }
}

impl Inner {
    fn new() -> Self {
        let mut registry = Registry::default();
        let mut registrar = Registrar(registry.sub_registry_with_prefix("leasehold"));
        let uncontended = Histogram::new(buckets::UNCONTENDED);
        let help = "Time from an acquire for one lock to its grant, for calls that did not wait";
        registrar.seconds("acquire_uncontended", help, &uncontended);
        let handover = Histogram::new(buckets::HANDOVER);
        let help =
            "Time from the arrival of a waiter's grant at the broker to the response to the waiter";
        registrar.seconds("grant_handover", help, &handover);
        let help = "Fencing tokens checked by CheckFencingToken, by result";
        let checks = registrar.counters("fencing_checks", help, "result", &labels::RESULTS);
        let help = "Acquires, lease streams, watches and live pages rejected by a quota";
        let quotas = registrar.counters("quota_refusals", help, "quota", &labels::QUOTAS);
        let help = "Requests rejected by access control, by reason";
        let reasons = RejectionReason::ALL.map(RejectionReason::name);
        let credentials = registrar.counters("access_refusals", help, "reason", &reasons);
        let namespaces = Namespaces::new(&mut registrar);
        let store = store::Families::new(&mut registrar);
        let gauges = StatusGauges::new(&mut registrar);
        let grpc = GrpcFamilies::new(&mut Registrar(&mut registry));
        process::register(&mut registry);
        Self {
            registry,
            namespaces,
            uncontended,
            handover,
            checks,
            quotas,
            credentials,
            store,
            gauges,
            grpc,
        }
    }
}

impl Registrar<'_> {
    fn plain(&mut self, name: &str, help: &str, metric: &(impl Metric + Clone)) {
        self.0.register(name, help, metric.clone());
    }

    /// Registers counters by a label, and creates their series with the value 0. Prometheus detects
    /// an increase only in a series that existed before.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &[&'static str],
    ) -> LabelCounters {
        let counters = LabelCounters::default();
        self.plain(name, help, &counters);
        for value in values {
            drop(counters.get_or_create(&[(label, *value)]));
        }
        counters
    }

    /// Registers a metric whose name ends with its unit.
    fn seconds(&mut self, name: &str, help: &str, metric: &(impl Metric + Clone)) {
        let registry = &mut self.0;
        registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    }

    fn ratio(&mut self, name: &str, help: &str, metric: &(impl Metric + Clone)) {
        let unit = Unit::Other("ratio".to_owned());
        self.0.register_with_unit(name, help, unit, metric.clone());
    }
}

impl GaugeEntry {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeEntry {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metrics").field(&self.is_on()).finish()
    }
}

mod buckets {
    //! Upper bounds of histogram buckets, in seconds.

    /// Time from the call to its response, waits included.
    pub(super) const WAIT: [f64; 16] = [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
        300.0,
    ];
    pub(super) const UNCONTENDED: [f64; 11] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    ];
    pub(super) const HANDOVER: [f64; 12] = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
    ];
    pub(super) const HOLD: [f64; 14] = [
        0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_600.0, 14_400.0,
        86_400.0,
    ];
    /// Share of the validity, not seconds.
    pub(super) const SLACK: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
    pub(super) const STORE: [f64; 12] = [
        0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    ];
    pub(super) const CALL: [f64; 12] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0,
    ];
}
