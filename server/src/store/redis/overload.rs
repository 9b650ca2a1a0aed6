//! Detection of an overloaded server: one that replies, but to commands that have waited for long.

use std::{
    array::from_fn,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::time::millis;

/// Wait of a command for its reply from which on the server is overloaded.
const OVERLOAD_WAIT: Duration = Duration::from_millis(200);
/// Time in which commands that begin are counted together.
const INTERVAL_MS: u64 = 25;
/// Number of intervals. Together they are longer than any command of a call waits.
const INTERVALS: usize = 64;

/// Detects an overload of one server. A server that did not reply for [`OVERLOAD_WAIT`] is not
/// overloaded but unreachable, or was stopped, and becomes overloaded only [`OVERLOAD_WAIT`] after
/// it replies again: until then the commands wait for what happened before.
pub(super) struct OverloadDetector {
    started_at: Instant,
    /// Numbers of commands without a reply, by the interval in which they began.
    unanswered: [AtomicU32; INTERVALS],
    /// Time of the last reply, in milliseconds since `started_at`.
    last_reply_ms: AtomicU64,
    /// Begin of the time in which the server replies without a long pause, in milliseconds since
    /// `started_at`.
    replies_since_ms: AtomicU64,
}

/// A command that waits for its reply until this is dropped.
pub(super) struct UnansweredCommand<'a>(&'a AtomicU32);

impl OverloadDetector {
    pub(super) fn new() -> Self {
        Self {
            started_at: Instant::now(),
            unanswered: from_fn(|_| AtomicU32::new(0)),
            last_reply_ms: AtomicU64::new(0),
            replies_since_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn begin_command(&self) -> UnansweredCommand<'_> {
        let counter = self.counter(self.now_ms() / INTERVAL_MS);
        counter.fetch_add(1, Ordering::Relaxed);
        UnansweredCommand(counter)
    }

    pub(super) fn record_reply(&self) {
        let now_ms = self.now_ms();
        let last_reply_ms = self.last_reply_ms.fetch_max(now_ms, Ordering::Relaxed);
        if now_ms.saturating_sub(last_reply_ms) >= millis(OVERLOAD_WAIT) {
            self.replies_since_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
    }

    /// Returns true if the server has replied throughout the last [`OVERLOAD_WAIT`], and a command
    /// has waited for its reply for longer.
    pub(super) fn is_overloaded(&self) -> bool {
        let (now_ms, wait_ms) = (self.now_ms(), millis(OVERLOAD_WAIT));
        let since = |ms: &AtomicU64| now_ms.saturating_sub(ms.load(Ordering::Relaxed));
        since(&self.last_reply_ms) < wait_ms
            && since(&self.replies_since_ms) >= wait_ms
            && self.has_command_before(now_ms)
    }

    /// Returns true if a command without a reply began in an interval that ended [`OVERLOAD_WAIT`]
    /// before `now_ms`.
    fn has_command_before(&self, now_ms: u64) -> bool {
        let oldest = (now_ms / INTERVAL_MS + 1).saturating_sub(INTERVALS as u64);
        let end = now_ms.saturating_sub(millis(OVERLOAD_WAIT)) / INTERVAL_MS;
        (oldest..end).any(|interval| self.counter(interval).load(Ordering::Relaxed) > 0)
    }

    fn counter(&self, interval: u64) -> &AtomicU32 {
        &self.unanswered[(interval % INTERVALS as u64) as usize]
    }

    fn now_ms(&self) -> u64 {
        millis(self.started_at.elapsed())
    }
}

impl Drop for UnansweredCommand<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const HALF: Duration = OVERLOAD_WAIT.checked_div(2).expect("not by zero");

    /// Lets `wait` pass, in which the server replies every half [`OVERLOAD_WAIT`].
    async fn replies_for(detector: &OverloadDetector, wait: Duration) {
        let mut left = wait;
        while !left.is_zero() {
            advance(left.min(HALF)).await;
            left = left.saturating_sub(HALF);
            detector.record_reply();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_command_without_a_reply_counts() {
        let detector = OverloadDetector::new();
        let all_intervals = Duration::from_millis(INTERVALS as u64 * INTERVAL_MS);
        replies_for(&detector, 2 * all_intervals).await;
        let first = detector.begin_command();
        replies_for(&detector, OVERLOAD_WAIT).await;
        let second = detector.begin_command();
        assert!(!detector.is_overloaded());
        replies_for(&detector, 2 * Duration::from_millis(INTERVAL_MS)).await;
        assert!(detector.is_overloaded());
        drop(first);
        assert!(!detector.is_overloaded());
        replies_for(&detector, OVERLOAD_WAIT).await;
        assert!(detector.is_overloaded());
        drop(second);
        assert!(!detector.is_overloaded());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_silent_is_not_overloaded() {
        let detector = OverloadDetector::new();
        let _command = detector.begin_command();
        advance(2 * OVERLOAD_WAIT).await;
        assert!(!detector.is_overloaded(), "without replies");
        replies_for(&detector, OVERLOAD_WAIT).await;
        assert!(!detector.is_overloaded(), "until it has replied again");
        replies_for(&detector, OVERLOAD_WAIT).await;
        assert!(detector.is_overloaded());
    }
}
