//! Acquiring one or several locks.

use std::{fmt, time::Duration};

use leasehold_proto::v1::Owner;
use rand::Rng as _;
use tokio::sync::oneshot;
use tracing::{Instrument as _, debug, debug_span};
use uuid::Uuid;

use crate::{
    client::Client,
    clock,
    command::{AcquireCommand, AcquireParams, Command},
    error::{Error, RunError},
    guard::{Guard, Held},
    queue_position::{QueuePosition, QueuePositionHook, queue_position_channel},
    session::CommandSender,
    target::{Target, display_lock, lock_ref},
    telemetry,
};

const WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// Longest wait that a broker allows. A longer wait is split.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// A request for one lock, or for several. Created by [`Client::lock`] and [`Client::lock_all`].
#[must_use = "ends with acquire(), try_acquire() or run()"]
pub struct Lock {
    client: Client,
    params: AcquireParams,
    wait: Duration,
    attempts: (u32, Duration),
    under: Option<Held>,
    on_queue: Option<QueuePositionHook>,
}

/// Cancels an acquire on the client's thread when its caller is dropped before the result.
struct CancelOnDrop {
    commands: CommandSender,
    request_id: String,
    is_complete: bool,
}

impl Lock {
    pub(crate) fn new(client: &Client, targets: Vec<Target>) -> Self {
        Self {
            client: client.clone(),
            params: AcquireParams {
                targets: targets.into_iter().map(Target::into_proto).collect(),
                owner: Owner::clone(&client.owner),
                ttl: None,
                request_id: String::new(),
                traceparent: String::new(),
                max_hold: None,
                lock_delay: None,
                disconnect_grace: None,
                at_least: None,
            },
            wait: WAIT_DEFAULT,
            attempts: (1, Duration::ZERO),
            under: None,
            on_queue: None,
        }
    }

    /// Requests the lock as shared, together with other shared holders; see [`Target::shared`].
    pub fn shared(self) -> Self {
        self.map_targets(Target::shared)
    }

    /// Requests `permits` of the `limit` permits of a semaphore; see [`Target::permits`].
    pub fn permits(self, permits: u32, limit: u32) -> Self {
        self.map_targets(|target| target.permits(permits, limit))
    }

    /// Sets the time for which the lock stays valid after each heartbeat, and so the time that
    /// others wait if this process dies. 1 s to 60 s unless the broker is configured otherwise;
    /// default 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.params.ttl = Some(ttl);
        self
    }

    /// Sets the time for which [`acquire`](Self::acquire) and [`run`](Self::run) wait in the queue;
    /// default 30 s. A longer wait than an hour enters the queue again at its end after each hour.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the reason for the lock, for callers and operators that find it held. At most 512
    /// bytes.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.params.owner.reason = reason.into();
        self
    }

    /// Adds a label for lists and logs. At most 16 labels.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.params.owner.labels.insert(key.into(), value.into());
        self
    }

    /// Sets the longest time for which the lock may be held in all. Then it is lost with
    /// [`LostReason::MaxHold`](crate::LostReason::MaxHold).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.params.max_hold = Some(max_hold);
        self
    }

    /// Sets the time for which the lock grants nothing after an expiry or revocation, at most 60 s.
    /// Use it for resources that cannot check fencing tokens.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.params.lock_delay = Some(lock_delay);
        self
    }

    /// Sets the time after the grant until which the lock stays closed, however the lease ends, for a
    /// job that runs once a period. It must not be shorter than the validity of the lease; the broker
    /// allows at most a day by default. A job that died is not run again within the period, unless
    /// an operator opens the lock.
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.params.at_least = Some(at_least);
        self
    }

    /// Sets the time after which the lock is released when this client's stream breaks, even if the
    /// lease is still valid. Frees the lock sooner after a crash, but a holder behind a broken
    /// network may overlap with the next one.
    pub fn disconnect_grace(mut self, grace: Duration) -> Self {
        self.params.disconnect_grace = Some(grace);
        self
    }

    /// Adds the lock to the lease of `held`, or re-enters a lock that the lease already has. Both
    /// guards are lost together. Each guard releases what its own call acquired.
    pub fn under(mut self, held: &Held) -> Self {
        self.under = Some(held.clone());
        self
    }

    /// Calls `hook` with the queue position, initially and after changes, at most once a second, and
    /// when the store rejects the call because it recovers.
    /// The hook runs while the acquire is polled.
    pub fn on_queue(mut self, hook: impl FnMut(&QueuePosition) + Send + 'static) -> Self {
        self.on_queue = Some(Box::new(hook));
        self
    }

    /// Makes [`try_acquire`](Self::try_acquire) try up to `attempts` times, with pauses of `every`
    /// plus or minus a quarter. Waiting in the queue with [`acquire`](Self::acquire) is fair and
    /// faster.
    pub fn attempts(mut self, attempts: u32, every: Duration) -> Self {
        self.attempts = (attempts.max(1), every);
        self
    }

    /// Acquires the lock, waiting in its queue.
    ///
    /// # Errors
    /// [`Error::WaitTimeout`] if the lock was held for the whole of [`wait`](Self::wait), with the
    /// holders. [`Error::Unavailable`] up to 5 s later if no broker responded. Other variants for a
    /// rejected request.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue. A lock that is granted at that moment is released at
    /// once. If the connection is broken at that moment, the broker keeps the queue position for
    /// 6 s after the end of the connection, and a granted lock until its lease expires.
    pub async fn acquire(mut self) -> Result<Guard, Error> {
        let deadline = clock::now().saturating_add(self.wait);
        loop {
            let remaining = deadline.saturating_sub(clock::now());
            match self.acquire_once(remaining.min(WAIT_MAX)).await {
                Err(Error::WaitTimeout(_)) if clock::now() < deadline => {}
                // A repeated call does not wait once the wait has ended, and is rejected as held.
                Err(Error::Held(contention)) if !self.wait.is_zero() => {
                    if clock::now() >= deadline {
                        return Err(Error::WaitTimeout(contention));
                    }
                }
                result => return result,
            }
        }
    }

    /// Acquires the lock if it is free. Returns `None` if another caller holds it, or it
    /// is closed.
    ///
    /// # Errors
    /// Every variant of [`Error`] except [`Error::Held`].
    ///
    /// # Cancel safety
    /// See [`acquire`](Self::acquire).
    pub async fn try_acquire(mut self) -> Result<Option<Guard>, Error> {
        let (attempts, every) = self.attempts;
        for attempt in 1.. {
            match self.acquire_once(Duration::ZERO).await {
                Ok(guard) => return Ok(Some(guard)),
                Err(Error::Held(_)) if attempt < attempts => {
                    let pause = every.mul_f64(rand::thread_rng().gen_range(0.75..1.25));
                    self.client.runtime.sleep(pause).await;
                }
                Err(Error::Held(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Acquires the lock, runs `work` and releases the lock. If the lock is lost, the work is
    /// dropped at its current await.
    ///
    /// # Errors
    /// [`RunError::Lost`] if the lock was lost during the work; [`RunError::Acquire`] and
    /// [`RunError::Release`] for failures before and after it.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock.
    pub async fn run<T, F: Future<Output = T>>(
        self,
        work: impl FnOnce(Held) -> F,
    ) -> Result<T, RunError> {
        let guard = self.acquire().await?;
        let work = work(guard.held());
        let done = tokio::select! {
            // The loss is checked before each poll of the work.
            biased;
            reason = guard.lost() => return Err(reason.into()),
            output = work => output,
        };
        guard.release().await?;
        Ok(done)
    }

    fn map_targets(mut self, change: impl Fn(Target) -> Target) -> Self {
        let targets = self.params.targets.drain(..);
        let changed = targets.map(|target| change(Target::from_proto(target)).into_proto());
        self.params.targets = changed.collect();
        self
    }

    /// Sends one acquire with a new request id and waits for its result.
    async fn acquire_once(&mut self, wait: Duration) -> Result<Guard, Error> {
        let targets = self.params.targets.iter();
        let locks: Vec<_> = targets
            .map(|target| display_lock(&lock_ref(target)))
            .collect();
        let span = debug_span!("lock.acquire", ?locks, ?wait);
        let started_at = clock::now();
        let result = self.request(wait).instrument(span.clone()).await;
        telemetry::record_acquire(clock::now().saturating_sub(started_at), &result);
        span.in_scope(|| match &result {
            Ok(guard) => debug!(lease_id = guard.lease_id(), "granted"),
            Err(error) => debug!(%error, "not granted"),
        });
        result
    }

    async fn request(&mut self, wait: Duration) -> Result<Guard, Error> {
        let runtime = &self.client.runtime;
        let (commands, slot) = match &self.under {
            Some(held) => (held.session_access().0, None),
            None => runtime
                .pool
                .session_with_capacity()
                .map(|(commands, slot)| (commands, Some(slot)))?,
        };
        let (reply, mut response) = oneshot::channel();
        let (position, mut positions) = queue_position_channel();
        self.params.request_id = Uuid::new_v4().to_string();
        self.params.traceparent = telemetry::traceparent();
        let command = AcquireCommand {
            params: self.params.clone(),
            slot,
            under: self.under.clone(),
            wait,
            position,
            reply,
            commands: commands.clone(),
            runtime: runtime.clone(),
        };
        let request_id = self.params.request_id.clone();
        let sent = commands.send(Command::Acquire(Box::new(command)));
        sent.map_err(|_| Error::Closed)?;
        let mut cancel_on_drop = CancelOnDrop {
            commands,
            request_id,
            is_complete: false,
        };
        let notify = async {
            positions.notify(&mut self.on_queue).await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            result = &mut response => {
                cancel_on_drop.is_complete = true;
                result.unwrap_or(Err(Error::Closed))
            }
            never = notify => never,
        }
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if !self.is_complete {
            let request_id = std::mem::take(&mut self.request_id);
            // A session task that has ended has cancelled all its acquires.
            let _ = self.commands.send(Command::Cancel { request_id });
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("targets", &self.params.targets)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
