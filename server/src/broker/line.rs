//! Looks after one lock that has waiters here: touches it in time, and tells what that shows.

use std::time::Duration;

use rand::Rng as _;
use tokio::time::Instant;

use super::{Broker, in_turn};
use crate::{lock::LockKey, store::Touched, waiters::Signal};

/// Shorter than the store's expiry of the shortest lease, so that every expiry of a holder is known
/// before it comes.
const TOUCH_INTERVAL: Duration = Duration::from_millis(1_000);
/// More lines than this in a second are touched less often each, at the most in this interval: after 6 s
/// without a touch the store takes the broker for silent.
const TOUCHES_PER_S: f64 = 5_000.0;
const TOUCH_INTERVAL_MAX: Duration = Duration::from_millis(4_000);
/// The store's clock and ours tick apart: look just after the event.
const AFTER_EVENT: Duration = Duration::from_millis(5);

impl Broker {
    /// Says when the lock may become free by itself, and has its line looked after from now on.
    pub(super) fn expect(&self, lock: &LockKey, next_event_ms: u64) {
        if self.waiters.touch_by(lock, self.touch_at(next_event_ms)) {
            self.tasks.spawn(self.clone().keep_line(lock.clone()));
        }
    }

    /// Looks at the lock for those who are told their place, unless somebody has just done so.
    pub(super) async fn look(&self, lock: &LockKey) {
        if self.waiters.look_due(lock) {
            self.look_now(lock).await;
        }
    }

    async fn look_now(&self, lock: &LockKey) {
        // A failed look is repaired by the next.
        if let Ok(Some(state)) = self.store.get(lock).await {
            self.waiters.looked(lock, state);
        }
    }

    /// The same, without waiting for the store.
    pub(super) fn look_soon(&self, lock: &LockKey) {
        if self.waiters.look_due(lock) {
            let (broker, lock) = (self.clone(), lock.clone());
            self.tasks
                .spawn(async move { broker.look_now(&lock).await });
        }
    }

    /// Runs while calls wait for the lock, also during a drain: those on streams wait on until their
    /// clients have moved.
    async fn keep_line(self, lock: LockKey) {
        while self.waiters.touch_due(&lock, || self.touch_at(0)).await {
            let Ok(turn) = self.touches.acquire().await else {
                return;
            };
            // A failed touch is repaired by the next; the store's own log tells of the failure.
            if let Ok(touched) = in_turn(turn, self.store.touch(&lock)).await {
                self.pass_on(&lock, &touched);
                self.look(&lock).await;
            }
        }
    }

    fn pass_on(&self, lock: &LockKey, touched: &Touched) {
        for held in &touched.held {
            let signal = Signal::HandOff {
                fencing_token: held.fencing_token,
                provisional: held.provisional,
                sent: None,
                told: Instant::now(),
            };
            self.waiters.hand_off(lock, held.request, signal);
        }
        if touched.rejoin {
            self.waiters.rejoin(lock);
        }
        self.waiters.in_era(lock, touched.era.clone());
        self.waiters
            .touch_by(lock, self.touch_at(touched.next_event_ms));
    }

    /// At the event, or after the interval give or take a fifth, whichever is first.
    fn touch_at(&self, next_event_ms: u64) -> Instant {
        let interval = touch_interval(self.waiters.lines_kept());
        let interval = interval.mul_f64(rand::thread_rng().gen_range(0.8..1.2));
        let event = Duration::from_millis(next_event_ms) + AFTER_EVENT;
        Instant::now()
            + if next_event_ms == 0 {
                interval
            } else {
                interval.min(event)
            }
    }
}

fn touch_interval(lines: usize) -> Duration {
    let lines = u32::try_from(lines).unwrap_or(u32::MAX);
    let by_rate = Duration::from_secs_f64(f64::from(lines) / TOUCHES_PER_S);
    by_rate.clamp(TOUCH_INTERVAL, TOUCH_INTERVAL_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::sleep;

    use super::*;
    use crate::{
        broker::{TOUCHES, TURN_MAX},
        store::stub::{Stub, acquire, lock},
    };

    #[tokio::test(start_paused = true)]
    async fn so_many_locks_are_touched_at_once() {
        const NEXT_EVENT_MS: u64 = 1;
        let store = Arc::new(Stub::default());
        let broker = Broker::alone(store.clone());
        let calls = (0..=TOUCHES).map(|number| acquire(&lock(&number.to_string()), number));
        let waiting: Vec<_> = calls
            .map(|call| {
                let registration = broker.waiters.register(&call);
                broker.expect(&call.lock, NEXT_EVENT_MS);
                registration
            })
            .collect();
        sleep(2 * AFTER_EVENT).await;
        assert_eq!(store.asked(), TOUCHES);
        sleep(TURN_MAX).await;
        assert_eq!(store.asked(), waiting.len(), "late ones let others pass");
    }

    #[test]
    fn the_touch_interval_grows_with_the_number_of_queues_up_to_four_seconds() {
        let seconds = |lines| touch_interval(lines).as_secs_f64();
        assert_eq!([0, 5_000, 10_000].map(seconds), [1.0, 1.0, 2.0]);
        // Give or take a fifth, that is within the 6 s of a silent broker.
        assert_eq!(seconds(1_000_000), 4.0);
    }
}
