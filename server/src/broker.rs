//! Operations of the broker: acquire (at once or from the queue), renew, release, inspect, drain.

mod acquire;
mod expiry_sweeper;
mod heartbeats;
mod lease;
mod lease_ends;
pub mod lease_stream;
pub mod spans;
mod waiters;
pub mod watch;

use std::{
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{acquire::Delivery, lease::ReleaseResult};
use self::{
    acquire::rollback::RollbackQueue,
    lease_ends::LeaseEndRecorder,
    lease_stream::{StreamAge, registry::StreamRegistry},
    waiters::{Signal, WaiterRegistry},
    watch::WatchHub,
};
use crate::{
    lock::{
        ActiveClosure, BrokerId, CloseCommand, EXCLUSIVE_WEIGHT, FencingToken, Filter, Holder,
        LockError, LockKey, LockState, RevokeCommand, expiry_ms,
    },
    metrics::{BrokerStatus, Metrics},
    quotas::Quotas,
    random::RandomSource,
    recent_events::RecentEvents,
    store::{
        Checked, Cursor, Event, LeaseRejection, LimitSet, Listed, RecoveryState, Revoked, Store,
        StoreError,
    },
    trace::Tracing,
};

/// Timeout of the health check of the store. A slower store counts as down.
const STORE_TIMEOUT: Duration = Duration::from_millis(200);
const RENEWALS_IN_FLIGHT_MAX: usize = 2_048;
const TOUCHES_IN_FLIGHT_MAX: usize = 64;
/// Time after which a command releases its permit. A slower command waits for a store, or for a
/// shard of the store, that does not respond.
const PERMIT_HOLD_MAX: Duration = Duration::from_millis(50);
/// Time after which a renewal or an attachment releases its permit. A store that is busy executes
/// as many as have permits in less, so that no more of them wait for it.
const RENEWAL_PERMIT_HOLD_MAX: Duration = Duration::from_millis(200);

/// The lock broker, which executes the operations of the API. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    store: Arc<dyn Store>,
    waiters: Arc<WaiterRegistry>,
    streams: Arc<StreamRegistry>,
    watch_hub: Arc<WatchHub>,
    rollback: RollbackQueue,
    quotas: Quotas,
    history: Arc<RecentEvents>,
    lease_ends: Arc<LeaseEndRecorder>,
    metrics: Metrics,
    /// Permits for concurrent renewals and attachments. Thousands of leases that become due or are
    /// attached at once must neither delay other calls nor wait in the store until they are late.
    renewal_permits: Arc<Semaphore>,
    /// Permits for concurrent touches of locks: after a failover all queues are touched at once.
    touch_permits: Arc<Semaphore>,
    stream_age: StreamAge,
    random: RandomSource,
    /// Period over which a drain spreads the reconnects of its clients; unset before a drain.
    drain_timeout: Arc<OnceLock<Duration>>,
    tasks: TaskTracker,
    draining: CancellationToken,
}

impl Broker {
    /// Creates a broker on `store`. Its tasks end after [`Broker::drain`];
    /// [`Broker::wait_until_idle`] waits for them.
    pub fn new(store: Arc<dyn Store>, quotas: Quotas, stream_age: StreamAge) -> Self {
        let (metrics, tracing) = (Metrics::off(), Tracing::default());
        Self::with_telemetry(store, quotas, stream_age, metrics, &tracing)
    }

    /// Creates a broker with metrics and tracing.
    pub fn with_telemetry(
        store: Arc<dyn Store>,
        quotas: Quotas,
        stream_age: StreamAge,
        metrics: Metrics,
        tracing: &Tracing,
    ) -> Self {
        let store = metrics.instrument(store);
        let history = Arc::<RecentEvents>::default();
        let tasks = TaskTracker::new();
        let draining = CancellationToken::new();
        let broker = Self {
            rollback: RollbackQueue::start(Arc::clone(&store), &tasks, draining.clone()),
            store,
            quotas,
            waiters: Arc::default(),
            streams: Arc::default(),
            watch_hub: Arc::default(),
            lease_ends: Arc::new(LeaseEndRecorder::new(
                Arc::clone(&history),
                metrics.clone(),
                tracing.clone(),
            )),
            history,
            metrics,
            renewal_permits: Arc::new(Semaphore::new(RENEWALS_IN_FLIGHT_MAX)),
            touch_permits: Arc::new(Semaphore::new(TOUCHES_IN_FLIGHT_MAX)),
            stream_age,
            random: RandomSource::default(),
            drain_timeout: Arc::default(),
            tasks,
            draining,
        };
        let dispatcher = StoreEventDispatcher {
            waiters: Arc::clone(&broker.waiters),
            streams: Arc::clone(&broker.streams),
            watch_hub: Arc::clone(&broker.watch_hub),
            lease_ends: Arc::clone(&broker.lease_ends),
            metrics: broker.metrics.clone(),
        };
        let listener = Arc::new(move |event| dispatcher.dispatch(event));
        broker.store.listen(listener);
        broker.tasks.spawn(broker.clone().sweep_expired_leases());
        broker
    }

    /// Returns the broker with another source of random numbers. Call it before the broker is used.
    #[must_use]
    pub fn with_random_source(mut self, random: RandomSource) -> Self {
        self.random = random;
        self
    }

    /// Creates a broker with quotas and stream ages that no test reaches.
    #[cfg(test)]
    pub(crate) fn unlimited(store: Arc<dyn Store>) -> Self {
        let [max_age, grace] = [Duration::from_secs(86_400); 2];
        Self::new(store, Quotas::unlimited(), StreamAge { max_age, grace })
    }

    /// Returns the remaining time, in milliseconds, of the live lease that has the fencing token.
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
        self.metrics.token_checked(checked.as_ref());
        checked
    }

    /// Sets the limit of a semaphore, or removes the limit if `limit` is `None`. Returns the
    /// previous limit, if there was one.
    pub async fn set_limit(
        &self,
        lock: &LockKey,
        limit: Option<u32>,
    ) -> Result<Option<u32>, LockError> {
        match self.store.set_limit(lock, limit).await? {
            LimitSet::Set { previous } => Ok(previous),
            LimitSet::Mismatch => Err(LockError::LimitMismatch {
                limit: Some(EXCLUSIVE_WEIGHT),
            }),
        }
    }

    /// Closes the lock until a time, and returns the closure that is in effect then. `None` if the
    /// time has passed by the clock of the store.
    pub async fn close(&self, close: &CloseCommand) -> Result<Option<ActiveClosure>, LockError> {
        Ok(self.store.close(close).await?)
    }

    /// Ends the closure of the lock, whatever its cause, and returns it. `None` if the lock was not
    /// closed.
    pub async fn open(&self, lock: &LockKey) -> Result<Option<ActiveClosure>, LockError> {
        Ok(self.store.open(lock).await?)
    }

    /// Revokes the hold of a lease on a lock. Returns the holder, unless the lease had been revoked
    /// and ended before, and the length of the queue.
    pub async fn revoke(
        &self,
        command: &RevokeCommand,
    ) -> Result<(Option<Holder>, u32), LockError> {
        match self.store.revoke(command).await?? {
            Revoked::Taken(lease) => Ok((Some(*lease.holder), lease.queue_length)),
            Revoked::Already => Ok((None, 0)),
        }
    }

    /// Returns the state of the lock, or `None` if it has no holders and no waiters, and is not
    /// closed.
    pub async fn get(&self, lock: &LockKey) -> Result<Option<LockState>, LockError> {
        let state = self.store.get(lock).await?;
        Ok(state.filter(|state| !state.is_idle()))
    }

    /// Returns one page of the locks that have holders, waiters or a lock delay. See
    /// [`Store::list`].
    pub async fn list(
        &self,
        filter: &Filter,
        cursor: Option<&Cursor>,
        max_count: usize,
    ) -> Result<Listed, LockError> {
        Ok(self.store.list(filter, cursor, max_count).await?)
    }

    /// Starts a drain. Sends every stream a request to reconnect, spread over `drain_timeout`, and
    /// serves each stream until its client has moved. Unary calls that wait fail with `Draining`.
    /// Leases and queue positions are kept, so that the same call at another broker finds its queue
    /// position.
    pub fn drain(&self, drain_timeout: Duration) {
        let _ = self.drain_timeout.set(drain_timeout);
        self.draining.cancel();
        self.tasks.close();
    }

    /// Returns the lifetime of a new stream, including the grace period in which its client
    /// reconnects.
    pub fn stream_lifetime(&self) -> Duration {
        self.stream_age.jittered(&self.random) + self.stream_age.grace
    }

    /// Returns the recent lease ends and operator actions of this broker.
    pub fn history(&self) -> &Arc<RecentEvents> {
        &self.history
    }

    /// Returns true if new calls and streams must be sent to other brokers.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Returns the id of this process among the brokers of its store.
    pub fn id(&self) -> BrokerId {
        self.store.broker()
    }

    /// Returns the number of open lease streams.
    pub fn open_streams(&self) -> usize {
        self.streams.count()
    }

    /// Returns the recovery of the store, see [`Store::recovery`].
    pub fn recovery(&self) -> RecoveryState {
        self.store.recovery()
    }

    /// Waits until a drain begins.
    pub async fn until_drain(&self) {
        self.draining.cancelled().await;
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the current status, after a health check of the store.
    pub async fn status(&self) -> BrokerStatus {
        let result = timeout(STORE_TIMEOUT, self.store.deployment_key()).await;
        BrokerStatus {
            is_store_up: matches!(result, Ok(Ok(_))),
            recovery: self.store.recovery(),
            is_draining: self.is_draining(),
            hold_streams: self.streams.count(),
            watch_streams: self.watch_hub.count(),
        }
    }

    fn drain_timeout(&self) -> Duration {
        self.drain_timeout.get().copied().unwrap_or_default()
    }

    /// Waits until all streams are closed and all calls are completed. Call it only after
    /// [`Broker::drain`].
    pub async fn wait_until_idle(&self) {
        self.tasks.wait().await;
    }
}

/// Runs `command` while holding `permit`. The permit is released early, after `hold_max`, so that a
/// stalled shard of the store does not block commands for other shards.
async fn with_permit<T>(
    permit: impl Sized,
    hold_max: Duration,
    command: impl Future<Output = T>,
) -> T {
    let mut command = pin!(command);
    let result = timeout(hold_max, &mut command).await;
    drop(permit);
    match result {
        Ok(output) => output,
        Err(_) => command.await,
    }
}

/// Returns the time after which the store ends a lease that is not renewed.
fn expiry(ttl_ms: u64) -> Duration {
    Duration::from_millis(expiry_ms(ttl_ms))
}

/// Dispatches store events to the components that handle them.
struct StoreEventDispatcher {
    waiters: Arc<WaiterRegistry>,
    streams: Arc<StreamRegistry>,
    watch_hub: Arc<WatchHub>,
    lease_ends: Arc<LeaseEndRecorder>,
    metrics: Metrics,
}

impl StoreEventDispatcher {
    fn dispatch(&self, event: Event) {
        match event {
            Event::HandOff(lock, hand_off, sent) => {
                let signal = Signal::HandOff {
                    fencing_token: hand_off.fencing_token,
                    limit: hand_off.limit,
                    provisional: hand_off.is_provisional,
                    sent,
                    received_at: Instant::now(),
                };
                self.waiters.hand_off(&lock, hand_off.request, signal);
            }
            Event::Moved(_, moved) => self.streams.moved(moved),
            Event::Revoked(_, revocation) => self.streams.revoked(revocation),
            Event::Ended(lock, ending) => self.lease_ends.ended(lock, ending),
            Event::Changed(lock, changes) => self.watch_hub.publish_changes(&lock, changes),
            Event::Rejoin(lock) => self.waiters.rejoin(&lock),
            Event::ServerReplaced => self.metrics.failed_over(),
            Event::AssumptionViolated(assumption) => self.metrics.connection_broken(assumption),
            Event::Resync => {
                self.metrics.resynchronised();
                self.waiters.touch_all_now();
                self.watch_hub.publish_gap();
            }
        }
    }
}

/// Converts without logging: the store logs its failures itself.
impl From<StoreError> for LockError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::NotExecuted(_) => Self::StoreUnavailable,
            StoreError::Full(_) => Self::StoreFull,
            StoreError::Overloaded => Self::Overloaded,
            StoreError::Recovering {
                retry_after_ms,
                recovery,
            } => Self::StoreRecovering {
                retry_after_ms,
                recovery,
            },
            StoreError::Corrupt(_) => Self::StoreCorrupt,
            StoreError::InvalidReply(_) => Self::Internal,
            StoreError::Unsupported(reason) => Self::Unsupported(reason),
        }
    }
}

impl From<LeaseRejection> for LockError {
    fn from(rejection: LeaseRejection) -> Self {
        match rejection {
            LeaseRejection::Elsewhere => Self::StaleAttach,
            LeaseRejection::MaxHold => Self::MaxHold,
            LeaseRejection::Revoked { reason } => Self::LeaseRevoked { reason },
            LeaseRejection::Expired => Self::LeaseExpired,
            LeaseRejection::Released => Self::LeaseReleased,
            LeaseRejection::NotFound => Self::LeaseNotFound,
        }
    }
}
