//! Polling of one lock that has waiters at this broker: touches the lock in time and forwards the
//! result.

use std::time::Duration;

use tokio::time::Instant;

use super::Signal;
use crate::{
    broker::{Broker, PERMIT_HOLD_MAX, with_permit},
    lock::LockKey,
    store::Touched,
};

/// Interval between touches. Shorter than the expiry of the shortest lease, so that a touch reports
/// each grant before it expires.
const TOUCH_INTERVAL: Duration = Duration::from_millis(1_000);
/// Maximum rate of touches. With more queues the interval grows up to [`TOUCH_INTERVAL_MAX`],
/// because the store treats a broker as silent after 6 s without a touch.
const TOUCHES_PER_S: f64 = 5_000.0;
const TOUCH_INTERVAL_MAX: Duration = Duration::from_millis(4_000);
/// Delay after an expected event, because the clocks of the store and of the broker differ
/// slightly.
const EVENT_DELAY: Duration = Duration::from_millis(5);

impl Broker {
    /// Schedules a touch for the time at which the lock can become free without a release, or for
    /// the end of the touch interval, whichever is earlier. Starts the task that polls the queue of
    /// the lock, unless it is running.
    pub(in crate::broker) fn schedule_touch(&self, lock: &LockKey, next_event_ms: Option<u64>) {
        let interval = self.touch_interval();
        let event = next_event_ms.map(|ms| Duration::from_millis(ms) + EVENT_DELAY);
        let touch_at = Instant::now() + event.map_or(interval, |event| interval.min(event));
        if self.waiters.schedule_touch(lock, touch_at) {
            self.tasks.spawn(self.clone().poll_queue(lock.clone()));
        }
    }

    /// Reads a snapshot of the lock for calls that receive queue updates, unless the last one is
    /// recent.
    pub(in crate::broker) async fn refresh_snapshot(&self, lock: &LockKey) {
        if self.waiters.snapshot_due(lock) {
            self.snapshot_now(lock).await;
        }
    }

    async fn snapshot_now(&self, lock: &LockKey) {
        // Errors are ignored: the next snapshot replaces this one.
        if let Ok(Some(state)) = self.store.get(lock).await {
            self.waiters.publish_snapshot(lock, state);
        }
    }

    /// Reads a snapshot like [`Self::refresh_snapshot`], in a background task.
    pub(in crate::broker) fn snapshot_soon(&self, lock: &LockKey) {
        if self.waiters.snapshot_due(lock) {
            let (broker, lock) = (self.clone(), lock.clone());
            self.tasks
                .spawn(async move { broker.snapshot_now(&lock).await });
        }
    }

    /// Runs while calls wait for the lock. Continues during a drain, because calls on streams wait
    /// until their clients have moved.
    async fn poll_queue(self, lock: LockKey) {
        while self
            .waiters
            .wait_until_touch_due(&lock, self.touch_interval())
            .await
        {
            let Ok(permit) = self.touch_permits.acquire().await else {
                return;
            };
            let sent_at = Instant::now();
            // Errors are ignored: the store logs them, and the next touch repairs the state.
            let touch = self.store.touch(&lock);
            if let Ok(touched) = with_permit(permit, PERMIT_HOLD_MAX, touch).await {
                self.apply_touch(&lock, sent_at, touched);
                self.refresh_snapshot(&lock).await;
            }
        }
    }

    fn apply_touch(&self, lock: &LockKey, sent_at: Instant, touched: Touched) {
        for held in touched.held {
            let signal = Signal::HandOff {
                fencing_token: held.fencing_token,
                limit: held.limit,
                provisional: held.is_provisional,
                sent: None,
                received_at: Instant::now(),
            };
            self.waiters.hand_off(lock, held.request, signal);
        }
        if touched.rejoin {
            self.waiters.rejoin(lock);
        }
        self.waiters.record_touch(lock, sent_at, touched.era);
        self.schedule_touch(lock, touched.next_event_ms);
    }

    /// Returns the interval between two touches of a lock, with a jitter of ±20 %.
    fn touch_interval(&self) -> Duration {
        let interval = touch_interval(self.waiters.queue_count());
        interval.mul_f64(self.random.number(0.8..1.2))
    }
}

fn touch_interval(queues: usize) -> Duration {
    let queues = u32::try_from(queues).unwrap_or(u32::MAX);
    let interval = Duration::from_secs_f64(f64::from(queues) / TOUCHES_PER_S);
    interval.clamp(TOUCH_INTERVAL, TOUCH_INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{task::JoinHandle, time::sleep};

    use super::*;
    use crate::{
        broker::TOUCHES_IN_FLIGHT_MAX,
        lock::{
            AcquireCall, EXCLUSIVE_WEIGHT, FencingToken, Lease, LockFailure, RequestId, Target, Ttl,
        },
        store::stub::{StubStore, acquire, lock},
    };

    const WAIT_MS: u64 = 60_000;

    #[tokio::test(start_paused = true)]
    async fn concurrent_touches_are_bounded() {
        const NEXT_EVENT_MS: Option<u64> = Some(1);
        let store = Arc::new(StubStore::default());
        let broker = Broker::unlimited(store.clone());
        let calls =
            (0..=TOUCHES_IN_FLIGHT_MAX).map(|number| acquire(&lock(&number.to_string()), number));
        let registrations: Vec<_> = calls
            .map(|call| {
                let registration = broker.waiters.register(&call);
                broker.schedule_touch(&call.lock, NEXT_EVENT_MS);
                registration
            })
            .collect();
        sleep(2 * EVENT_DELAY).await;
        assert_eq!(store.commands_sent(), TOUCHES_IN_FLIGHT_MAX);
        sleep(PERMIT_HOLD_MAX).await;
        assert_eq!(
            store.commands_sent(),
            registrations.len(),
            "late ones let others pass"
        );
    }

    /// A grant whose notification was lost is reported by touches until it expires.
    #[tokio::test(start_paused = true)]
    async fn calls_are_repeated_if_a_grant_may_have_expired_between_touches() {
        for (touch_duration, is_repeated) in [(10, false), (2_000, true)] {
            let store = Arc::new(StubStore::queueing(Duration::from_millis(touch_duration)));
            let broker = Broker::unlimited(store.clone());
            let waiting = spawn_acquire(&broker);
            sleep(Duration::from_secs(10)).await;
            assert_eq!(store.rejoins_sent() > 0, is_repeated, "{touch_duration} ms");
            waiting.abort();
        }
    }

    /// After the first repeated call another call of this broker may have joined the queue, so that
    /// the store does not ask for repeats any longer.
    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_queue_position_is_repeated_until_it_has_a_reply() {
        let store = Arc::new(StubStore::queueing(Duration::from_millis(10)));
        let broker = Broker::unlimited(store.clone());
        let waiting = spawn_acquire(&broker);
        sleep(Duration::from_secs(1)).await;
        store.lose_rejoins(3);
        broker.waiters.rejoin(&lock("a"));
        sleep(Duration::from_secs(20)).await;
        assert_eq!(store.rejoins_sent(), 4);
        waiting.abort();
    }

    /// Several signals may be queued, and each repeat may last until the deadline of a command.
    #[tokio::test(start_paused = true)]
    async fn a_call_is_not_repeated_after_its_wait() {
        let store = Arc::new(StubStore::queueing(Duration::from_millis(10)));
        let broker = Broker::unlimited(store.clone());
        let waiting = spawn_acquire(&broker);
        sleep(Duration::from_millis(WAIT_MS - 500)).await;
        store.lose_rejoins(usize::MAX);
        (0..8).for_each(|_| broker.waiters.rejoin(&lock("a")));
        sleep(Duration::from_secs(20)).await;
        assert_eq!(store.rejoins_sent(), 1);
        waiting.abort();
    }

    /// While replies are lost, the next signal has arrived when a repeat ends.
    #[tokio::test(start_paused = true)]
    async fn a_call_is_not_repeated_when_its_caller_has_gone_or_its_broker_drains() {
        for is_drained in [false, true] {
            let store = Arc::new(StubStore::queueing(Duration::from_millis(10)));
            let broker = Broker::unlimited(store.clone());
            let waiting = spawn_acquire(&broker);
            sleep(Duration::from_secs(1)).await;
            store.lose_rejoins(usize::MAX);
            (0..8).for_each(|_| broker.waiters.rejoin(&lock("a")));
            sleep(Duration::from_millis(500)).await;
            match is_drained {
                true => broker.draining.cancel(),
                false => waiting.abort(),
            }
            sleep(Duration::from_secs(20)).await;
            assert_eq!(store.rejoins_sent(), 1, "drained: {is_drained}");
        }
    }

    /// Each touch reports the hand-off again until it is claimed.
    #[tokio::test(start_paused = true)]
    async fn a_call_claims_at_most_once_after_its_wait() {
        let store = Arc::new(StubStore::queueing(Duration::from_millis(10)));
        let broker = Broker::unlimited(store.clone());
        let request_id = RequestId::random();
        let request = request_id.hash();
        let waiting = spawn_acquire_as(&broker, request_id);
        sleep(Duration::from_millis(WAIT_MS - 500)).await;
        for _ in 0..4 {
            let hand_off = Signal::HandOff {
                fencing_token: FencingToken::after(1, 0),
                limit: EXCLUSIVE_WEIGHT,
                provisional: true,
                sent: None,
                received_at: Instant::now(),
            };
            broker.waiters.hand_off(&lock("a"), request, hand_off);
        }
        sleep(Duration::from_secs(20)).await;
        assert_eq!(store.claims_sent(), 1);
        waiting.abort();
    }

    /// Spawns a call that waits for the lock `a`.
    fn spawn_acquire(broker: &Broker) -> JoinHandle<Result<Lease, LockFailure>> {
        spawn_acquire_as(broker, RequestId::random())
    }

    fn spawn_acquire_as(
        broker: &Broker,
        request_id: RequestId,
    ) -> JoinHandle<Result<Lease, LockFailure>> {
        let command = acquire(&lock("a"), 0);
        let call = AcquireCall {
            targets: vec![Target {
                lock: command.lock,
                mode: command.mode,
            }],
            under: None,
            owner: command.owner,
            ttl: Ttl::from_stored(2_000),
            options: command.options,
            wait_ms: WAIT_MS,
            request_id,
            arguments: command.arguments,
        };
        let (broker, tasks) = (broker.clone(), broker.tasks.clone());
        tasks.spawn(async move { broker.acquire(&Arc::default(), call).await })
    }

    #[test]
    fn the_touch_interval_grows_with_the_number_of_queues_up_to_four_seconds() {
        let seconds = |queues| touch_interval(queues).as_secs_f64();
        assert_eq!([0, 5_000, 10_000].map(seconds), [1.0, 1.0, 2.0]);
        // With the jitter of ±20 % this is below the 6 s after which a broker is silent.
        assert_eq!(seconds(1_000_000), 4.0);
    }
}
