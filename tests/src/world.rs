//! Where a behaviour runs: one store, four brokers on it, and a clock that only the behaviour moves.

mod calls;
mod cluster;
mod events;
mod memory;
mod redis;
mod redlock;
mod skewed;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold_server::{
    lock::{
        Acquire, BrokerId, Contention, LeaseRef, LockKey, LockName, LockState, Namespace, Release,
        Under, Via,
    },
    store::{Acquired, Cancelled, Event, LimitSet, Released, Renewed, Store, StoreError, Touched},
};
use tokio::sync::{Mutex, mpsc};

pub use self::{
    calls::{added_to, again, lease, new_call, with_mode, with_terms, with_ttl},
    redis::skewed_by,
};

use crate::clock::boottime;

/// The ttl of a call that names none.
pub const TTL_MS: u64 = 10_000;
/// The longest ttl.
pub const TTL_MAX_MS: u64 = 60_000;
/// Longer than anything that a behaviour does.
pub const LONG_MS: u64 = 3_600_000;
/// What a real store may take for a few commands on a busy machine.
pub const SLACK_MS: u64 = 1_000;

const BROKERS: usize = 4;
const EVENT_LIMIT: Duration = Duration::from_secs(10);
/// What stores and tests may differ by, since they count in milliseconds.
const ROUNDED_MS: u64 = 10;
/// When the first behaviour of this process began.
static BEGUN: OnceLock<Duration> = OnceLock::new();

/// How the store was before the brokers came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Empty, and trusted to have been empty before.
    Trusted,
    /// Empty, and it may have lost data: no grants for [`World::quarantine_ms`].
    Recovering,
}

/// A store and its brokers.
pub struct World {
    /// The lock that calls name unless they say otherwise.
    pub lock: LockKey,
    brokers: Vec<Broker>,
    backend: Box<dyn Backend>,
    calls: AtomicU32,
}

/// What differs between the stores.
#[async_trait]
trait Backend: Send + Sync {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store>;
    async fn advance_ms(&self, ms: u64);
    async fn step_back_ms(&self, ms: u64);
    /// Takes away what makes the store forget the lock, if it can be taken away.
    async fn lose_ttl(&self, lock: &LockKey);
    fn quarantine_ms(&self) -> u64;
    /// Checks what must be true of the store after every behaviour.
    async fn check(&self);
}

struct Broker {
    id: BrokerId,
    store: Arc<dyn Store>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
}

/// What the store tells a broker, in order.
pub fn events(store: &dyn Store) -> mpsc::UnboundedReceiver<Event> {
    let (sender, events) = mpsc::unbounded_channel();
    store.listen(Arc::new(move |event| drop(sender.send(event))));
    events
}

impl World {
    /// Runs a behaviour on the memory store. Needs paused tokio time.
    pub async fn memory(start: Start, behaviour: impl AsyncFn(&World)) {
        Self::run(Box::new(memory::InMemory::new(start)), behaviour).await;
    }

    /// Runs a behaviour on the Redis store on one server.
    pub async fn redis(start: Start, behaviour: impl AsyncFn(&World)) {
        Self::run(Box::new(redis::OnRedis::server(start).await), behaviour).await;
    }

    /// Runs a behaviour on the Redis store behind Sentinel.
    pub async fn sentinel(start: Start, behaviour: impl AsyncFn(&World)) {
        Self::run(Box::new(redis::OnRedis::sentinel(start).await), behaviour).await;
    }

    /// Runs a behaviour on the RedLock store.
    pub async fn redlock(start: Start, behaviour: impl AsyncFn(&World)) {
        Self::run(Box::new(redlock::OnRedlock::new(start).await), behaviour).await;
    }

    /// Runs a behaviour on the Redis store on a cluster.
    pub async fn cluster(start: Start, behaviour: impl AsyncFn(&World)) {
        Self::run(Box::new(cluster::OnCluster::new(start).await), behaviour).await;
    }

    async fn run(backend: Box<dyn Backend>, behaviour: impl AsyncFn(&World)) {
        BEGUN.get_or_init(boottime);
        let mut brokers = Vec::new();
        for _ in 0..BROKERS {
            let id = BrokerId::random();
            let store = backend.connect(id).await;
            let events = Mutex::new(events(&*store));
            brokers.push(Broker { id, store, events });
        }
        let world = Self {
            lock: lock_named("default", "the lock"),
            brokers,
            backend,
            calls: AtomicU32::new(0),
        };
        behaviour(&world).await;
        world.backend.check().await;
    }

    /// Moves the store's clock.
    pub async fn advance_ms(&self, ms: u64) {
        self.backend.advance_ms(ms).await;
    }

    /// Sets the store's clock back, if it is one that can be set.
    pub async fn step_back_ms(&self, ms: u64) {
        self.backend.step_back_ms(ms).await;
    }

    /// Makes the lock one that the store would keep for ever, if the store knows such.
    pub async fn lose_ttl(&self) {
        self.backend.lose_ttl(&self.lock).await;
    }

    /// How long a store of [`Start::Recovering`] grants nothing.
    pub fn quarantine_ms(&self) -> u64 {
        self.backend.quarantine_ms()
    }

    /// The connection of broker `n`.
    pub fn store(&self, n: usize) -> &dyn Store {
        &*self.brokers[n].store
    }

    /// The id of broker `n`.
    pub fn broker(&self, n: usize) -> BrokerId {
        self.brokers[n].id
    }

    /// A new call that does not wait.
    pub fn call(&self) -> Acquire {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut call = new_call(&self.lock);
        call.owner.id = format!("caller-{number}");
        call
    }

    /// A new call that waits in line.
    pub fn waiting(&self) -> Acquire {
        self.waiting_for(LONG_MS)
    }

    /// A new call that waits in line for so long.
    pub fn waiting_for(&self, wait_ms: u64) -> Acquire {
        Acquire {
            wait_ms,
            ..self.call()
        }
    }

    /// Acquires by broker `n`.
    pub async fn acquire(&self, n: usize, call: &Acquire) -> Acquired {
        self.store(n).acquire(call).await.expect("acquire")
    }

    /// Acquires by broker `n`, which must succeed at once.
    pub async fn granted(&self, n: usize, call: &Acquire) -> LeaseRef {
        let reply = self.acquire(n, call).await;
        let Acquired::Granted(grant) = reply else {
            panic!("{reply:?} instead of a grant");
        };
        lease(call, grant.fencing_token)
    }

    /// Acquires by broker `n`, which must join the line; returns `next_event_ms`.
    pub async fn queued(&self, n: usize, call: &Acquire) -> u64 {
        let reply = self.acquire(n, call).await;
        let Acquired::Queued { next_event_ms, .. } = reply else {
            panic!("{reply:?} instead of a place in line");
        };
        next_event_ms
    }

    /// A holder at broker `n` who stays for the longest ttl.
    pub async fn held_by(&self, n: usize) -> LeaseRef {
        self.granted(n, &with_ttl(self.call(), TTL_MAX_MS)).await
    }

    /// Acquires by broker `n`, which must be refused because others hold the lock.
    pub async fn refused(&self, n: usize, call: &Acquire) -> Contention {
        let reply = self.acquire(n, call).await;
        let Acquired::Held(contention) = reply else {
            panic!("{reply:?} instead of a refusal");
        };
        contention
    }

    /// Acquires by broker `n`, which must be refused for its limit; returns the one in use.
    pub async fn mismatch(&self, n: usize, call: &Acquire) -> u32 {
        let reply = self.acquire(n, call).await;
        let Acquired::LimitMismatch { limit } = reply else {
            panic!("{reply:?} instead of a mismatch");
        };
        limit
    }

    /// Renews with the present ttl.
    pub async fn renew(&self, n: usize, lease: &LeaseRef) -> Renewed {
        let renewed = self.store(n).renew(lease, None, Via::Anywhere);
        renewed.await.expect("renew")
    }

    /// Renews, which must succeed.
    pub async fn renewed(&self, n: usize, lease: &LeaseRef) {
        let reply = self.renew(n, lease).await;
        assert!(matches!(reply, Renewed::Extended(_)), "{reply:?}");
    }

    /// Releases.
    pub async fn release(&self, n: usize, lease: &LeaseRef) -> Released {
        let released = self.store(n).release(lease, Release::All, Via::Anywhere);
        released.await.expect("release")
    }

    /// Releases the lock from a lease that may have others.
    pub async fn release_lock(&self, n: usize, lease: &LeaseRef) -> Released {
        let released = self.store(n).release(lease, Release::Lock, Via::Anywhere);
        released.await.expect("release")
    }

    /// Releases the entry of this call.
    pub async fn leave(&self, n: usize, lease: &LeaseRef, entry: &Acquire) -> Released {
        let entry = Release::Entry(entry.request);
        let left = self.store(n).release(lease, entry, Via::Anywhere);
        left.await.expect("release of an entry")
    }

    /// Enters a lock that the lease holds; returns how often it has.
    pub async fn entered(&self, n: usize, entry: &Acquire) -> u32 {
        let reply = self.acquire(n, entry).await;
        let Acquired::Granted(grant) = reply else {
            panic!("{reply:?} instead of an entry");
        };
        if let Under::Grant(token) = entry.under {
            assert_eq!(grant.fencing_token, token);
        }
        grant.hold_count
    }

    /// A new call that enters a lock that the lease holds.
    pub fn entry(&self, lease: &LeaseRef) -> Acquire {
        Acquire {
            lease_id: lease.lease_id,
            under: Under::Grant(lease.fencing_token),
            ..self.call()
        }
    }

    /// Cancels this attempt of the call.
    pub async fn cancel(&self, n: usize, call: &Acquire) -> Cancelled {
        let reply = self.store(n).cancel(&call.lock, call.request, call.attempt);
        reply.await.expect("cancel")
    }

    /// Touches the lock.
    pub async fn touch(&self, n: usize) -> Touched {
        self.store(n).touch(&self.lock).await.expect("touch")
    }

    /// Sets the limit of the lock; returns the one before.
    pub async fn set_limit(&self, n: usize, limit: u32) -> u32 {
        let set = self.store(n).set_limit(&self.lock, Some(limit)).await;
        let Ok(LimitSet::Set { previous }) = set else {
            panic!("{set:?} instead of a limit");
        };
        previous
    }

    /// Removes the limit that was set; returns it.
    pub async fn remove_limit(&self, n: usize) -> u32 {
        let removed = self.store(n).set_limit(&self.lock, None).await;
        let Ok(LimitSet::Set { previous }) = removed else {
            panic!("{removed:?} instead of a removed limit");
        };
        previous
    }

    /// Looks at the lock.
    pub async fn get(&self) -> Option<LockState> {
        self.store(0).get(&self.lock).await.expect("get")
    }

    /// Looks at a lock that is known.
    pub async fn state(&self) -> LockState {
        self.get().await.expect("the lock is known")
    }

    /// Lets time go by in steps in each of which these brokers touch the lock.
    pub async fn pass_ms(&self, ms: u64, touching: &[usize]) {
        for _ in 0..ms / 1_500 {
            self.advance_ms(1_500).await;
            for &n in touching {
                self.touch(n).await;
            }
        }
    }
}

/// The only one, if there is any.
pub fn only<T: std::fmt::Debug>(mut list: Vec<T>) -> Option<T> {
    assert!(list.len() <= 1, "more than one: {list:?}");
    list.pop()
}

/// A lock of that name.
pub fn lock_named(namespace: &str, name: &str) -> LockKey {
    LockKey::new(
        Namespace::parse(namespace).expect("a legal namespace"),
        LockName::parse(name).expect("a legal name"),
    )
}

/// That a store in recovery refused a call, and for how long.
pub fn recovering_ms(refused: Result<Acquired, StoreError>) -> u64 {
    let Err(StoreError::Recovering { retry_after_ms }) = refused else {
        panic!("{refused:?} instead of recovering");
    };
    retry_after_ms
}

/// Asserts that a time left is what it was set to, less at most the real time since the behaviour began.
pub fn assert_left(left_ms: u64, set_ms: u64) {
    let took = BEGUN
        .get()
        .map_or(Duration::ZERO, |begun| boottime() - *begun);
    let least_ms = set_ms.saturating_sub(took.as_millis() as u64 + ROUNDED_MS);
    assert!(
        (least_ms..=set_ms).contains(&left_ms),
        "{left_ms} ms left of {set_ms} ms, {took:?} after the beginning"
    );
}
