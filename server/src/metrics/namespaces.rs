//! What is counted for each namespace: as many of them as there is a bound for, and all others together.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram,
};
use tokio::time::Instant;

use super::{
    Counters, Histograms, Names, buckets,
    labels::{self, Labels, MODES, OUTCOMES, REASONS},
};
use crate::history::End;

/// Namespaces that are counted by name: the first that locks were asked for in, and it was allowed.
const SEEN_MAX: usize = 50;
/// Those and the ones that an operator has named.
const NAMED_MAX: usize = 1_000;
const OTHER: &str = "other";

/// All namespaces.
pub(super) struct Namespaces {
    families: Arc<Families>,
    named: RwLock<HashMap<Box<str>, Arc<Namespace>>>,
    /// How many of them nobody has named beforehand.
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

/// One of them. Each series is made when it is first counted.
pub(super) struct Namespace {
    name: String,
    families: Arc<Families>,
    acquires: [[OnceLock<(Counter, Histogram)>; OUTCOMES.len()]; MODES.len()],
    ends: [OnceLock<(Counter, Histogram)>; REASONS.len()],
    slack: OnceLock<Histogram>,
    leases: [OnceLock<Gauge>; MODES.len()],
    waiters: [OnceLock<Gauge>; MODES.len()],
    /// Since when each call waits, and its number.
    waiting: Mutex<BTreeSet<(Instant, u64)>>,
}

impl Namespaces {
    pub(super) fn new(names: &mut Names<'_>) -> Self {
        let families = Arc::new(Families::new(names));
        let other = Arc::new(Namespace::new(OTHER, &families));
        Self {
            families,
            named: RwLock::default(),
            seen: AtomicUsize::new(0),
            other,
        }
    }

    /// One that is counted by name already, or all others.
    pub(super) fn of(&self, name: &str) -> Arc<Namespace> {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(named.get(name).unwrap_or(&self.other))
    }

    /// One that is counted by name from now on, if there is room for it.
    pub(super) fn admit(&self, name: &str) -> Arc<Namespace> {
        {
            let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(namespace) = named.get(name) {
                return Arc::clone(namespace);
            }
            if self.seen.load(Ordering::Relaxed) >= SEEN_MAX {
                return Arc::clone(&self.other);
            }
        }
        self.add(name, |named| {
            // Nobody else adds one meanwhile.
            let is_new = !named.contains_key(name);
            let has_room = self.seen.load(Ordering::Relaxed) < SEEN_MAX;
            if is_new && has_room {
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
            has_room
        })
    }

    /// One that is counted by name, however many others are: an operator has named it.
    pub(super) fn name(&self, name: &str) {
        drop(self.add(name, |named| named.len() < NAMED_MAX));
    }

    fn add(
        &self,
        name: &str,
        may: impl FnOnce(&HashMap<Box<str>, Arc<Namespace>>) -> bool,
    ) -> Arc<Namespace> {
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        if name == OTHER || !may(&named) {
            return Arc::clone(named.get(name).unwrap_or(&self.other));
        }
        let namespace = || Arc::new(Namespace::new(name, &self.families));
        Arc::clone(named.entry(name.into()).or_insert_with(namespace))
    }

    /// Looks how long the oldest of each has waited.
    pub(super) fn look(&self) {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        for namespace in named.values().chain([&self.other]) {
            if namespace.waiters.iter().any(|made| made.get().is_some()) {
                let first = namespace
                    .waiting()
                    .first()
                    .map(|(since, _)| since.elapsed());
                let oldest = first.unwrap_or_default().as_secs_f64();
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
        // An increase is seen only of a series that was there before.
        for reason in REASONS {
            let labels = namespace.labels(&[("reason", reason)]);
            drop(families.ends.get_or_create(&labels));
        }
        namespace
    }

    /// What became of an acquire, and after how many seconds, if it was begun.
    pub(super) fn acquired(&self, mode: Option<usize>, outcome: usize, seconds: Option<f64>) {
        let Some(mode) = mode else {
            let labels = self.labels(&[("mode", "unknown"), ("outcome", OUTCOMES[outcome])]);
            self.families.acquires.get_or_create(&labels).inc();
            return;
        };
        let (counter, wait) = self.acquires[mode][outcome].get_or_init(|| {
            let labels = self.labels(&[("mode", MODES[mode]), ("outcome", OUTCOMES[outcome])]);
            let counter = self.families.acquires.get_or_create_owned(&labels);
            (counter, self.families.waits.get_or_create_owned(&labels))
        });
        counter.inc();
        if let Some(seconds) = seconds {
            wait.observe(seconds);
        }
    }

    pub(super) fn ended(&self, end: &End) {
        let reason = labels::reason(end.reason);
        let (counter, hold) = self.ends[reason].get_or_init(|| {
            let labels = self.labels(&[("reason", REASONS[reason])]);
            let counter = self.families.ends.get_or_create_owned(&labels);
            (counter, self.families.holds.get_or_create_owned(&labels))
        });
        counter.inc();
        // Milliseconds of centuries are exact.
        hold.observe(std::time::Duration::from_millis(end.held_ms).as_secs_f64());
    }

    pub(super) fn slack(&self) -> &Histogram {
        let make = || self.families.slack.get_or_create_owned(&self.labels(&[]));
        self.slack.get_or_init(make)
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

    pub(super) fn waiting(&self) -> MutexGuard<'_, BTreeSet<(Instant, u64)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn labels(&self, more: &[(&'static str, &str)]) -> Labels {
        let more = more
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        [("namespace", self.name.clone())]
            .into_iter()
            .chain(more)
            .collect()
    }
}

impl Families {
    fn new(names: &mut Names<'_>) -> Self {
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
        let about = "Acquires and AcquireAlls by what became of them";
        names.plain("acquires", about, families.acquires.clone());
        let about = "Time from an acquire to its answer, waiting included";
        names.seconds("acquire_wait", about, families.waits.clone());
        let about = "Ends of leases' holds on locks by how they ended";
        names.plain("lease_ends", about, families.ends.clone());
        let about = "Time from a grant to the end of the hold";
        names.seconds("lease_hold", about, families.holds.clone());
        let about = "Validity left, of all of it, when a heartbeat comes to a lease on a stream";
        names.ratio("lease_renewal_slack", about, families.slack.clone());
        let about = "Locks held by leases on streams of this broker, and by unary leases that it \
            has granted and that have not run out";
        names.plain("leases", about, families.leases.clone());
        let about = "Calls that wait in line at this broker";
        names.plain("waiters", about, families.waiters.clone());
        let about = "For how long the call has waited that waits longest at this broker";
        names.seconds("queue_oldest", about, families.oldest.clone());
        families
    }
}
