//! Rate limits (GCRA, the generic cell rate algorithm of ITU-T I.371), either single or keyed by
//! caller or address.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Number of keys below which idle keys are not removed.
const PRUNE_MIN_KEYS: usize = 1_024;

/// A sustained rate and a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimit {
    every: Duration,
    burst_window: Duration,
}

/// A rate limiter that applies the same limit to each key separately.
#[derive(Debug)]
pub(crate) struct KeyedRateLimiter<K> {
    /// Theoretical arrival time of the next event of each key, as GCRA defines it.
    arrival_times: HashMap<K, Instant>,
    prune_at: usize,
}

impl RateLimit {
    /// Creates a limit of `rate` events per second, at least one, with bursts of up to `burst`
    /// events.
    pub(crate) const fn per_second(rate: u32, burst: u32) -> Self {
        let rate = if rate == 0 { 1 } else { rate };
        let every_ns = 1_000_000_000 / rate as u64;
        Self {
            every: Duration::from_nanos(every_ns),
            burst_window: Duration::from_nanos(every_ns * burst as u64),
        }
    }

    /// Counts an event, unless it exceeds the limit. Otherwise returns the time until the limit
    /// allows the event. `arrival_time` is the theoretical arrival time of the next event.
    pub(crate) fn check(self, arrival_time: &mut Instant) -> Result<(), Duration> {
        let now = Instant::now();
        let next = (*arrival_time).max(now) + self.every;
        let retry_after = (next - now).saturating_sub(self.burst_window);
        if retry_after > Duration::ZERO {
            return Err(retry_after);
        }
        *arrival_time = next;
        Ok(())
    }
}

impl<K> Default for KeyedRateLimiter<K> {
    fn default() -> Self {
        Self {
            arrival_times: HashMap::new(),
            prune_at: PRUNE_MIN_KEYS,
        }
    }
}

impl<K: Eq + Hash> KeyedRateLimiter<K> {
    /// Counts an event of this key, unless it exceeds the limit. Otherwise returns the time until
    /// the limit allows the event.
    pub(crate) fn check(&mut self, limit: RateLimit, key: K) -> Result<(), Duration> {
        let now = Instant::now();
        if self.arrival_times.len() >= self.prune_at {
            self.arrival_times
                .retain(|_, arrival_time| *arrival_time > now);
            self.prune_at = (self.arrival_times.len() * 2).max(PRUNE_MIN_KEYS);
        }
        limit.check(self.arrival_times.entry(key).or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_the_rate() {
        let (mut limiter, limit) = (KeyedRateLimiter::default(), RateLimit::per_second(10, 3));
        let count = |limiter: &mut KeyedRateLimiter<_>| {
            let accepted = (0..100).take_while(|_| limiter.check(limit, "a").is_ok());
            accepted.count()
        };
        assert_eq!(count(&mut limiter), 3);
        limiter.check(limit, "b").expect("another key");
        let retry_after = limiter.check(limit, "a").expect_err("too early");
        assert_eq!(retry_after, Duration::from_millis(100));
        advance(retry_after).await;
        assert_eq!(count(&mut limiter), 1);
        advance(Duration::from_secs(60)).await;
        assert_eq!(count(&mut limiter), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_quiet_are_forgotten() {
        let (mut limiter, limit) = (KeyedRateLimiter::default(), RateLimit::per_second(10, 3));
        for key in 0..PRUNE_MIN_KEYS * 10 {
            limiter.check(limit, key).expect("the first of its key");
            advance(Duration::from_millis(1)).await;
        }
        assert!(
            limiter.arrival_times.len() <= PRUNE_MIN_KEYS,
            "{}",
            limiter.arrival_times.len()
        );
    }
}
