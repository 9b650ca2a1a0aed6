//! Taking a lock.

use std::{fmt, time::Duration};

use leasehold_proto::v1::Owner;
use rand::Rng as _;
use tokio::sync::{oneshot, watch};
use tracing::{Instrument as _, debug, debug_span};
use uuid::Uuid;

use crate::{
    client::Client,
    clock,
    core::Orders,
    error::{Error, RunError},
    guard::{Guard, Held},
    order::{Ask, Call, Order},
    queue::Place,
    target::{Target, lock, shown},
    telemetry,
};

const WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// The longest wait that a broker allows; a longer one is several of these.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

type OnQueue = Box<dyn FnMut(&Place) + Send>;

/// A lock, or several, about to be taken. Made by [`Client::lock`] and [`Client::lock_all`].
#[must_use = "ends with acquire(), try_acquire() or run()"]
pub struct Lock {
    client: Client,
    call: Call,
    wait: Duration,
    attempts: (u32, Duration),
    under: Option<Held>,
    on_queue: Option<OnQueue>,
}

/// Tells the client's thread when the caller of an acquire is gone before its answer.
struct Caller {
    orders: Orders,
    request_id: String,
    is_answered: bool,
}

impl Lock {
    pub(crate) fn new(client: &Client, targets: Vec<Target>) -> Self {
        Self {
            client: client.clone(),
            call: Call {
                targets: targets.into_iter().map(Target::into_proto).collect(),
                owner: Owner::clone(&client.owner),
                ttl: None,
                request_id: String::new(),
                traceparent: String::new(),
                max_hold: None,
                lock_delay: None,
                disconnect_grace: None,
            },
            wait: WAIT_DEFAULT,
            attempts: (1, Duration::ZERO),
            under: None,
            on_queue: None,
        }
    }

    /// Together with others that share the lock.
    pub fn shared(self) -> Self {
        self.each(Target::shared)
    }

    /// So many permits of the `limit` that the lock has.
    pub fn permits(self, permits: u32, limit: u32) -> Self {
        self.each(|target| target.permits(permits, limit))
    }

    /// How long the lock can be trusted after each heartbeat, and so how long others wait when this
    /// process dies. 1 s to 60 s unless the broker says otherwise; default 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.call.ttl = Some(ttl);
        self
    }

    /// How long [`acquire`](Self::acquire) and [`run`](Self::run) wait in line; default 30 s. After
    /// each hour of a longer wait the place in line begins again at its end.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Why the lock is taken, for whoever finds it held. At most 512 bytes.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.call.owner.reason = reason.into();
        self
    }

    /// A label for lists and logs; at most 16.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.call.owner.labels.insert(key.into(), value.into());
        self
    }

    /// The longest the lock may be held in all; then it is lost with
    /// [`LostReason::MaxHold`](crate::LostReason::MaxHold).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.call.max_hold = Some(max_hold);
        self
    }

    /// Keeps the lock closed for so long after an expiry or revocation, at most 60 s; for resources
    /// that cannot check fencing tokens.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.call.lock_delay = Some(lock_delay);
        self
    }

    /// Frees the lock so long after this client's stream broke, even if this process may still trust
    /// it: faster after a crash, but a holder behind a broken network may overlap with the next one.
    pub fn disconnect_grace(mut self, grace: Duration) -> Self {
        self.call.disconnect_grace = Some(grace);
        self
    }

    /// Adds the lock to a lease that is held, or enters a lock once more that the lease has. Both
    /// guards are lost together; each gives back what it took itself.
    pub fn under(mut self, held: &Held) -> Self {
        self.under = Some(held.clone());
        self
    }

    /// Calls `hook` with the place in line, at first and when it changes, at most once a second. It
    /// is called while the acquire is polled, and ends with it.
    pub fn on_queue(mut self, hook: impl FnMut(&Place) + Send + 'static) -> Self {
        self.on_queue = Some(Box::new(hook));
        self
    }

    /// Has [`try_acquire`](Self::try_acquire) try up to `attempts` times, `every` so often give or
    /// take a quarter. Waiting in line, as [`acquire`](Self::acquire) does, is fair and faster.
    pub fn attempts(mut self, attempts: u32, every: Duration) -> Self {
        self.attempts = (attempts.max(1), every);
        self
    }

    /// Takes the lock, waiting in line.
    ///
    /// # Errors
    /// [`Error::WaitTimeout`] if it was held for all of [`wait`](Self::wait), by whom it says;
    /// [`Error::Unavailable`] up to 5 s after that if no broker could answer.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line. A lock that was granted at that moment is
    /// given back at once. If the connection is gone at that moment, too, the place in line is kept
    /// for 6 s after its end, and a lock until it runs out.
    pub async fn acquire(mut self) -> Result<Guard, Error> {
        let until = clock::now().saturating_add(self.wait);
        loop {
            let left = until.saturating_sub(clock::now());
            match self.ask(left.min(WAIT_MAX)).await {
                Err(Error::WaitTimeout(_)) if clock::now() < until => {}
                // A call that waited is repeated without a wait once its time is over.
                Err(Error::Held(busy)) if !self.wait.is_zero() => {
                    if clock::now() >= until {
                        return Err(Error::WaitTimeout(busy));
                    }
                }
                result => return result,
            }
        }
    }

    /// Takes the lock if it is free. `None`: somebody else has it.
    ///
    /// # Errors
    /// Everything but [`Error::Held`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(mut self) -> Result<Option<Guard>, Error> {
        let (attempts, every) = self.attempts;
        for attempt in 1.. {
            match self.ask(Duration::ZERO).await {
                Ok(guard) => return Ok(Some(guard)),
                Err(Error::Held(_)) if attempt < attempts => {
                    let pause = every.mul_f64(rand::thread_rng().gen_range(0.75..1.25));
                    self.client.core.sleep(pause).await;
                }
                Err(Error::Held(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes the lock, does the work and gives the lock back. When the lock is lost the work is
    /// dropped where it stands.
    ///
    /// # Errors
    /// [`RunError::Lost`] if the lock was lost while the work went on; the other variants say what
    /// failed before or after it.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back.
    pub async fn run<T, F: Future<Output = T>>(
        self,
        work: impl FnOnce(Held) -> F,
    ) -> Result<T, RunError> {
        let guard = self.acquire().await?;
        let work = work(guard.held());
        let done = tokio::select! {
            // Before each step of the work.
            biased;
            why = guard.lost() => return Err(why.into()),
            done = work => done,
        };
        guard.release().await?;
        Ok(done)
    }

    fn each(mut self, change: impl Fn(Target) -> Target) -> Self {
        let targets = self.call.targets.drain(..);
        let changed = targets.map(|target| change(Target::from_proto(target)).into_proto());
        self.call.targets = changed.collect();
        self
    }

    /// One call with a request id of its own.
    async fn ask(&mut self, wait: Duration) -> Result<Guard, Error> {
        let targets = self.call.targets.iter();
        let locks: Vec<_> = targets.map(|target| shown(&lock(target))).collect();
        let span = debug_span!("lock.acquire", ?locks, ?wait);
        let begun = clock::now();
        let result = self.call(wait).instrument(span.clone()).await;
        telemetry::waited(clock::now().saturating_sub(begun), &result);
        span.in_scope(|| match &result {
            Ok(guard) => debug!(lease_id = guard.lease_id(), "granted"),
            Err(error) => debug!(%error, "not granted"),
        });
        result
    }

    async fn call(&mut self, wait: Duration) -> Result<Guard, Error> {
        let core = &self.client.core;
        let (orders, slot) = match &self.under {
            Some(held) => (held.reach().0, None),
            None => core.place().map(|(orders, slot)| (orders, Some(slot)))?,
        };
        let (answer, mut answered) = oneshot::channel();
        let (place, mut places) = watch::channel(None);
        self.call.request_id = Uuid::new_v4().to_string();
        self.call.traceparent = telemetry::traceparent();
        let ask = Ask {
            call: self.call.clone(),
            slot,
            under: self.under.clone(),
            wait,
            place,
            answer,
            orders: orders.clone(),
            core: core.clone(),
        };
        let request_id = self.call.request_id.clone();
        let sent = orders.send(Order::Acquire(Box::new(ask)));
        sent.map_err(|_| Error::Closed)?;
        let mut caller = Caller {
            orders,
            request_id,
            is_answered: false,
        };
        loop {
            tokio::select! {
                biased;
                result = &mut answered => {
                    caller.is_answered = true;
                    return result.unwrap_or(Err(Error::Closed));
                }
                Ok(()) = places.changed() => {
                    self.queued(places.borrow_and_update().as_ref());
                }
            }
        }
    }

    fn queued(&mut self, place: Option<&Place>) {
        let Some(place) = place else { return };
        debug!(place.position, place.queue_length, "queued");
        if let Some(hook) = &mut self.on_queue {
            hook(place);
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.is_answered {
            let request_id = std::mem::take(&mut self.request_id);
            // A keeper that has ended has given everything up.
            let _ = self.orders.send(Order::Cancel { request_id });
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("targets", &self.call.targets)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
