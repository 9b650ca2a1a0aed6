//! What the broker does for a call: acquire (now, or in line), renew, release, look.

mod about;
mod call;
mod counted;
mod ends;
mod heartbeats;
mod lease;
mod line;
mod run_out;
mod standing;
pub mod stream;
pub mod traced;
mod turn;
mod undo;
pub mod watch;

use std::{
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    sync::{
        Semaphore,
        oneshot::{self, error::RecvError},
    },
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::error;

pub use self::lease::GivenBack;
use self::{
    call::{Answer, Answered, Call, Offer},
    ends::Ends,
    heartbeats::Heartbeats,
    stream::{StreamAge, Tell},
    undo::Undo,
    watch::Watchers,
};
use crate::{
    history::History,
    lock::{
        AcquireCall, Attachment, Failed, FencingToken, Filter, Holder, LOCKS_MAX, Lease, LeaseId,
        LeaseToken, LockError, LockKey, LockState, Revoke, WHOLE, expiry_ms,
    },
    metrics::Metrics,
    quotas::{Place, Quotas},
    store::{Checked, Cursor, Event, LimitSet, Listed, Revoked, Store, StoreError},
    streams::Streams,
    trace::{Traced, Tracing},
    waiters::{Signal, Waiters},
};

const TURNS: usize = 256;
const TOUCHES: usize = 64;
/// What takes longer waits for a store, or for one part of it, that does not answer.
const TURN_MAX: Duration = Duration::from_millis(50);

/// The stream that a call came on.
struct OnStream {
    call_id: i64,
    attachment: Attachment,
    /// Of its client.
    heartbeats: Arc<Heartbeats>,
    tell: Tell,
    /// The client gives the wait up.
    give_up: CancellationToken,
    traced: Traced,
}

/// The use cases. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    store: Arc<dyn Store>,
    waiters: Arc<Waiters>,
    streams: Arc<Streams>,
    watchers: Arc<Watchers>,
    undo: Undo,
    quotas: Quotas,
    history: Arc<History>,
    ends: Arc<Ends>,
    metrics: Metrics,
    /// Renewals and attachments at the store at the same time: those of thousands of leases that become
    /// due, or come, together must neither hold up a call nor wait there until they are late.
    turns: Arc<Semaphore>,
    /// Touches of locks at the store at the same time: after a fail-over all lines are touched together.
    touches: Arc<Semaphore>,
    stream_age: StreamAge,
    /// Over how long the clients of a drain are spread; unset before.
    drained_within: Arc<OnceLock<Duration>>,
    tasks: TaskTracker,
    draining: CancellationToken,
}

impl Broker {
    /// A broker on `store`. Its tasks end with [`Broker::drain`] and are awaited by
    /// [`Broker::idle`].
    pub fn new(store: Arc<dyn Store>, quotas: Quotas, stream_age: StreamAge) -> Self {
        let (metrics, tracing) = (Metrics::off(), Tracing::default());
        Self::observed(store, quotas, stream_age, metrics, &tracing)
    }

    /// The same, counted and traced.
    pub fn observed(
        store: Arc<dyn Store>,
        quotas: Quotas,
        stream_age: StreamAge,
        metrics: Metrics,
        tracing: &Tracing,
    ) -> Self {
        let store = metrics.measured(store);
        let history = Arc::<History>::default();
        let tasks = TaskTracker::new();
        let draining = CancellationToken::new();
        let broker = Self {
            undo: Undo::start(Arc::clone(&store), &tasks, draining.clone()),
            store,
            quotas,
            waiters: Arc::default(),
            streams: Arc::default(),
            watchers: Arc::default(),
            ends: Arc::new(Ends::new(
                Arc::clone(&history),
                metrics.clone(),
                tracing.clone(),
            )),
            history,
            metrics,
            turns: Arc::new(Semaphore::new(TURNS)),
            touches: Arc::new(Semaphore::new(TOUCHES)),
            stream_age,
            drained_within: Arc::default(),
            tasks,
            draining,
        };
        let ears = Ears {
            waiters: Arc::clone(&broker.waiters),
            streams: Arc::clone(&broker.streams),
            watchers: Arc::clone(&broker.watchers),
            ends: Arc::clone(&broker.ends),
            metrics: broker.metrics.clone(),
        };
        let listener = Arc::new(move |event| ears.pass_on(event));
        broker.store.listen(listener);
        broker.tasks.spawn(broker.clone().look_after_run_out());
        broker
    }

    /// A broker with quotas that nobody reaches, and with streams that do not grow old in a test.
    #[cfg(test)]
    pub(crate) fn alone(store: Arc<dyn Store>) -> Self {
        let [most, grace] = [Duration::from_secs(86_400); 2];
        Self::new(store, Quotas::ample(), StreamAge { most, grace })
    }

    /// Takes the locks of the call for `caller`, all or none, waiting in line at most `call.wait_ms`.
    ///
    /// # Cancel safety
    /// The call goes on in a task of its own. Dropping this future gives up the wait: the place in
    /// line, or a lock that nobody took delivery of, is given back a moment later, unless the same
    /// call has come again by then.
    pub async fn acquire(&self, caller: &Arc<str>, call: AcquireCall) -> Result<Lease, Failed> {
        let delivery = self.offer(caller, call).await?;
        let lease = delivery.lease().clone();
        delivery.done();
        Ok(lease)
    }

    /// The same, for a caller that may be gone before it has heard of its lease.
    pub async fn offer(&self, caller: &Arc<str>, call: AcquireCall) -> Result<Delivery, Failed> {
        let first = call.first().clone();
        let (run, answer) = self.begin(caller, call, None);
        self.tasks.spawn(run);
        Ok(Delivery {
            offer: ended(&first, answer.await)?,
            broker: self.clone(),
        })
    }

    /// A call, to be run to its end by whoever takes it, and its answer. The call goes on, and undoes
    /// what it did, when nobody waits for the answer any more.
    fn begin(
        &self,
        caller: &Arc<str>,
        mut call: AcquireCall,
        on: Option<OnStream>,
    ) -> (impl Future<Output = ()> + Send + use<>, Answer) {
        let (reply, answer) = oneshot::channel();
        let (broker, caller) = (self.clone(), Arc::clone(caller));
        let timed = self.metrics.begin(&call);
        let traced = on.as_ref().map(|on| on.traced.clone());
        let traced = traced.unwrap_or_else(Traced::current);
        traced::asked(&traced, &call);
        call.owner.trace = traced.parent();
        let run = async move {
            match broker.admit(&caller, &call).await {
                Ok((lease, places)) => {
                    let call = Call::new(broker, call, lease, (on, timed));
                    call.run(places, reply).await;
                }
                Err(failed) => {
                    timed.failed(&failed.error);
                    // A caller that is gone needs no answer.
                    drop(reply.send(Err(failed)));
                }
            }
        };
        (traced.run(run), answer)
    }

    /// The lease that the call makes or adds to, and a place for each of its locks, unless it is
    /// hopeless or too much.
    async fn admit(
        &self,
        caller: &Arc<str>,
        call: &AcquireCall,
    ) -> Result<((LeaseId, LeaseToken), Vec<Place>), Failed> {
        if self.is_draining() {
            return Err(LockError::Draining.at(call.first()));
        }
        let places = self.quotas.admit(caller, call);
        let places = places.inspect_err(|error| self.metrics.over_quota(error));
        let places = places.map_err(|error| error.at(call.first()))?;
        Ok((self.lease_of(caller, call).await?, places))
    }

    async fn lease_of(
        &self,
        caller: &str,
        call: &AcquireCall,
    ) -> Result<(LeaseId, LeaseToken), Failed> {
        let first = call.first();
        let Some(lease) = &call.under else {
            let token = self.new_token(caller, call).await;
            let token = token.map_err(|error| error.at(first))?;
            return Ok((token.lease_id(caller), token));
        };
        if lease.locks.len() >= LOCKS_MAX && lease.locks.iter().all(|held| held.lock != *first) {
            return Err(LockError::TooManyLocks.at(first));
        }
        Ok((lease.lease_id, lease.lease_token.clone()))
    }

    /// The same for every attempt of the call, at any broker.
    async fn new_token(&self, caller: &str, call: &AcquireCall) -> Result<LeaseToken, LockError> {
        let key = self.store.deployment_key().await?;
        let mut locks: Vec<_> = call.targets.iter().map(|target| &target.lock).collect();
        locks.sort();
        Ok(key.lease_token(caller, &call.owner.id, &call.request_id, &locks))
    }

    /// Time left, in milliseconds, on the live lease behind a token.
    pub async fn check_fencing_token(
        &self,
        lock: &LockKey,
        token: FencingToken,
    ) -> Result<u64, LockError> {
        let checked = match self.store.check(lock, token).await {
            Ok(Checked::Live { remaining_ms }) => Ok(remaining_ms),
            Ok(Checked::Stale { newest }) => Err(LockError::StaleToken { newest }),
            Ok(Checked::Unknown) => Err(LockError::LeaseNotFound),
            Err(error) => Err(error.into()),
        };
        self.metrics.checked(checked.as_ref());
        checked
    }

    /// Sets the limit of a semaphore, or removes it with `None`. Returns the one before; 0 if there was
    /// none.
    pub async fn set_limit(&self, lock: &LockKey, limit: Option<u32>) -> Result<u32, LockError> {
        match self.store.set_limit(lock, limit).await? {
            LimitSet::Set { previous } => Ok(previous),
            LimitSet::Mismatch => Err(LockError::LimitMismatch { limit: WHOLE }),
        }
    }

    /// Takes a lock away from a lease of somebody else. Returns who held it, as far as that is still
    /// known, and how many waited.
    pub async fn revoke(&self, revoke: &Revoke) -> Result<(Option<Holder>, u32), LockError> {
        match self.store.revoke(revoke).await? {
            Revoked::Taken {
                holder,
                queue_length,
                ..
            } => Ok((Some(*holder), queue_length)),
            Revoked::Already => Ok((None, 0)),
            Revoked::Expired => Err(LockError::LeaseExpired),
            Revoked::Released => Err(LockError::LeaseReleased),
            Revoked::NotFound => Err(LockError::LeaseNotFound),
        }
    }

    /// The lock, if anybody holds it or waits for it.
    pub async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, LockError> {
        let state = self.store.get(lock).await?;
        Ok(state.filter(|state| !state.is_idle()))
    }

    /// One step of a list of the locks that anybody holds or waits for. See [`Store::list`].
    pub async fn list(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        most: usize,
    ) -> Result<Listed, LockError> {
        Ok(self.store.list(filter, from, most).await?)
    }

    /// Asks the client of every stream to move, one after the other over `within`, and serves it until
    /// it has. Every unary call that waits is answered with `Draining`. Leases and places in line are
    /// left alone: the same call at another broker finds its place.
    pub fn drain(&self, within: Duration) {
        let _ = self.drained_within.set(within);
        self.draining.cancel();
        self.tasks.close();
    }

    /// Returns how long a stream lasts that begins now, with the time to go on with another one.
    pub fn stream_lifetime(&self) -> Duration {
        self.stream_age.jittered() + self.stream_age.grace
    }

    /// How leases ended here, and what operators did.
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Whether new calls and streams are for other brokers.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    fn drained_within(&self) -> Duration {
        self.drained_within.get().copied().unwrap_or_default()
    }

    /// Ends when no stream is open and no call is under way. Only after [`Broker::drain`].
    pub async fn idle(&self) {
        self.tasks.wait().await;
    }
}

/// Runs a command of a kind of which only so many are sent at once. One that is not answered soon
/// lets others pass: they may be for another part of the store.
async fn in_turn<T>(turn: impl Sized, command: impl Future<Output = T>) -> T {
    let mut command = pin!(command);
    let soon = timeout(TURN_MAX, &mut command).await;
    drop(turn);
    match soon {
        Ok(done) => done,
        Err(_) => command.await,
    }
}

/// When a lease ends that is not renewed.
fn expiry(ttl_ms: u64) -> Duration {
    Duration::from_millis(expiry_ms(ttl_ms))
}

/// What became of a call. One without an answer was ended by a fault.
fn ended(first: &LockKey, answer: Result<Answered, RecvError>) -> Answered {
    answer.unwrap_or_else(|_| {
        error!(
            lock = first.to_string(),
            "a call ended by a fault of the broker"
        );
        Err(LockError::Internal.at(first))
    })
}

/// A lease on its way to a caller. Dropped before it is [done](Self::done), what the call took is given back a
/// moment later, unless the same call has come again by then.
pub struct Delivery {
    offer: Offer,
    broker: Broker,
}

impl Delivery {
    /// The lease.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.offer.lease()
    }

    /// The answer was sent.
    pub fn done(self) {
        let Self { offer, broker } = self;
        let (lease, mut places) = offer.accept();
        broker.count_held(&mut places, &lease.locks);
        let ttl_ms = lease.locks.iter().map(|held| held.grant.ttl.as_millis());
        let ttl_ms = ttl_ms.min().unwrap_or(0);
        broker.quotas.keep(lease.lease_id, places, expiry(ttl_ms));
    }
}

/// Who hears what the store tells unasked.
struct Ears {
    waiters: Arc<Waiters>,
    streams: Arc<Streams>,
    watchers: Arc<Watchers>,
    ends: Arc<Ends>,
    metrics: Metrics,
}

impl Ears {
    fn pass_on(&self, event: Event) {
        match event {
            Event::HandOff(lock, hand_off, sent) => {
                let signal = Signal::HandOff {
                    fencing_token: hand_off.fencing_token,
                    provisional: hand_off.provisional,
                    sent,
                    told: Instant::now(),
                };
                self.waiters.hand_off(&lock, hand_off.request, signal);
            }
            Event::Moved(_, moved) => self.streams.moved(moved),
            Event::Revoked(_, revocation) => self.streams.revoked(revocation),
            Event::Ended(lock, ending) => self.ends.ended(lock, ending),
            Event::Changed(lock, changes) => self.watchers.changed(&lock, changes),
            Event::Rejoin(lock) => self.waiters.rejoin(&lock),
            Event::Replaced => self.metrics.failed_over(),
            Event::Broken(assumption) => self.metrics.broken(assumption),
            Event::Resync => {
                self.metrics.resynchronised();
                self.waiters.touch_all();
                self.watchers.missed();
            }
        }
    }
}

/// The store has told its log.
impl From<StoreError> for LockError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::NotNow(_) => Self::StoreUnavailable,
            StoreError::Full(_) => Self::StoreFull,
            StoreError::Recovering { retry_after_ms } => Self::StoreRecovering { retry_after_ms },
            StoreError::Corrupt(_) => Self::StoreCorrupt,
            StoreError::Garbled(_) => Self::Internal,
            StoreError::Unsupported(why) => Self::Unsupported(why),
        }
    }
}
