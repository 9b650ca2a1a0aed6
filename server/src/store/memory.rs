//! In-memory store for `dev` and single-process deployments. Its records are lost with the process.

mod closure;
pub mod context;
mod ended_leases;
mod entry;
mod expire;
mod grant;
mod holders;
mod inspect;
mod limit;
mod list;
mod queue;
pub mod record;
mod reentry;
mod revoke;
mod streams;
mod tombstones;
mod vote;
mod watch;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use self::{
    context::{Bounds, Context, Grants, SpanLimit},
    record::Record,
};
use super::{
    Acquired, Cancelled, Change, Checked, Cursor, Event, LeaseReply, LimitSet, Listed, Listener,
    Outcome, RecoveryState, Rejected, Released, Renewal, Revoked, Store, StoreError, Touched,
    WATCHED_MS,
};
use crate::lock::{
    AcquireCommand, ActiveClosure, ActiveRecovery, Attachment, AttemptId, BrokerId, CloseCommand,
    DeploymentKey, ExpectedAttachment, FencingToken, Filter, Grant, LeaseRef, LockKey, LockState,
    Recovery, RecoveryCause, ReleaseScope, RequestHash, RevokeCommand,
};
use crate::time::{millis, unix_time};

/// Number of commands between two sweeps of expired records, so that the records of idle locks do
/// not accumulate.
const SWEEP_INTERVAL: u64 = 65_536;

/// Clock of a store: returns the time in microseconds since 1970.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The records, shared by all brokers of this process.
pub struct Memory {
    clock: Clock,
    recovery: Mutex<Recovery>,
    span_limit: Mutex<SpanLimit>,
    token_floor: Mutex<Option<FencingToken>>,
    key: DeploymentKey,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Records in the order of their keys, which is the order of listings.
    records: BTreeMap<LockKey, StoredRecord>,
    listeners: BTreeMap<BrokerId, Listener>,
    /// End of each broker's watch, in milliseconds since 1970.
    watched: BTreeMap<BrokerId, u64>,
    commands: u64,
}

/// A record with the time, in milliseconds since 1970, after which it is deleted; `None` if it is
/// kept.
#[derive(Debug, Clone, Default)]
struct StoredRecord {
    record: Record,
    deleted_after_ms: Option<u64>,
}

/// A copy of all records at one time.
#[derive(Debug, Clone, Default)]
pub struct SavedRecords(BTreeMap<LockKey, StoredRecord>);

/// One broker's connection to a [`Memory`].
pub struct MemoryStore {
    memory: Arc<Memory>,
    broker: BrokerId,
}

impl Memory {
    /// Creates an empty store that grants nothing for `quarantine`, because holders may still rely
    /// on leases of the previous process.
    pub fn new(quarantine: Duration) -> Arc<Self> {
        let since_epoch = unix_time(SystemTime::now());
        let started_us = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        let started = Instant::now();
        let clock = move || {
            let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            started_us.saturating_add(elapsed_us)
        };
        let memory = Self::with_clock(clock, DeploymentKey::random());
        memory.grant_nothing_for(quarantine, RecoveryCause::Emptied);
        memory
    }

    /// Creates an empty store with another clock, which returns microseconds since 1970. For runs
    /// that can be repeated.
    pub fn with_clock(
        clock: impl Fn() -> u64 + Send + Sync + 'static,
        key: DeploymentKey,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock: Box::new(clock),
            span_limit: Mutex::new(SpanLimit::None),
            token_floor: Mutex::default(),
            recovery: Mutex::new(Recovery {
                cause: None,
                since_ms: None,
                until_ms: 0,
            }),
            key,
            state: Mutex::default(),
        })
    }

    /// Returns a copy of all records.
    pub fn save(&self) -> SavedRecords {
        SavedRecords(self.state.lock().records.clone())
    }

    /// Replaces all records, as a server does that restarts with older data, and grants nothing for
    /// `quarantine`.
    pub fn restore(&self, saved: SavedRecords, quarantine: Duration) {
        self.state.lock().records = saved.0;
        self.grant_nothing_for(quarantine, RecoveryCause::Restarted);
    }

    /// Sets the limit of the spans of leases.
    pub fn limit_spans(&self, limit: SpanLimit) {
        *self.span_limit.lock() = limit;
    }

    /// Sets the token that each further grant exceeds.
    pub fn set_token_floor(&self, floor: FencingToken) {
        *self.token_floor.lock() = Some(floor);
    }

    fn grant_nothing_for(&self, quarantine: Duration, cause: RecoveryCause) {
        let now_ms = self.now_us() / 1_000;
        *self.recovery.lock() = Recovery {
            cause: Some(cause),
            since_ms: Some(now_ms),
            until_ms: now_ms.saturating_add(millis(quarantine)),
        };
    }

    pub fn connect(self: &Arc<Self>, broker: BrokerId) -> MemoryStore {
        MemoryStore {
            memory: Arc::clone(self),
            broker,
        }
    }

    fn recovery(&self) -> Option<ActiveRecovery> {
        let recovery = *self.recovery.lock();
        recovery.active_at(self.now_us() / 1_000)
    }

    /// Returns the time of the store's clock, in microseconds since 1970.
    fn now_us(&self) -> u64 {
        (self.clock)()
    }
}

impl State {
    fn sweep(&mut self, now_us: u64) {
        self.commands += 1;
        if self.commands.is_multiple_of(SWEEP_INTERVAL) {
            self.records
                .retain(|_, stored| stored.is_kept(now_us / 1_000));
        }
    }

    fn notify_watchers(&mut self, lock: &LockKey, changes: &[Change], now_ms: u64) {
        self.watched.retain(|_, until_ms| *until_ms > now_ms);
        for broker in self.watched.keys() {
            if let Some(listener) = self.listeners.get(broker) {
                listener(Event::Changed(lock.clone(), changes.to_vec()));
            }
        }
    }

    fn publish<T>(&self, lock: &LockKey, outcome: &Outcome<T>, sent: Instant) {
        if let Some(moved) = outcome.moved
            && let Some(listener) = self.listeners.get(&moved.from.stream.broker)
        {
            listener(Event::Moved(lock.clone(), moved));
        }
        for hand_off in outcome.hand_offs.iter().cloned() {
            if let Some(listener) = self.listeners.get(&hand_off.broker) {
                listener(Event::HandOff(lock.clone(), hand_off, Some(sent)));
            }
        }
    }
}

impl StoredRecord {
    fn is_kept(&self, now_ms: u64) -> bool {
        self.deleted_after_ms
            .is_none_or(|deleted_after_ms| deleted_after_ms >= now_ms)
    }

    /// Returns the state of the lock, or `None` if the record has expired or is blank.
    fn record_at(&self, now_us: u64) -> Option<LockState> {
        let is_stored = self.is_kept(now_us / 1_000) && !self.record.is_empty();
        is_stored.then(|| self.record.get(now_us))
    }
}

impl MemoryStore {
    fn context(&self) -> Context {
        Context {
            now_us: self.memory.now_us(),
            broker: self.broker,
            not_after_ms: u64::MAX,
            grants: Grants::NotBefore(self.memory.recovery.lock().until_ms),
            span_limit: *self.memory.span_limit.lock(),
            token_floor: *self.memory.token_floor.lock(),
            bounds: Bounds::default(),
        }
    }

    /// Runs one command on the record of the lock, and notifies the brokers of the waiters that it
    /// granted.
    fn run<T>(
        &self,
        lock: &LockKey,
        verb: impl FnOnce(&mut Record, &Context) -> Result<Outcome<T>, Rejected>,
    ) -> Result<T, StoreError> {
        let sent = Instant::now();
        let mut state = self.memory.state.lock();
        let context = self.context();
        state.sweep(context.now_us);
        let now_ms = context.now_us / 1_000;
        let is_watched = !state.watched.is_empty();
        let stored = state.records.entry(lock.clone()).or_default();
        if !stored.is_kept(now_ms) {
            *stored = StoredRecord::default();
        }
        stored.record.change_log.is_on = is_watched;
        let outcome = verb(&mut stored.record, &context);
        let changes = std::mem::take(&mut stored.record.change_log.changes);
        let ended = std::mem::take(&mut stored.record.end_events);
        stored.deleted_after_ms = stored.record.deleted_after_ms(now_ms);
        if stored.record.is_empty() {
            state.records.remove(lock);
        }
        if !changes.is_empty() {
            state.notify_watchers(lock, &changes, now_ms);
        }
        if let Some(listener) = state.listeners.get(&self.broker) {
            for ending in ended {
                listener(Event::Ended(lock.clone(), ending));
            }
        }
        let outcome = outcome.map_err(|rejected| {
            StoreError::from(rejected).with_recovery(|| self.memory.recovery())
        })?;
        state.publish(lock, &outcome, sent);
        Ok(outcome.reply)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        self.run(&acquire.lock, |record, context| {
            record.acquire(context, acquire)
        })
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.run(&lease.lock, |record, context| {
            let Renewal {
                ttl,
                expected_attachment,
                ..
            } = renewal;
            let renewed = record.renew(context, lease, ttl, expected_attachment)?;
            Ok(Outcome::reply_only(renewed))
        })
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        self.run(&lease.lock, |record, context| {
            record.attach(context, lease, to)
        })
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        self.run(&lease.lock, |record, context| {
            Ok(record.release(context, lease, release, via))
        })
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        self.run(lock, |record, context| {
            Ok(record.cancel(context, request, attempt))
        })
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        self.run(lock, |record, context| record.touch(context, 1))
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        let set = self.run(lock, |record, context| record.set_limit(context, limit))?;
        if limit.is_some() && set != LimitSet::Mismatch {
            for listener in self.memory.state.lock().listeners.values() {
                listener(Event::Rejoin(lock.clone()));
            }
        }
        Ok(set)
    }

    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        self.run(&close.lock, |record, context| record.close(context, close))
    }

    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        self.run(lock, |record, context| record.open(context))
    }

    async fn revoke(&self, revoke: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        let revoked = self.run(&revoke.lock, |record, context| {
            record.revoke(context, revoke)
        })?;
        if let Ok(Revoked::Taken(lease)) = &revoked
            && let Some(revocation) = lease.to_revocation(revoke)
            && let Some(listener) = self
                .memory
                .state
                .lock()
                .listeners
                .get(&revocation.attachment.stream.broker)
        {
            listener(Event::Revoked(revoke.lock.clone(), revocation));
        }
        Ok(revoked)
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        let now_us = self.memory.now_us();
        let state = self.memory.state.lock();
        Ok(state
            .records
            .get(lock)
            .and_then(|stored| stored.record_at(now_us)))
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        page_max: usize,
    ) -> Result<Listed, StoreError> {
        Ok(list::step(&self.memory, filter, from, page_max))
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        let context = self.context();
        let state = self.memory.state.lock();
        let stored = state.records.get(lock);
        let stored = stored.filter(|stored| stored.is_kept(context.now_us / 1_000));
        let checked = stored.map(|stored| stored.record.check(&context, token));
        Ok(checked.transpose()?.unwrap_or(Checked::Unknown))
    }

    async fn watch(&self) -> Result<(), StoreError> {
        let until_ms = self.memory.now_us() / 1_000 + WATCHED_MS;
        let mut state = self.memory.state.lock();
        state.watched.insert(self.broker, until_ms);
        Ok(())
    }

    fn broker(&self) -> BrokerId {
        self.broker
    }

    fn recovery(&self) -> RecoveryState {
        RecoveryState::of_server(|| "The store".to_owned(), self.memory.recovery())
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        Ok(self.memory.key.clone())
    }

    fn listen(&self, listener: Listener) {
        let mut state = self.memory.state.lock();
        state.listeners.entry(self.broker).or_insert(listener);
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.memory.state.lock().listeners.remove(&self.broker);
    }
}

impl From<Rejected> for StoreError {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Recovering { retry_after_ms } | Rejected::SpanLimit { retry_after_ms } => {
                Self::Recovering {
                    retry_after_ms,
                    recovery: None,
                }
            }
            Rejected::DeadlinePassed | Rejected::NoEra => Self::NotExecuted(rejected.to_string()),
        }
    }
}
