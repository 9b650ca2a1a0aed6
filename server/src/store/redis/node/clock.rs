//! Estimate of the server's clock.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// Estimate of the server's clock: its last TIME plus the time that has passed here since.
pub(super) struct Clock {
    origin: Instant,
    offset_ms: AtomicU64,
}

impl Clock {
    pub(super) fn starting_at(now_ms: u64) -> Self {
        Self {
            origin: Instant::now(),
            offset_ms: AtomicU64::new(now_ms),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.offset_ms.load(Ordering::Relaxed) + self.elapsed_ms()
    }

    pub(super) fn now_us(&self) -> u64 {
        let elapsed_us = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX / 2);
        self.offset_ms.load(Ordering::Relaxed) * 1_000 + elapsed_us
    }

    pub(super) fn at_least(&self, now_ms: u64) {
        let offset_ms = now_ms.saturating_sub(self.elapsed_ms());
        self.offset_ms.fetch_max(offset_ms, Ordering::Relaxed);
    }

    pub(super) fn set(&self, now_ms: u64) {
        let offset_ms = now_ms.saturating_sub(self.elapsed_ms());
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_set_back_only_by_the_probe() {
        let clock = Clock::starting_at(1_000_000);
        clock.at_least(2_000_000);
        clock.at_least(1_500_000);
        assert!(clock.now_ms() >= 2_000_000);
        clock.set(1_000_000);
        assert!((1_000_000..1_100_000).contains(&clock.now_ms()));
    }
}
