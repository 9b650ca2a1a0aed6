//! The fixture of the behaviours: one store, four brokers on it, and a clock that only the
//! behaviour advances.

mod calls;
mod cluster;
mod events;
mod memory;
mod redis;
mod redlock;
mod skewed_store;

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
        AcquireCommand, ActiveClosure, BrokerId, CloseCommand, Contention, ExpectedAttachment,
        FencingToken, Grant, LeaseBinding, LeaseRef, LockKey, LockName, LockState, Namespace,
        ReleaseScope,
    },
    store::{
        Acquired, Cancelled, Event, LeaseReply, LimitSet, Released, Renewal, Store, StoreError,
        Touched, memory::context::SpanLimit,
    },
};
use tokio::sync::{Mutex, mpsc};

pub use self::{
    calls::{
        add_to_lease, lease_of, new_attempt, new_call, operator, with_hold_and_delay, with_mode,
        with_ttl,
    },
    redis::scripts_with_skew,
};

use crate::clock::boottime;

/// TTL of a call that sets none.
pub const TTL_MS: u64 = 10_000;
pub const TTL_MAX_MS: u64 = 60_000;
/// A time longer than any behaviour needs.
pub const LONG_MS: u64 = 3_600_000;
/// Time that a real store may need for a few commands on a busy machine.
pub const SLACK_MS: u64 = 1_000;

const BROKERS: usize = 4;
const EVENT_LIMIT: Duration = Duration::from_secs(10);
/// Largest rounding difference between stores and tests, which count in milliseconds.
const ROUNDING_ERROR_MS: u64 = 10;
/// Time at which the first behaviour of this process began.
static FIRST_STARTED_AT: OnceLock<Duration> = OnceLock::new();

/// State of the store before the brokers connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialState {
    /// Empty, and trusted to have been empty before.
    Trusted,
    /// Empty, and it may have lost data: no grants for [`StoreFixture::quarantine_ms`].
    Recovering,
}

/// A store and its brokers.
pub struct StoreFixture {
    /// The lock that calls name by default.
    pub lock: LockKey,
    brokers: Vec<FixtureBroker>,
    backend: Box<dyn Backend>,
    calls: AtomicU32,
}

/// The operations that differ between the stores.
#[async_trait]
trait Backend: Send + Sync {
    async fn connect(&self, broker: BrokerId) -> Arc<dyn Store>;
    async fn advance_ms(&self, ms: u64);
    async fn step_back_ms(&self, ms: u64);
    /// Removes the time to live of the lock's record, if the store has one.
    async fn remove_ttl(&self, lock: &LockKey);
    fn quarantine_ms(&self) -> u64;
    /// Sets the limit of the spans of leases.
    async fn limit_spans(&self, _limit: SpanLimit) {
        panic!("the eras of this store do not limit spans");
    }
    /// Sets the token that each further grant of the lock exceeds.
    async fn set_token_floor(&self, _lock: &LockKey, _floor: FencingToken) {
        panic!("the eras of this store have no floor of tokens");
    }
    /// Checks the invariants of the store after each behaviour.
    async fn check_invariants(&self);
}

struct FixtureBroker {
    id: BrokerId,
    store: Arc<dyn Store>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
}

/// Returns the store's events in order. Registers the store's listener.
pub fn events(store: &dyn Store) -> mpsc::UnboundedReceiver<Event> {
    let (sender, events) = mpsc::unbounded_channel();
    store.listen(Arc::new(move |event| drop(sender.send(event))));
    events
}

impl StoreFixture {
    /// Runs a behaviour on the memory store. Needs paused tokio time.
    pub async fn memory(start: InitialState, behaviour: impl AsyncFn(&StoreFixture)) {
        Self::run(Box::new(memory::MemoryBackend::new(start)), behaviour).await;
    }

    /// Runs a behaviour on the Redis store on one server.
    pub async fn redis(start: InitialState, behaviour: impl AsyncFn(&StoreFixture)) {
        Self::run(
            Box::new(redis::RedisBackend::server(start).await),
            behaviour,
        )
        .await;
    }

    /// Runs a behaviour on the Redis store behind Sentinel.
    pub async fn sentinel(start: InitialState, behaviour: impl AsyncFn(&StoreFixture)) {
        Self::run(
            Box::new(redis::RedisBackend::sentinel(start).await),
            behaviour,
        )
        .await;
    }

    /// Runs a behaviour on the RedLock store.
    pub async fn redlock(start: InitialState, behaviour: impl AsyncFn(&StoreFixture)) {
        Self::run(
            Box::new(redlock::RedlockBackend::new(start).await),
            behaviour,
        )
        .await;
    }

    /// Runs a behaviour on the Redis store on a cluster.
    pub async fn cluster(start: InitialState, behaviour: impl AsyncFn(&StoreFixture)) {
        Self::run(
            Box::new(cluster::ClusterBackend::new(start).await),
            behaviour,
        )
        .await;
    }

    async fn run(backend: Box<dyn Backend>, behaviour: impl AsyncFn(&StoreFixture)) {
        FIRST_STARTED_AT.get_or_init(boottime);
        let mut brokers = Vec::new();
        for _ in 0..BROKERS {
            let id = BrokerId::random();
            let store = backend.connect(id).await;
            let events = Mutex::new(events(&*store));
            brokers.push(FixtureBroker { id, store, events });
        }
        let store_fixture = Self {
            lock: lock_key("default", "the lock"),
            brokers,
            backend,
            calls: AtomicU32::new(0),
        };
        behaviour(&store_fixture).await;
        store_fixture.backend.check_invariants().await;
    }

    pub async fn advance_ms(&self, ms: u64) {
        self.backend.advance_ms(ms).await;
    }

    /// Sets the store's clock back, if the store's clock can be set.
    pub async fn step_back_ms(&self, ms: u64) {
        self.backend.step_back_ms(ms).await;
    }

    /// Removes the time to live of the lock's record, if the store has one.
    pub async fn remove_ttl(&self) {
        self.backend.remove_ttl(&self.lock).await;
    }

    /// Returns how long a store of [`InitialState::Recovering`] grants nothing.
    pub fn quarantine_ms(&self) -> u64 {
        self.backend.quarantine_ms()
    }

    /// Limits the spans of leases to `before_ms`, and to `after_ms` from a time `in_ms` from now on.
    pub async fn limit_spans(&self, before_ms: u64, after_ms: u64, in_ms: u64) {
        let limit = SpanLimit::Changing {
            before_ms,
            after_ms,
            at_ms: self.store_time_ms().await + in_ms,
        };
        self.backend.limit_spans(limit).await;
    }

    /// Sets the floor of tokens to the time of the store in `in_ms`, and returns it.
    pub async fn set_token_floor(&self, in_ms: u64) -> FencingToken {
        let floor_us = (self.store_time_ms().await + in_ms) * 1_000;
        let floor = FencingToken::new(floor_us).expect("below the largest token");
        self.backend.set_token_floor(&self.lock, floor).await;
        floor
    }

    /// Returns the connection of broker `n`.
    pub fn store(&self, n: usize) -> &dyn Store {
        &*self.brokers[n].store
    }

    pub fn broker(&self, n: usize) -> BrokerId {
        self.brokers[n].id
    }

    /// Returns a new call that does not wait.
    pub fn call(&self) -> AcquireCommand {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut call = new_call(&self.lock);
        call.owner.id = format!("caller-{number}");
        call
    }

    /// Returns a new call that waits in the queue.
    pub fn waiting_call(&self) -> AcquireCommand {
        self.waiting_call_for(LONG_MS)
    }

    /// Returns a new call that waits in the queue for `wait_ms`.
    pub fn waiting_call_for(&self, wait_ms: u64) -> AcquireCommand {
        AcquireCommand {
            wait_ms,
            ..self.call()
        }
    }

    pub async fn acquire(&self, n: usize, call: &AcquireCommand) -> Acquired {
        self.store(n).acquire(call).await.expect("acquire")
    }

    /// Acquires by broker `n`, which must succeed at once.
    pub async fn expect_granted(&self, n: usize, call: &AcquireCommand) -> LeaseRef {
        let reply = self.acquire(n, call).await;
        let Acquired::Granted(grant) = reply else {
            panic!("{reply:?} instead of a grant");
        };
        lease_of(call, grant.fencing_token)
    }

    /// Acquires by broker `n`, which must join the queue. Returns `next_event_ms`.
    pub async fn expect_queued(&self, n: usize, call: &AcquireCommand) -> Option<u64> {
        let reply = self.acquire(n, call).await;
        let Acquired::Queued { next_event_ms, .. } = reply else {
            panic!("{reply:?} instead of a queue position");
        };
        next_event_ms
    }

    /// Acquires by broker `n` for the longest ttl.
    pub async fn acquire_long(&self, n: usize) -> LeaseRef {
        self.expect_granted(n, &with_ttl(self.call(), TTL_MAX_MS))
            .await
    }

    /// Acquires by broker `n`, which must be rejected because of other holders.
    pub async fn expect_held(&self, n: usize, call: &AcquireCommand) -> Contention {
        let reply = self.acquire(n, call).await;
        let Acquired::Held(contention) = reply else {
            panic!("{reply:?} instead of a refusal");
        };
        contention
    }

    /// Acquires by broker `n`, which must be rejected for its limit. Returns the limit in use.
    pub async fn expect_limit_mismatch(&self, n: usize, call: &AcquireCommand) -> Option<u32> {
        let reply = self.acquire(n, call).await;
        let Acquired::LimitMismatch { limit } = reply else {
            panic!("{reply:?} instead of a mismatch");
        };
        limit
    }

    /// Renews with the TTL that the lease has.
    pub async fn renew(&self, n: usize, lease: &LeaseRef) -> LeaseReply<Grant> {
        let renewed = self.store(n).renew(lease, Renewal::default());
        renewed.await.expect("renew")
    }

    /// Renews, which must succeed.
    pub async fn expect_renewed(&self, n: usize, lease: &LeaseRef) {
        let reply = self.renew(n, lease).await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    pub async fn release(&self, n: usize, lease: &LeaseRef) -> LeaseReply<Released> {
        let released = self
            .store(n)
            .release(lease, ReleaseScope::All, ExpectedAttachment::Any);
        released.await.expect("release")
    }

    /// Releases, which must succeed.
    pub async fn expect_released(&self, n: usize, lease: &LeaseRef) {
        let reply = self.release(n, lease).await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    /// Releases the lock, and leaves the lease its other locks.
    pub async fn release_lock(&self, n: usize, lease: &LeaseRef) -> LeaseReply<Released> {
        let released = self
            .store(n)
            .release(lease, ReleaseScope::Lock, ExpectedAttachment::Any);
        released.await.expect("release")
    }

    /// Releases the entry that `entry` made.
    pub async fn release_entry(
        &self,
        n: usize,
        lease: &LeaseRef,
        entry: &AcquireCommand,
    ) -> LeaseReply<Released> {
        let entry = ReleaseScope::Entry(entry.request);
        let left = self.store(n).release(lease, entry, ExpectedAttachment::Any);
        left.await.expect("release of an entry")
    }

    /// Enters a lock that the lease holds. Returns the number of its entries.
    pub async fn expect_reentered(&self, n: usize, entry: &AcquireCommand) -> u32 {
        let reply = self.acquire(n, entry).await;
        let Acquired::Granted(grant) = reply else {
            panic!("{reply:?} instead of an entry");
        };
        if let LeaseBinding::Reentry(token) = entry.binding {
            assert_eq!(grant.fencing_token, token);
        }
        grant.hold_count
    }

    /// Returns a new call that enters a lock that the lease holds.
    pub fn reentry_call(&self, lease: &LeaseRef) -> AcquireCommand {
        AcquireCommand {
            lease_id: lease.lease_id,
            binding: LeaseBinding::Reentry(lease.fencing_token),
            ..self.call()
        }
    }

    /// Cancels this attempt of the call.
    pub async fn cancel(&self, n: usize, call: &AcquireCommand) -> Cancelled {
        let reply = self.store(n).cancel(&call.lock, call.request, call.attempt);
        reply.await.expect("cancel")
    }

    pub async fn touch(&self, n: usize) -> Touched {
        self.store(n).touch(&self.lock).await.expect("touch")
    }

    /// Sets the limit of the lock. Returns the previous limit.
    pub async fn set_limit(&self, n: usize, limit: u32) -> Option<u32> {
        let set = self.store(n).set_limit(&self.lock, Some(limit)).await;
        let Ok(LimitSet::Set { previous }) = set else {
            panic!("{set:?} instead of a limit");
        };
        previous
    }

    /// Removes the limit that was set, and returns it.
    pub async fn remove_limit(&self, n: usize) -> Option<u32> {
        let removed = self.store(n).set_limit(&self.lock, None).await;
        let Ok(LimitSet::Set { previous }) = removed else {
            panic!("{removed:?} instead of a removed limit");
        };
        previous
    }

    /// Closes the lock for `closed_ms` from now on. Returns the closure that is in effect then.
    pub async fn close(&self, n: usize, closed_ms: u64) -> Option<ActiveClosure> {
        let close = CloseCommand {
            lock: self.lock.clone(),
            until_ms: self.store_time_ms().await + closed_ms,
            operator: operator(),
        };
        self.store(n).close(&close).await.expect("close")
    }

    /// Opens the lock. Returns the closure that was in effect.
    pub async fn open(&self, n: usize) -> Option<ActiveClosure> {
        self.store(n).open(&self.lock).await.expect("open")
    }

    /// Returns the time of the store's clock, from a grant of another lock.
    async fn store_time_ms(&self) -> u64 {
        let call = new_call(&lock_key("default", "clock"));
        let Acquired::Granted(grant) = self.acquire(0, &call).await else {
            panic!("another lock is free");
        };
        let held = lease_of(&call, grant.fencing_token);
        self.expect_released(0, &held).await;
        grant.acquired_ms
    }

    /// Inspects the lock from broker 0.
    pub async fn get(&self) -> Option<LockState> {
        self.store(0).get(&self.lock).await.expect("get")
    }

    /// Inspects the lock, which must have a record.
    pub async fn expect_state(&self) -> LockState {
        self.get().await.expect("the lock is known")
    }

    /// Advances the clock in steps of 1.5 s, and lets the brokers `touching` touch the lock after
    /// each step.
    pub async fn advance_with_touches(&self, ms: u64, touching: &[usize]) {
        for _ in 0..ms / 1_500 {
            self.advance_ms(1_500).await;
            for &n in touching {
                self.touch(n).await;
            }
        }
    }
}

/// Returns the only element, if there is one. Panics if there are more.
pub fn at_most_one<T: std::fmt::Debug>(mut list: Vec<T>) -> Option<T> {
    assert!(list.len() <= 1, "more than one: {list:?}");
    list.pop()
}

/// Returns the key of a lock.
pub fn lock_key(namespace: &str, name: &str) -> LockKey {
    LockKey::new(
        Namespace::parse(namespace).expect("a legal namespace"),
        LockName::parse(name).expect("a legal name"),
    )
}

/// Asserts that a recovering store rejected a call, and returns the remaining time.
pub fn recovering_ms(refused: Result<Acquired, StoreError>) -> u64 {
    let Err(StoreError::Recovering { retry_after_ms, .. }) = refused else {
        panic!("{refused:?} instead of recovering");
    };
    retry_after_ms
}

/// Asserts that `left_ms` is `set_ms`, less at most the real time since the first behaviour began.
pub fn assert_remaining(left_ms: u64, set_ms: u64) {
    let took = FIRST_STARTED_AT
        .get()
        .map_or(Duration::ZERO, |started_at| boottime() - *started_at);
    let least_ms = set_ms.saturating_sub(took.as_millis() as u64 + ROUNDING_ERROR_MS);
    assert!(
        (least_ms..=set_ms).contains(&left_ms),
        "{left_ms} ms left of {set_ms} ms, {took:?} after the beginning"
    );
}

/// Returns the reply to a release that leaves the lease `hold_count` entries.
pub fn released_now(hold_count: u32) -> LeaseReply<Released> {
    Ok(Released {
        already_released: false,
        hold_count,
    })
}

/// Returns the reply to a release for which an earlier one has left the lease `hold_count` entries.
pub fn released_before(hold_count: u32) -> LeaseReply<Released> {
    Ok(Released {
        already_released: true,
        hold_count,
    })
}
