//! The brokers of a simulated run, the network between them and the clients, and the history.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_server::{
    broker::{Broker, lease_stream::StreamAge},
    lock::{BrokerId, LeaseId, LockError, LockFailure, LockKey, LockName, Namespace},
    quotas::{QuotaLimits, Quotas},
    random::RandomSource,
    store::redis::span_limit::StoredSpanLimit,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep};

use super::{
    plan::Plan,
    store::{BrokerLink, SimulatedStore, locked},
};
use crate::history::{Event, EventKind, Fault};

/// Name under which faults are recorded.
const FAULTS: &str = "faults";
/// Time after which a client notices that no broker listens.
const REFUSED_AFTER: Duration = Duration::from_millis(5);

/// Everything that the clients of a run share.
pub struct World {
    pub store: Arc<SimulatedStore>,
    seed: u64,
    started: Instant,
    history: Mutex<Vec<Event>>,
    random: Mutex<StdRng>,
    /// Running broker of each address.
    brokers: Mutex<Vec<Option<RunningBroker>>>,
    started_brokers: AtomicU64,
    last_number: AtomicU64,
    /// Leases that clients were granted, with one lock of each.
    granted: Mutex<Vec<(LockKey, LeaseId)>>,
}

/// One broker process.
#[derive(Clone)]
pub struct RunningBroker {
    /// Name, which no other process has.
    pub name: String,
    pub broker: Broker,
    pub link: Arc<BrokerLink>,
}

/// Failure of a unary call.
#[derive(Debug, Clone)]
pub enum CallFailure {
    /// The connection broke or could not be made, or the deadline has passed.
    Unreachable,
    Failed(LockError),
}

impl World {
    /// Starts brokers on an empty store.
    #[must_use]
    pub fn new(plan: &Plan) -> Arc<Self> {
        let (seed, brokers) = (plan.seed, plan.brokers);
        let world = Self {
            store: SimulatedStore::new(seed, plan.store_second_us),
            seed,
            started: Instant::now(),
            history: Mutex::default(),
            random: Mutex::new(StdRng::seed_from_u64(seed ^ 0x9e7)),
            brokers: Mutex::new(vec![None; brokers]),
            started_brokers: AtomicU64::new(0),
            last_number: AtomicU64::new(0),
            granted: Mutex::default(),
        };
        if let Some(limit_ms) = plan.span_limit_ms {
            world.store.limit_spans(StoredSpanLimit::constant(limit_ms));
        }
        for address in 0..brokers {
            world.start_broker(address);
        }
        Arc::new(world)
    }

    /// Returns the time since the start in microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).expect("a short run")
    }

    /// Returns the instant of a time since the start.
    #[must_use]
    pub fn instant(&self, at_us: u64) -> Instant {
        self.started + Duration::from_micros(at_us)
    }

    pub fn record(&self, client: &str, kind: EventKind) {
        let (at_us, client) = (self.now_us(), client.to_owned());
        locked(&self.history).push(Event {
            at_us,
            client,
            kind,
        });
    }

    pub fn begin(&self, fault: &Fault) {
        let fault = fault.clone();
        self.record(FAULTS, EventKind::FaultBegan { fault });
    }

    pub fn end(&self, fault: &Fault) {
        let fault = fault.clone();
        self.record(FAULTS, EventKind::FaultEnded { fault });
    }

    #[must_use]
    pub fn take_history(&self) -> Vec<Event> {
        std::mem::take(&mut locked(&self.history))
    }

    /// Returns a number that was not returned before.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the time that a message needs from a client to a broker or back.
    #[must_use]
    pub fn network_delay(&self) -> Duration {
        let mut random = locked(&self.random);
        let max_us = if random.gen_ratio(1, 20) {
            100_000
        } else {
            1_500
        };
        Duration::from_micros(random.gen_range(0..max_us))
    }

    /// Returns the broker at an address, unless it is down.
    #[must_use]
    pub fn broker(&self, address: usize) -> Option<RunningBroker> {
        let brokers = locked(&self.brokers);
        brokers[address % brokers.len()].clone()
    }

    pub fn start_broker(&self, address: usize) {
        let number = self.started_brokers.fetch_add(1, Ordering::Relaxed);
        let digits = b"abcdefghijklmnopqrstuvwxyz234567";
        let digit = |place: u32| char::from(digits[(number / 32_u64.pow(place) % 32) as usize]);
        let id = format!(
            "broker{}{}{}{}aaaaaa",
            digit(3),
            digit(2),
            digit(1),
            digit(0)
        );
        let id = BrokerId::parse(&id).expect("sixteen digits");
        let link = Arc::new(BrokerLink::new());
        let store = Arc::new(self.store.connect(id, &link));
        let day = Duration::from_secs(86_400);
        let stream_age = StreamAge {
            max_age: day,
            grace: day,
        };
        let quotas = Quotas::new(|| QuotaLimits {
            locks_per_caller: 100_000,
            locks_per_namespace: 100_000,
            locks: 100_000,
            acquires_per_second: 100_000,
            acquires_in_flight: 100_000,
        });
        let random = RandomSource::seeded(self.seed ^ (number << 32));
        let broker = Broker::new(store, quotas, stream_age).with_random_source(random);
        locked(&self.brokers)[address] = Some(RunningBroker {
            name: format!("broker-{address}.{number}"),
            broker,
            link,
        });
    }

    /// Removes the broker at an address, so that no further client reaches it.
    pub fn stop_broker(&self, address: usize) -> Option<RunningBroker> {
        locked(&self.brokers)[address].take()
    }

    pub fn remember_grant(&self, lock: LockKey, lease: LeaseId) {
        locked(&self.granted).push((lock, lease));
    }

    /// Returns one of the newest granted leases.
    #[must_use]
    pub fn granted_lease(&self, index: usize) -> Option<(LockKey, LeaseId)> {
        let granted = locked(&self.granted);
        granted.iter().rev().nth(index % 8).cloned()
    }

    /// Sends a unary call. The connection breaks when the broker is killed.
    pub async fn unary<T, F>(
        self: Arc<Self>,
        address: usize,
        call: impl FnOnce(Broker) -> F,
    ) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, LockFailure>>,
    {
        let Some(running) = self.broker(address) else {
            sleep(REFUSED_AFTER).await;
            return Err(CallFailure::Unreachable);
        };
        let exchange = async {
            sleep(self.network_delay()).await;
            running.link.ready().await;
            let result = call(running.broker.clone()).await;
            running.link.ready().await;
            sleep(self.network_delay()).await;
            result
        };
        tokio::select! {
            biased;
            () = running.link.killed.cancelled() => Err(CallFailure::Unreachable),
            result = exchange => result.map_err(|failure| CallFailure::Failed(failure.error)),
        }
    }
}

impl CallFailure {
    /// Returns true if the call is worth repeating.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable => true,
            Self::Failed(error) => error.is_indeterminate(),
        }
    }
}

/// Returns the key of a lock.
#[must_use]
pub fn lock_key(index: usize) -> LockKey {
    let namespace = Namespace::parse("").expect("the default");
    let name = LockName::parse(&format!("lock-{index}")).expect("a name");
    LockKey::new(namespace, name)
}
