//! A store in memory behind a network that delays, loses and repeats messages.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold_server::{
    lock::{
        AcquireCommand, ActiveClosure, ActiveRecovery, Attachment, AttemptId, BrokerId,
        COMMAND_DEADLINE_MS, CloseCommand, DeploymentKey, ExpectedAttachment, FencingToken, Filter,
        Grant, LeaseRef, LockKey, LockState, ReleaseScope, RequestHash, RevokeCommand, SPAN_MIN_MS,
        span_ms,
    },
    store::{
        Acquired, Cancelled, Checked, Cursor, EraId, Event, LeaseReply, LimitSet, Listed, Listener,
        RecoveryState, Released, Renewal, Revoked, Store, StoreError, Touched,
        memory::{Memory, MemoryStore, SavedRecords, context::SpanLimit},
        redis::{
            era::QUARANTINE_MARGIN_MS,
            span_limit::{SpanLimitReading, StoredSpanLimit},
        },
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::plan::{LOCK_DELAY_MAX_MS, LONG_TTL_MAX_MS, ROLL_BACK_MAX_MS, TTL_MAX_MS};

/// Time after which a command without a reply fails.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(COMMAND_DEADLINE_MS + 200);
/// Maximum time between a loss of data and the connection of a broker to the new server.
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// Time that a change of the limit of spans takes at least: what a broker has read is not older when
/// another server serves.
const SPAN_LIMIT_CHANGE_MS: u64 = ROLL_BACK_MAX_MS + 1_000;
/// Time of the store's clock at the start, in microseconds since 1970.
const STARTED_US: u64 = 1_700_000_000_000_000;

/// The store of all brokers, with its faults.
pub struct SimulatedStore {
    memory: Arc<Memory>,
    clock: StoreClock,
    random: Mutex<StdRng>,
    /// Probability with which each message is lost, in thousandths.
    lossy_permille: AtomicU64,
    stall: Gate,
    /// Difference of the present server's clock, in microseconds.
    clock_offset_us: Arc<AtomicI64>,
    span_limit: Mutex<Option<StoredSpanLimit>>,
    era: AtomicU64,
    links: Mutex<Vec<(Arc<BrokerLink>, Listener)>>,
    /// Time at which the command was sent that is now executed.
    sent: Mutex<Option<Instant>>,
}

/// Data of a server, for a server that replaces it.
pub struct SavedData {
    pub records: SavedRecords,
    /// The limit of spans at that time, as a broker has read it.
    span_limit: Option<SpanLimitReading>,
}

/// State of one broker process, as the store and the clients see it.
pub struct BrokerLink {
    pub killed: CancellationToken,
    pause: Gate,
    /// True if the broker is connected to the present server.
    is_connected: AtomicBool,
}

/// A gate that is open or closed. Opening it wakes those who wait in the order in which they began.
#[derive(Default)]
struct Gate(Mutex<Option<CancellationToken>>);

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        let closed = is_closed.then(CancellationToken::new);
        let opened = std::mem::replace(&mut *locked(&self.0), closed);
        opened.inspect(CancellationToken::cancel);
    }

    async fn wait_until_open(&self) {
        let closed = locked(&self.0).clone();
        if let Some(closed) = closed {
            closed.cancelled().await;
        }
    }
}

/// One broker's connection to the store.
pub struct FaultyStore {
    inner: Arc<MemoryStore>,
    shared: Arc<SimulatedStore>,
    link: Arc<BrokerLink>,
}

/// The clock of the store.
#[derive(Debug, Clone, Copy)]
struct StoreClock {
    started: Instant,
    second_us: u64,
}

impl StoreClock {
    /// Returns the time in microseconds since 1970.
    fn now_us(&self) -> u64 {
        let elapsed_us = self.started.elapsed().as_micros() * u128::from(self.second_us);
        STARTED_US + u64::try_from(elapsed_us / 1_000_000).expect("a short run")
    }
}

/// Fate of one command.
struct Fate {
    before: Duration,
    after: Duration,
    is_request_lost: bool,
    is_reply_lost: bool,
    repeat_after: Option<Duration>,
}

type Command<T> = Arc<
    dyn Fn(Arc<MemoryStore>) -> Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>
        + Send
        + Sync,
>;

impl SimulatedStore {
    /// Returns the time of the store's clock, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        let offset_us = self.clock_offset_us.load(Ordering::Relaxed);
        self.clock.now_us().saturating_add_signed(offset_us) / 1_000
    }

    /// Creates an empty store whose faults follow from the seed, and whose clock advances by
    /// `second_us` in a second.
    #[must_use]
    pub fn new(seed: u64, second_us: u64) -> Arc<Self> {
        let clock_offset_us = Arc::<AtomicI64>::default();
        let offset_us = Arc::clone(&clock_offset_us);
        let key = DeploymentKey::parse(&"5a".repeat(32)).expect("64 digits");
        let clock = StoreClock {
            started: Instant::now(),
            second_us,
        };
        Arc::new(Self {
            memory: Memory::with_clock(
                move || {
                    let offset_us = offset_us.load(Ordering::Relaxed);
                    clock.now_us().saturating_add_signed(offset_us)
                },
                key,
            ),
            clock,
            clock_offset_us,
            span_limit: Mutex::default(),
            random: Mutex::new(StdRng::seed_from_u64(seed ^ 0x5707e)),
            lossy_permille: AtomicU64::new(0),
            stall: Gate::default(),
            era: AtomicU64::new(1),
            links: Mutex::default(),
            sent: Mutex::default(),
        })
    }

    /// Connects a broker.
    pub fn connect(self: &Arc<Self>, broker: BrokerId, link: &Arc<BrokerLink>) -> FaultyStore {
        FaultyStore {
            inner: Arc::new(self.memory.connect(broker)),
            shared: Arc::clone(self),
            link: Arc::clone(link),
        }
    }

    pub fn set_lossy(&self, permille: u32) {
        self.lossy_permille
            .store(u64::from(permille), Ordering::Relaxed);
    }

    pub fn set_stalled(&self, is_stalled: bool) {
        self.stall.set_closed(is_stalled);
    }

    #[must_use]
    pub fn save(&self) -> SavedData {
        let now_ms = self.now_ms();
        SavedData {
            records: self.memory.save(),
            span_limit: locked(&self.span_limit).map(|limit| limit.at(now_ms)),
        }
    }

    /// Sets the limit of spans.
    pub fn limit_spans(&self, limit: StoredSpanLimit) {
        let StoredSpanLimit {
            before_ms,
            after_ms,
            at_ms,
        } = limit;
        *locked(&self.span_limit) = Some(limit);
        self.memory.limit_spans(SpanLimit::Changing {
            before_ms,
            after_ms,
            at_ms,
        });
    }

    /// Begins to change the limit of spans, unless it is changing.
    pub fn change_span_limit(&self, limit_ms: u64) {
        let (now_ms, limit) = (self.now_ms(), *locked(&self.span_limit));
        let Some(before_ms) = limit.filter(|limit| limit.at_ms <= now_ms) else {
            return;
        };
        let before_ms = before_ms.after_ms;
        let takes_ms = match limit_ms < before_ms {
            true => before_ms.max(SPAN_LIMIT_CHANGE_MS),
            false => SPAN_LIMIT_CHANGE_MS,
        };
        self.limit_spans(StoredSpanLimit {
            before_ms,
            after_ms: limit_ms,
            at_ms: now_ms + takes_ms,
        });
    }

    /// Replaces the records as by a restart of the server: commands under way and events are lost,
    /// brokers reconnect, and nothing is granted until every lease has expired.
    pub fn lose_data(&self, saved: SavedRecords) {
        let quarantine_ms = span_ms(TTL_MAX_MS, LOCK_DELAY_MAX_MS) + QUARANTINE_MARGIN_MS;
        self.replace_server(saved, quarantine_ms);
    }

    /// Replaces the server by one with saved data and another clock. Returns the time for which it
    /// grants nothing: the longest span under the limit of spans at the time of the data.
    pub fn promote(&self, saved: SavedData, clock_ms: i64) -> Duration {
        self.clock_offset_us
            .fetch_add(clock_ms * 1_000, Ordering::Relaxed);
        let limit = saved.span_limit.unwrap_or(SpanLimitReading {
            covered_ms: span_ms(LONG_TTL_MAX_MS, LOCK_DELAY_MAX_MS),
            usable_ms: SPAN_MIN_MS,
        });
        let quarantine_ms = limit.covered_ms + QUARANTINE_MARGIN_MS;
        self.replace_server(saved.records, quarantine_ms);
        self.limit_spans(StoredSpanLimit {
            before_ms: limit.covered_ms,
            after_ms: limit.usable_ms,
            at_ms: self.now_ms() + quarantine_ms.max(SPAN_LIMIT_CHANGE_MS),
        });
        Duration::from_millis(quarantine_ms)
    }

    fn replace_server(&self, saved: SavedRecords, quarantine_ms: u64) {
        self.era.fetch_add(1, Ordering::Relaxed);
        self.memory
            .restore(saved, Duration::from_millis(quarantine_ms));
        let mut links = locked(&self.links);
        links.retain(|(link, _)| !link.killed.is_cancelled());
        for (link, listener) in links.iter().cloned() {
            link.is_connected.store(false, Ordering::Relaxed);
            let delay = locked(&self.random).gen_range(Duration::ZERO..RECONNECT_MAX);
            tokio::spawn(async move {
                sleep(delay).await;
                link.ready().await;
                link.is_connected.store(true, Ordering::Relaxed);
                listener(Event::ServerReplaced);
                listener(Event::Resync);
            });
        }
    }

    fn era_id(&self) -> Option<EraId> {
        EraId::new(&format!("era-{}", self.era.load(Ordering::Relaxed)))
    }

    fn delay(random: &mut StdRng) -> Duration {
        let max_us = match random.gen_range(0..100) {
            0 => 300_000,
            1..10 => 20_000,
            _ => 2_000,
        };
        Duration::from_micros(random.gen_range(0..max_us))
    }

    fn fate(&self) -> Fate {
        let mut random = locked(&self.random);
        let lossy = self.lossy_permille.load(Ordering::Relaxed);
        let is_hit = |random: &mut StdRng| random.gen_range(0..1_000) < lossy;
        let slow = |random: &mut StdRng| Duration::from_millis(random.gen_range(0..2_500));
        let (before, after) = (Self::delay(&mut random), Self::delay(&mut random));
        Fate {
            is_request_lost: is_hit(&mut random),
            is_reply_lost: is_hit(&mut random),
            before: if is_hit(&mut random) {
                slow(&mut random)
            } else {
                before
            },
            after: if is_hit(&mut random) {
                slow(&mut random)
            } else {
                after
            },
            repeat_after: is_hit(&mut random).then(|| slow(&mut random)),
        }
    }
}

impl BrokerLink {
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a link is created for a broker")]
    pub fn new() -> Self {
        Self {
            killed: CancellationToken::new(),
            pause: Gate::default(),
            is_connected: AtomicBool::new(true),
        }
    }

    pub fn set_paused(&self, is_paused: bool) {
        self.pause.set_closed(is_paused);
    }

    /// Waits while the broker is paused. Waits forever if it was killed.
    pub async fn ready(&self) {
        self.pause.wait_until_open().await;
        if self.killed.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }
}

impl FaultyStore {
    /// Sends a command, which is executed although the returned future is dropped. Commands with a
    /// deadline are not executed after it.
    async fn send<T: Send + 'static>(
        &self,
        has_deadline: bool,
        command: Command<T>,
    ) -> Result<T, StoreError> {
        self.link.ready().await;
        if !self.link.is_connected.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1)).await;
            return Err(StoreError::NotExecuted("not connected".to_owned()));
        }
        let (sender, receiver) = oneshot::channel();
        let (shared, inner) = (Arc::clone(&self.shared), Arc::clone(&self.inner));
        let (fate, sent) = (shared.fate(), Instant::now());
        let era = shared.era.load(Ordering::Relaxed);
        tokio::spawn(async move {
            sleep(fate.before).await;
            if fate.is_request_lost {
                // The caller waits for its timeout.
                return sleep(COMMAND_TIMEOUT).await;
            }
            let Some(reply) = execute(&shared, &inner, (era, sent, has_deadline), &command).await
            else {
                return;
            };
            if let Some(delay) = fate.repeat_after {
                let (shared, inner) = (Arc::clone(&shared), Arc::clone(&inner));
                tokio::spawn(async move {
                    sleep(delay).await;
                    execute(&shared, &inner, (era, sent, has_deadline), &command).await;
                });
            }
            sleep(fate.after).await;
            if fate.is_reply_lost {
                return sleep(COMMAND_TIMEOUT).await;
            }
            // The receiver is gone if the command has timed out.
            if shared.era.load(Ordering::Relaxed) == era {
                let _ = sender.send(reply);
            }
        });
        let reply = timeout(COMMAND_TIMEOUT, receiver).await;
        self.link.ready().await;
        match reply {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable("no reply".to_owned())),
        }
    }
}

/// Executes a command that has arrived. Returns `None` if the connection on which it was sent is
/// broken.
async fn execute<T>(
    shared: &SimulatedStore,
    inner: &Arc<MemoryStore>,
    (era, sent, has_deadline): (u64, Instant, bool),
    command: &Command<T>,
) -> Option<Result<T, StoreError>> {
    shared.stall.wait_until_open().await;
    if shared.era.load(Ordering::Relaxed) != era {
        return None;
    }
    if has_deadline && sent.elapsed() > Duration::from_millis(COMMAND_DEADLINE_MS) {
        return Some(Err(StoreError::NotExecuted("too late".to_owned())));
    }
    *locked(&shared.sent) = Some(sent);
    // The store in memory replies at once, so that no other command is executed meanwhile.
    Some(command(Arc::clone(inner)).await)
}

/// Clones the arguments of a command, which may be executed after its caller has left.
macro_rules! command {
    ($store:ident, [$($argument:ident),*], $call:expr) => {{
        $(let $argument = $argument.clone();)*
        Arc::new(move |$store: Arc<MemoryStore>| {
            $(let $argument = $argument.clone();)*
            Box::pin(async move { $call.await }) as Pin<Box<dyn Future<Output = _> + Send>>
        })
    }};
}

#[async_trait]
impl Store for FaultyStore {
    async fn acquire(&self, acquire: &AcquireCommand) -> Result<Acquired, StoreError> {
        let command = command!(store, [acquire], store.acquire(&acquire));
        let mut acquired: Acquired = self.send(true, command).await?;
        if let Acquired::Queued { era, .. } = &mut acquired {
            *era = self.shared.era_id();
        }
        Ok(acquired)
    }

    async fn renew(
        &self,
        lease: &LeaseRef,
        renewal: Renewal,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        let command = command!(store, [lease, renewal], store.renew(&lease, renewal));
        self.send(true, command).await
    }

    async fn attach(
        &self,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<LeaseReply<Grant>, StoreError> {
        let command = command!(store, [lease, to], store.attach(&lease, to));
        self.send(true, command).await
    }

    async fn release(
        &self,
        lease: &LeaseRef,
        release: ReleaseScope,
        via: ExpectedAttachment,
    ) -> Result<LeaseReply<Released>, StoreError> {
        let command = command!(
            store,
            [lease, release, via],
            store.release(&lease, release, via)
        );
        self.send(false, command).await
    }

    async fn cancel(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) -> Result<Cancelled, StoreError> {
        let command = command!(
            store,
            [lock, request, attempt],
            store.cancel(&lock, request, attempt)
        );
        self.send(false, command).await
    }

    async fn touch(&self, lock: &LockKey) -> Result<Touched, StoreError> {
        let mut touched: Touched = self
            .send(true, command!(store, [lock], store.touch(&lock)))
            .await?;
        touched.era = self.shared.era_id();
        Ok(touched)
    }

    async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<LimitSet, StoreError> {
        let command = command!(store, [lock, limit], store.set_limit(&lock, limit));
        self.send(true, command).await
    }

    async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, StoreError> {
        self.send(true, command!(store, [close], store.close(&close)))
            .await
    }

    async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, StoreError> {
        self.send(true, command!(store, [lock], store.open(&lock)))
            .await
    }

    async fn revoke(&self, revoke: &RevokeCommand) -> Result<LeaseReply<Revoked>, StoreError> {
        self.send(true, command!(store, [revoke], store.revoke(&revoke)))
            .await
    }

    async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, StoreError> {
        self.send(true, command!(store, [lock], store.get(&lock)))
            .await
    }

    async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        page_max: usize,
    ) -> Result<Listed, StoreError> {
        self.inner.list(filter, from, page_max).await
    }

    async fn check(&self, lock: &LockKey, token: FencingToken) -> Result<Checked, StoreError> {
        self.send(
            true,
            command!(store, [lock, token], store.check(&lock, token)),
        )
        .await
    }

    async fn watch(&self) -> Result<(), StoreError> {
        self.inner.watch().await
    }

    fn broker(&self) -> BrokerId {
        self.inner.broker()
    }

    fn recovery(&self) -> RecoveryState {
        self.inner.recovery()
    }

    fn recovery_of(&self, lock: &LockKey) -> Option<ActiveRecovery> {
        self.inner.recovery_of(lock)
    }

    async fn deployment_key(&self) -> Result<DeploymentKey, StoreError> {
        self.inner.deployment_key().await
    }

    /// Registers a listener to which events are sent like messages: they may be lost, late or
    /// repeated, and a loss of data loses those under way.
    fn listen(&self, listener: Listener) {
        let (shared, link) = (Arc::clone(&self.shared), Arc::clone(&self.link));
        locked(&shared.links).push((Arc::clone(&link), Arc::clone(&listener)));
        self.inner.listen(Arc::new(move |event| {
            let event = if let Event::HandOff(lock, hand_off, Some(_)) = event {
                Event::HandOff(lock, hand_off, *locked(&shared.sent))
            } else {
                event
            };
            let fate = shared.fate();
            let repeats = fate.repeat_after.map(|delay| fate.before + delay);
            let first = (!fate.is_request_lost).then_some(fate.before);
            let era = shared.era.load(Ordering::Relaxed);
            for delay in first.into_iter().chain(repeats) {
                let (listener, event) = (Arc::clone(&listener), event.clone());
                let (shared, link) = (Arc::clone(&shared), Arc::clone(&link));
                tokio::spawn(async move {
                    sleep(delay).await;
                    link.ready().await;
                    if shared.era.load(Ordering::Relaxed) == era {
                        listener(event);
                    }
                });
            }
        }));
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
