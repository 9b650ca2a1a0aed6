//! Metrics by namespace. Some namespaces are counted by name, and all others together as `other`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use tokio::time::Instant;

use super::{
    Counters, Histograms, Registrar, buckets,
    labels::{Labels, MODES, OUTCOMES},
};
use crate::recent_events::{LeaseEnd, LeaseEndReason};

/// Maximum number of namespaces counted by name because of requests: the first ones of authorized
/// acquires.
const SEEN_MAX: usize = 50;
/// Maximum number of namespaces counted by name, including those that the policy names.
const NAMED_MAX: usize = 1_000;
const OTHER: &str = "other";

/// Metrics of all namespaces.
pub(super) struct Namespaces {
    families: Arc<Families>,
    named: RwLock<HashMap<Box<str>, Arc<Namespace>>>,
    /// Number of namespaces counted by name because of requests.
    seen: AtomicUsize,
    other: Arc<Namespace>,
}

struct Families {
    acquires: Counters,
    waits: Histograms,
    ends: Counters,
    holds: Histograms,
    slack: Histograms,
    leases: Family<Labels, Gauge>,
    waiters: Family<Labels, Gauge>,
    oldest: Family<Labels, Gauge<f64, AtomicU64>>,
}

/// Metrics of one namespace. Each series is created when it is first recorded.
pub(super) struct Namespace {
    name: String,
    families: Arc<Families>,
    acquires: [[OnceLock<(Counter, Histogram)>; OUTCOMES.len()]; MODES.len()],
    ends: [OnceLock<(Counter, Histogram)>; LeaseEndReason::ALL.len()],
    slack: OnceLock<Histogram>,
    leases: [OnceLock<Gauge>; MODES.len()],
    waiters: [OnceLock<Gauge>; MODES.len()],
    /// Start of each wait, with the number of the waiting call.
    pub(super) waiting: Mutex<BTreeSet<(Instant, u64)>>,
}

impl Namespaces {
    pub(super) fn new(registrar: &mut Registrar<'_>) -> Self {
        let families = Arc::new(Families::new(registrar));
        let other = Arc::new(Namespace::new(OTHER, &families));
        Self {
            families,
            named: RwLock::default(),
            seen: AtomicUsize::new(0),
            other,
        }
    }

    /// Returns the metrics of a namespace that is counted by name, otherwise those of all others.
    pub(super) fn get(&self, name: &str) -> Arc<Namespace> {
        let named = self.named.read();
        Arc::clone(named.get(name).unwrap_or(&self.other))
    }

    /// Returns the metrics of a namespace, and counts it by name from now on if there is room.
    pub(super) fn admit(&self, name: &str) -> Arc<Namespace> {
        {
            let named = self.named.read();
            if let Some(namespace) = named.get(name) {
                return Arc::clone(namespace);
            }
            if self.seen.load(Ordering::Relaxed) >= SEEN_MAX {
                return Arc::clone(&self.other);
            }
        }
        self.add(name, |named| {
            // No other thread adds a namespace here, because the lock is held.
            let is_new = !named.contains_key(name);
            let has_room = self.seen.load(Ordering::Relaxed) < SEEN_MAX;
            if is_new && has_room {
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
            has_room
        })
    }

    /// Counts a namespace by name because the policy names it, up to [`NAMED_MAX`] in total.
    pub(super) fn count_by_name(&self, name: &str) {
        drop(self.add(name, |named| named.len() < NAMED_MAX));
    }

    fn add(
        &self,
        name: &str,
        is_allowed: impl FnOnce(&HashMap<Box<str>, Arc<Namespace>>) -> bool,
    ) -> Arc<Namespace> {
        let mut named = self.named.write();
        if name == OTHER || !is_allowed(&named) {
            return Arc::clone(named.get(name).unwrap_or(&self.other));
        }
        let namespace = || Arc::new(Namespace::new(name, &self.families));
        Arc::clone(named.entry(name.into()).or_insert_with(namespace))
    }

    /// Sets the gauges of the longest waits.
    pub(super) fn update_oldest_waits(&self) {
        let named = self.named.read();
        for namespace in named.values().chain([&self.other]) {
            if namespace.waiters.iter().any(|gauge| gauge.get().is_some()) {
                let first = namespace.waiting.lock().first().copied();
                let longest_wait = first.map(|(since, _)| since.elapsed());
                let oldest = longest_wait.unwrap_or_default().as_secs_f64();
                let label = vec![("namespace", namespace.name.clone())];
                self.families.oldest.get_or_create(&label).set(oldest);
            }
        }
    }
}

impl Namespace {
    fn new(name: &str, families: &Arc<Families>) -> Self {
        let namespace = Self {
            name: name.to_owned(),
            families: Arc::clone(families),
            acquires: Default::default(),
            ends: Default::default(),
            slack: OnceLock::new(),
            leases: Default::default(),
            waiters: Default::default(),
            waiting: Mutex::default(),
        };
        // Prometheus detects an increase only in a series that existed before.
        for reason in LeaseEndReason::ALL {
            let labels = namespace.labels(&[("reason", reason.name())]);
            drop(families.ends.get_or_create(&labels));
        }
        namespace
    }

    /// Counts an acquire that was rejected before it was started.
    pub(super) fn rejected(&self, outcome: usize) {
        let labels = self.labels(&[("mode", "unknown"), ("outcome", OUTCOMES[outcome])]);
        self.families.acquires.get_or_create(&labels).inc();
    }

    /// Records the outcome of an acquire and its duration in seconds.
    pub(super) fn acquired(&self, mode: usize, outcome: usize, seconds: f64) {
        let (counter, wait) = self.acquires[mode][outcome].get_or_init(|| {
            let labels = self.labels(&[("mode", MODES[mode]), ("outcome", OUTCOMES[outcome])]);
            let counter = self.families.acquires.get_or_create_owned(&labels);
            (counter, self.families.waits.get_or_create_owned(&labels))
        });
        counter.inc();
        wait.observe(seconds);
    }

    pub(super) fn ended(&self, end: &LeaseEnd) {
        let (counter, hold) = self.ends[end.reason as usize].get_or_init(|| {
            let labels = self.labels(&[("reason", end.reason.name())]);
            let counter = self.families.ends.get_or_create_owned(&labels);
            (counter, self.families.holds.get_or_create_owned(&labels))
        });
        counter.inc();
        // The conversion is exact for centuries.
        hold.observe(std::time::Duration::from_millis(end.held_ms).as_secs_f64());
    }

    pub(super) fn slack(&self) -> &Histogram {
        let create = || self.families.slack.get_or_create_owned(&self.labels(&[]));
        self.slack.get_or_init(create)
    }

    pub(super) fn leases(&self, mode: usize) -> &Gauge {
        self.leases[mode].get_or_init(|| {
            let labels = self.labels(&[("mode", MODES[mode])]);
            self.families.leases.get_or_create_owned(&labels)
        })
    }

    pub(super) fn waiters(&self, mode: usize) -> &Gauge {
        self.waiters[mode].get_or_init(|| {
            let labels = self.labels(&[("mode", MODES[mode])]);
            self.families.waiters.get_or_create_owned(&labels)
        })
    }

    fn labels(&self, extra_labels: &[(&'static str, &str)]) -> Labels {
        let extra_labels = extra_labels
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        [("namespace", self.name.clone())]
            .into_iter()
            .chain(extra_labels)
            .collect()
    }
}

impl Families {
    fn new(registrar: &mut Registrar<'_>) -> Self {
        let families = Self {
            acquires: Family::default(),
            waits: Family::new_with_constructor(|| Histogram::new(buckets::WAIT)),
            ends: Family::default(),
            holds: Family::new_with_constructor(|| Histogram::new(buckets::HOLD)),
            slack: Family::new_with_constructor(|| Histogram::new(buckets::SLACK)),
            leases: Family::default(),
            waiters: Family::default(),
            oldest: Family::default(),
        };
        let help = "Acquires and AcquireAlls, by outcome";
        registrar.plain("acquires", help, &families.acquires);
        let help = "Time from an acquire to its response, including the wait in the queue";
        registrar.seconds("acquire_wait", help, &families.waits);
        let help = "Ended holds of leases on locks, by reason";
        registrar.plain("lease_ends", help, &families.ends);
        let help = "Time from a grant to the end of the hold";
        registrar.seconds("lease_hold", help, &families.holds);
        let help =
            "Share of the validity that is left when a heartbeat for a lease on a stream arrives";
        registrar.ratio("lease_renewal_slack", help, &families.slack);
        let help = "Locks held by leases on streams of this broker, and by unary leases that it \
            has granted and that have not expired";
        registrar.plain("leases", help, &families.leases);
        let help = "Calls in queues at this broker";
        registrar.plain("waiters", help, &families.waiters);
        let help = "Longest time that a call has waited in a queue at this broker";
        registrar.seconds("queue_oldest", help, &families.oldest);
        families
    }
}
