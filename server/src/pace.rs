//! How often something may happen: some at once, and so many a second for ever (the generic cell rate
//! algorithm of ITU-T I.371).

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Below so many keys nothing is forgotten.
const KEYS_LEAST: usize = 1_024;

/// A rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    every: Duration,
    ahead_most: Duration,
}

/// The same rate for each key by itself.
#[derive(Debug)]
pub(crate) struct Paces<K> {
    /// From when on each could keep its rate.
    due: HashMap<K, Instant>,
    forget_at: usize,
}

impl Pace {
    /// So many a second, at least one, and `burst` of them at once.
    pub(crate) const fn per_second(rate: u32, burst: u32) -> Self {
        let rate = if rate == 0 { 1 } else { rate };
        let every_ns = 1_000_000_000 / rate as u64;
        Self {
            every: Duration::from_nanos(every_ns),
            ahead_most: Duration::from_nanos(every_ns * burst as u64),
        }
    }

    /// One more happens, unless it is too early by the duration returned.
    pub(crate) fn take(self, due: &mut Instant) -> Result<(), Duration> {
        let now = Instant::now();
        let next = (*due).max(now) + self.every;
        let early = (next - now).saturating_sub(self.ahead_most);
        if early > Duration::ZERO {
            return Err(early);
        }
        *due = next;
        Ok(())
    }
}

impl<K> Default for Paces<K> {
    fn default() -> Self {
        Self {
            due: HashMap::new(),
            forget_at: KEYS_LEAST,
        }
    }
}

impl<K: Eq + Hash> Paces<K> {
    /// One more of this key happens, unless it is too early by the duration returned.
    pub(crate) fn take(&mut self, pace: Pace, key: K) -> Result<(), Duration> {
        let now = Instant::now();
        if self.due.len() >= self.forget_at {
            self.due.retain(|_, due| *due > now);
            self.forget_at = (self.due.len() * 2).max(KEYS_LEAST);
        }
        pace.take(self.due.entry(key).or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_the_rate() {
        let (mut paces, pace) = (Paces::default(), Pace::per_second(10, 3));
        let count = |paces: &mut Paces<_>| {
            let taken = (0..100).take_while(|_| paces.take(pace, "a").is_ok());
            taken.count()
        };
        assert_eq!(count(&mut paces), 3);
        paces.take(pace, "b").expect("another key");
        let early = paces.take(pace, "a").expect_err("too early");
        assert_eq!(early, Duration::from_millis(100));
        advance(early).await;
        assert_eq!(count(&mut paces), 1);
        advance(Duration::from_secs(60)).await;
        assert_eq!(count(&mut paces), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_quiet_are_forgotten() {
        let (mut paces, pace) = (Paces::default(), Pace::per_second(10, 3));
        for key in 0..KEYS_LEAST * 10 {
            paces.take(pace, key).expect("the first of its key");
            advance(Duration::from_millis(1)).await;
        }
        assert!(paces.due.len() <= KEYS_LEAST, "{}", paces.due.len());
    }
}
