//! What is counted, and shown on `/metrics`. Whoever counts has its counter beforehand: a call costs a
//! few additions. A broker that counts nothing has [`Metrics::off`], and whatever is asked of that does nothing.

mod acquires;
mod calls;
mod labels;
mod leases;
mod namespaces;
mod process;
mod standing;
mod store;

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};

pub use self::{
    acquires::{Timed, Waiting},
    calls::{Calls, Counting, Kind, Method},
    labels::{File, Listener, Refusal},
    leases::{HeldCount, Slack},
    standing::{OpenConnection, Standing},
    store::Measured,
};
use self::{calls::GrpcFamilies, labels::Labels, namespaces::Namespaces, standing::Gauges};
use crate::{history::End, lock::LockError, store::Assumption};

/// What a histogram's family makes new ones with.
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;
type Counters = Family<Labels, Counter>;

/// All that a broker counts. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics(Option<Arc<All>>);

struct All {
    registry: Registry,
    namespaces: Namespaces,
    uncontended: Histogram,
    handover: Histogram,
    checks: Counters,
    quotas: Counters,
    credentials: Counters,
    store: store::Families,
    gauges: Gauges,
    grpc: GrpcFamilies,
}

/// Where families are told their names.
struct Names<'a>(&'a mut Registry);

impl Metrics {
    /// Counts nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Counts from now on, if it is to.
    #[must_use]
    pub fn when(is_on: bool) -> Self {
        Self(is_on.then(|| Arc::new(All::new())))
    }

    /// Whether anything is counted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A lease's hold on a lock has ended.
    pub fn ended(&self, end: &End) {
        if let Some(all) = &self.0 {
            all.namespaces.of(end.lock.namespace()).ended(end);
        }
    }

    /// Namespaces that are counted by name, however many others are.
    pub fn name<'a>(&self, namespaces: impl Iterator<Item = &'a str>) {
        if let Some(all) = &self.0 {
            namespaces.for_each(|name| all.namespaces.name(name));
        }
    }

    /// A fencing token was looked at.
    pub fn checked(&self, result: Result<&u64, &LockError>) {
        if let Some(all) = &self.0 {
            let result = labels::checked(result);
            let label = vec![("result", result.to_owned())];
            all.checks.get_or_create(&label).inc();
        }
    }

    /// A call was refused for how much there is already, if that is why.
    pub fn over_quota(&self, error: &LockError) {
        if let (Some(all), Some(quota)) = (&self.0, labels::quota(error)) {
            let label = vec![("quota", quota.to_owned())];
            all.quotas.get_or_create(&label).inc();
        }
    }

    /// Nobody knows who calls, or may do what was asked for.
    pub fn refused(&self, why: Refusal) {
        if let Some(all) = &self.0 {
            let label = vec![("reason", why.name().to_owned())];
            all.credentials.get_or_create(&label).inc();
        }
    }

    /// Another server, or the same with other data, keeps the locks.
    pub fn failed_over(&self) {
        if let Some(all) = &self.0 {
            all.store.failovers.inc();
        }
    }

    /// A server of the store violated an assumption of the guarantees.
    pub fn broken(&self, assumption: Assumption) {
        if let Some(all) = &self.0 {
            all.store.broken(assumption).inc();
        }
    }

    /// A verified connection to the store was made, or messages were lost.
    pub fn resynchronised(&self) {
        if let Some(all) = &self.0 {
            all.store.resyncs.inc();
        }
    }

    /// A file was read again, or could not be used.
    pub fn reloaded(&self, file: File, is_good: bool) {
        if let Some(all) = &self.0 {
            all.gauges.reloaded(file, is_good);
        }
    }

    /// When the certificate in use ends, in seconds since 1970.
    pub fn certificate_ends(&self, at: i64) {
        if let Some(all) = &self.0 {
            all.gauges.certificate_ends(at);
        }
    }

    /// One more connection of a listener, or one that was too much.
    pub fn connected(&self, listener: Listener, may: bool) -> Option<OpenConnection> {
        let all = self.0.as_ref()?;
        all.gauges.connected(listener, may)
    }

    /// All of it as text, beside how the broker stands. `None`: nothing is counted.
    #[must_use]
    pub fn text(&self, standing: &Standing) -> Option<String> {
        let all = self.0.as_ref()?;
        all.gauges.stand(standing);
        all.namespaces.look();
        let mut text = String::new();
        // Only a broken sink fails, and a string is none.
        encode(&mut text, &all.registry).ok()?;
        Some(text)
    }
}

impl All {
    fn new() -> Self {
        let mut registry = Registry::default();
        let mut names = Names(registry.sub_registry_with_prefix("leasehold"));
        let uncontended = Histogram::new(buckets::UNCONTENDED);
        let about = "Time from an acquire to its grant, of calls for one lock that did not wait";
        names.seconds("acquire_uncontended", about, uncontended.clone());
        let handover = Histogram::new(buckets::HANDOVER);
        let about = "Time from when the broker hears that a waiter was granted the lock to the \
            waiter's answer";
        names.seconds("grant_handover", about, handover.clone());
        let checks = Counters::default();
        let about = "Fencing tokens that were looked at by CheckFencingToken";
        names.plain("fencing_checks", about, checks.clone());
        begin(&checks, "result", &labels::RESULTS);
        let quotas = Counters::default();
        let about =
            "Acquires, watches and live pages that were refused for how much there is already";
        names.plain("quota_refusals", about, quotas.clone());
        begin(&quotas, "quota", &labels::QUOTAS);
        let credentials = Counters::default();
        let about = "Calls of callers that nobody knows, or that the rules deny";
        names.plain("access_refusals", about, credentials.clone());
        begin(&credentials, "reason", &Refusal::ALL.map(Refusal::name));
        let namespaces = Namespaces::new(&mut names);
        let store = store::Families::new(&mut names);
        let gauges = Gauges::new(&mut names);
        let grpc = GrpcFamilies::new(&mut Names(&mut registry));
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

impl Names<'_> {
    fn plain(&mut self, name: &str, about: &str, metric: impl Metric) {
        self.0.register(name, about, metric);
    }

    /// The unit is the end of its name.
    fn seconds(&mut self, name: &str, about: &str, metric: impl Metric) {
        self.0
            .register_with_unit(name, about, Unit::Seconds, metric);
    }

    fn ratio(&mut self, name: &str, about: &str, metric: impl Metric) {
        let unit = Unit::Other("ratio".to_owned());
        self.0.register_with_unit(name, about, unit, metric);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Metrics").field(&self.is_on()).finish()
    }
}

/// Shows series before anything is counted: an increase is seen only of one that was there before.
fn begin(counters: &Counters, label: &'static str, values: &[&str]) {
    for value in values {
        drop(counters.get_or_create(&vec![(label, (*value).to_owned())]));
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

mod buckets {
    //! Upper ends of the histograms' buckets, in seconds.

    /// From the call to its answer, waits included.
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
    /// Of the validity.
    pub(super) const SLACK: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
    pub(super) const STORE: [f64; 12] = [
        0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    ];
    pub(super) const CALL: [f64; 12] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0,
    ];
}
