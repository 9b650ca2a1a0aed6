//! Clients that acquire random locks in random ways, and record each use with the oracle and each
//! loss.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::unary::{AcquireCall, Client};
use crate::clock::boottime;
use crate::history::{
    Event, EventKind, Fault, judge,
    lines::encode,
    recorder::{HistoryRecorder, micros},
};
use crate::load::caller::{Activity, Caller};
use crate::load::faults::LoadClients;
use crate::load::losses::{DataLoss, LossCounts, LossReport, Period};
use crate::load::mutual_exclusion_oracle::{LockUse, Oracle, Share};
use crate::scale::{is_full_scale, print_figures};

const TTL: Duration = Duration::from_secs(1);
/// Time for which a holder works.
pub const WORK_TIME: Duration = Duration::from_millis(1);
const STOP_LIMIT: Duration = Duration::from_secs(45);

/// An Acquire call, including its repeats.
#[derive(Debug, Clone, Copy)]
pub struct CallRecord {
    pub started_at: Duration,
    pub ended_at: Duration,
    /// True if the call acquired the lock.
    pub is_granted: bool,
}

/// Kind of use of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Exclusive lock with writes to the resource that it protects.
    Exclusive,
    /// Read-write lock: a third of the calls write, the others read.
    ReadWrite,
    /// Semaphore with 5 permits, of which a call acquires 1 to 3.
    Semaphore,
}

impl LockKind {
    /// Returns the share of a holder that excludes all others.
    #[must_use]
    pub fn full_share(self) -> Share {
        let limit = match self {
            Self::Exclusive => 1,
            Self::ReadWrite => 1 << 30,
            Self::Semaphore => 5,
        };
        Share {
            weight: limit,
            limit,
        }
    }

    /// Returns the weight and limit of one call. Both are random where the kind allows it.
    #[must_use]
    pub fn random_share(self, rng: &mut impl Rng) -> Share {
        let full = self.full_share();
        let weight = match self {
            Self::ReadWrite if rng.gen_ratio(2, 3) => 1,
            Self::Semaphore => rng.gen_range(1..=3),
            Self::Exclusive | Self::ReadWrite => full.weight,
        };
        Share { weight, ..full }
    }
}

/// Lock of a call, with the share that the call requests.
#[derive(Debug, Clone, Copy)]
pub struct LoadTarget {
    pub lock: usize,
    pub kind: LockKind,
    pub share: Share,
}

impl LoadTarget {
    /// Returns a call for this lock with a new request id.
    #[must_use]
    pub fn acquire_call(self, ttl: Duration, wait: Duration) -> AcquireCall {
        let call = AcquireCall::new(&lock_name(self.lock), ttl, wait);
        match self.kind {
            LockKind::Semaphore => {
                let [permits, limit] = [self.share.weight, self.share.limit].map(u32::cast_signed);
                call.with_permits(permits, limit)
            }
            LockKind::ReadWrite if self.share.weight < self.share.limit => call.shared(),
            LockKind::Exclusive | LockKind::ReadWrite => call,
        }
    }
}

/// Assignment of kinds to lock indexes.
pub type KindOfLock = fn(usize) -> LockKind;

/// Calls that a load draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMix {
    /// Acquire, work and release of one lock.
    Plain,
    /// All activities. Few clients hold several locks or cancel calls, because others wait for them.
    Full,
    /// All activities, with many long holds.
    Long,
}

/// Options of a load.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    pub clients: usize,
    pub ttl: Duration,
    pub kind_of: KindOfLock,
    pub mix: CallMix,
    /// Seed of the generators, or `None` for a random one. A run with the same seed draws the same
    /// calls, as far as their results are the same.
    pub seed: Option<u64>,
}

impl LoadOptions {
    /// Returns options for plain calls.
    #[must_use]
    pub fn plain(clients: usize, kind_of: KindOfLock) -> Self {
        Self {
            clients,
            ttl: TTL,
            kind_of,
            mix: CallMix::Plain,
            seed: None,
        }
    }

    #[must_use]
    pub fn with_mix(self, mix: CallMix) -> Self {
        Self { mix, ..self }
    }

    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }
}

/// Record of a load.
#[derive(Debug, Default)]
pub struct LoadRecord {
    pub calls: Vec<CallRecord>,
    pub losses: Vec<LossReport>,
    /// Number of completed activities of each kind.
    pub activities: BTreeMap<Activity, usize>,
    /// Number of requests that were granted again less than 2 s after their release.
    pub regranted: usize,
    /// Number of requests whose two attempts received different leases.
    pub different_leases: usize,
    /// Requests whose two attempts received different fencing tokens.
    pub granted_twice: Vec<Period>,
    /// Number of renewals whose reply lacked a lock of the lease.
    pub missing_locks: usize,
    /// History of what the clients sent and received.
    pub history: Vec<Event>,
}

/// A fault of a run, with the period in which it was in effect.
#[derive(Debug, Clone)]
pub struct JudgedFault {
    pub fault: Fault,
    pub period: Period,
}

impl LoadRecord {
    /// Judges the history of the run, and asserts that it violates no rule. A history that violates
    /// one is written into a file.
    pub fn assert_history(&self, setting: &str, faults: &[JudgedFault]) {
        let mut events = self.history.clone();
        for JudgedFault { fault, period } in faults {
            let event = |at: Duration, kind| Event {
                at_us: micros(at),
                client: "faults".to_owned(),
                kind,
            };
            let [began, ended] = [fault.clone(), fault.clone()];
            events.push(event(
                period.started_at,
                EventKind::FaultBegan { fault: began },
            ));
            events.push(event(
                period.ended_at,
                EventKind::FaultEnded { fault: ended },
            ));
        }
        events.sort_by_key(|event| event.at_us);
        let verdict = judge(&events);
        print_figures(&format!(
            "{setting}: history of {} events: {verdict}",
            events.len()
        ));
        if !verdict.violations.is_empty() {
            let file = format!("leasehold-history-{}.jsonl", std::process::id());
            let path = std::env::temp_dir().join(file);
            std::fs::write(&path, encode(&events)).expect("a writable directory");
            panic!(
                "the history violates the guarantees; judge it again: cargo run -p leasehold-tests \
                 --bin judge -- {}",
                path.display()
            );
        }
    }

    /// Prints the figures, and asserts that each loss has a cause, and that no request was granted
    /// twice.
    pub fn assert_losses_have_causes(&self, setting: &str, data_losses: &[DataLoss]) -> LossCounts {
        let losses = LossCounts::of(&self.losses, data_losses);
        let is_without_loss = |call: &&Period| !data_losses.iter().any(|loss| call.overlaps(loss));
        let granted_twice = self.granted_twice.iter().filter(is_without_loss).count();
        print_figures(&format!(
            "{setting}: activities={:?} losses={losses:?} regranted={} different_leases={} \
             granted_twice={granted_twice} (with data losses {}) missing_locks={}",
            self.activities,
            self.regranted,
            self.different_leases,
            self.granted_twice.len(),
            self.missing_locks
        ));
        assert_eq!(losses.without_cause, 0, "losses without a cause");
        let repeats = (self.regranted, self.different_leases, granted_twice);
        assert_eq!(
            repeats,
            (0, 0, 0),
            "regranted, different leases, granted twice"
        );
        assert_eq!(self.missing_locks, 0, "renewals that lack a lock");
        losses
    }

    /// Asserts that each activity was completed, or with a smaller scale, each group of rare
    /// activities.
    pub fn assert_all_activities(&self) {
        let groups: &[&[Activity]] = if !is_full_scale() {
            &[
                &[Activity::Keep],
                &[Activity::Add, Activity::AddTwo, Activity::All],
                &[Activity::Repeat],
                &[Activity::Hedge],
                &[Activity::Cancel, Activity::CancelAdd],
            ]
        } else {
            &Activity::ALL.each_ref().map(std::slice::from_ref)
        };
        for group in groups {
            let is_done = group.iter().any(|one| self.activities.contains_key(one));
            assert!(is_done, "none of {group:?}");
        }
    }

    /// Adds the record of another client.
    pub fn merge(&mut self, other: Self) {
        self.calls.extend(other.calls);
        self.losses.extend(other.losses);
        for (activity, count) in other.activities {
            *self.activities.entry(activity).or_default() += count;
        }
        self.regranted += other.regranted;
        self.different_leases += other.different_leases;
        self.granted_twice.extend(other.granted_twice);
        self.missing_locks += other.missing_locks;
        self.history.extend(other.history);
    }
}

#[derive(Debug)]
pub struct Load {
    clients: Vec<Client>,
    tasks: Vec<AbortOnDropHandle<LoadRecord>>,
    recorder: Arc<HistoryRecorder>,
    stop: CancellationToken,
}

impl Load {
    /// Starts the clients, spread over the endpoints, on the locks of the oracle. Prints the seed.
    #[must_use]
    pub fn start(options: LoadOptions, endpoints: &[SocketAddr], oracle: &Arc<Oracle>) -> Self {
        let stop = CancellationToken::new();
        let seed = options.seed.unwrap_or_else(rand::random);
        print_figures(&format!("load: seed={seed} {:?}", options.mix));
        let recorder = Arc::<HistoryRecorder>::default();
        let client = |index| {
            Client::new(&format!("client-{index}"), endpoints, index).with_recorder(&recorder)
        };
        let clients: Vec<_> = (0..options.clients).map(client).collect();
        let tasks = (seed..=u64::MAX)
            .chain(0..)
            .zip(&clients)
            .map(|(seed, client)| {
                let caller = Caller::new(client.clone(), Arc::clone(oracle), options, seed);
                AbortOnDropHandle::new(tokio::spawn(caller.run(stop.clone())))
            });
        Self {
            tasks: tasks.collect(),
            clients,
            recorder,
            stop,
        }
    }

    /// Waits until every client has finished its call and returns the record. A client that does
    /// not finish is a stranded waiter.
    pub async fn stop(self) -> LoadRecord {
        self.stop.cancel();
        let all = tokio::time::timeout(STOP_LIMIT, join_all(self.tasks)).await;
        let mut record = LoadRecord::default();
        for of_client in all.expect("no waiter is stranded") {
            record.merge(of_client.expect("a client does not panic"));
        }
        record.history = self.recorder.take();
        record
    }
}

impl LoadClients for Load {
    fn transport_errors(&self) -> usize {
        let errors = |client: &Client| client.counters.transport_errors.load(Ordering::Relaxed);
        self.clients.iter().map(errors).sum()
    }
}

/// Runs the same work without locks for `time`.
pub async fn run_without_locks(
    clients: usize,
    oracle: &Arc<Oracle>,
    kind_of: KindOfLock,
    time: Duration,
) {
    let until = boottime() + time;
    let clients = (0..clients).map(|_| async {
        while boottime() < until {
            let lock = rand::thread_rng().gen_range(0..oracle.lock_count());
            let entered = boottime();
            tokio::time::sleep(WORK_TIME).await;
            oracle.record(LockUse {
                lock,
                share: kind_of(lock).random_share(&mut rand::thread_rng()),
                token: 0,
                started_at: entered,
                ended_at: boottime(),
            });
        }
    });
    join_all(clients).await;
}

/// Returns the name of the lock with this index.
#[must_use]
pub fn lock_name(lock: usize) -> String {
    format!("load/{lock}")
}
