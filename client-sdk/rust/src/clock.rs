//! A clock for the validity of leases. It runs through a suspend of the machine, which
//! `std::time::Instant` does not (rust-lang/rust#87906).

use std::time::Duration;

/// Returns the time since a fixed moment in the past.
#[cfg(target_os = "linux")]
pub(crate) fn now() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Returns the time since a fixed moment in the past.
#[cfg(not(target_os = "linux"))]
#[expect(
    clippy::disallowed_types,
    reason = "the one place where the two clocks are compared"
)]
pub(crate) fn now() -> Duration {
    use std::{
        sync::{Mutex, OnceLock, PoisonError},
        time::{Instant, SystemTime},
    };

    static CLOCK: OnceLock<Mutex<(Instant, SystemTime, SuspendAwareClock)>> = OnceLock::new();
    let new_clock = || {
        Mutex::new((
            Instant::now(),
            SystemTime::now(),
            SuspendAwareClock::default(),
        ))
    };
    let clock = CLOCK.get_or_init(new_clock).lock();
    let mut clock = clock.unwrap_or_else(PoisonError::into_inner);
    let (monotonic, wall) = (clock.0.elapsed(), clock.1.elapsed());
    clock.2.advance(monotonic, wall.unwrap_or_default())
}

/// A clock for systems on which no clock runs through a suspend. Each reading adds the larger of
/// the steps of the monotonic and the wall clock since the previous reading. The clock never goes
/// back and is never slower than the monotonic clock, whatever the wall clock is set to. A wall
/// clock that is set ahead ends validity early.
#[cfg(any(test, not(target_os = "linux")))]
#[derive(Debug, Default)]
struct SuspendAwareClock {
    monotonic: Duration,
    wall: Duration,
    total: Duration,
}

#[cfg(any(test, not(target_os = "linux")))]
impl SuspendAwareClock {
    fn advance(&mut self, monotonic: Duration, wall: Duration) -> Duration {
        let steps = [
            monotonic.saturating_sub(self.monotonic),
            wall.saturating_sub(self.wall),
        ];
        (self.monotonic, self.wall) = (monotonic, wall);
        self.total += steps[0].max(steps[1]);
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_suspend_counts_though_the_monotonic_clock_stood_still() {
        let mut clock = SuspendAwareClock::default();
        assert_eq!(clock.advance(secs(1), secs(1)), secs(1));
        assert_eq!(clock.advance(secs(1), secs(301)), secs(301));
    }

    #[test]
    fn a_wall_clock_set_back_does_not_stop_it() {
        let mut clock = SuspendAwareClock::default();
        assert_eq!(clock.advance(secs(1), secs(3_601)), secs(3_601));
        assert_eq!(clock.advance(secs(2), secs(2)), secs(3_602));
        assert_eq!(clock.advance(secs(3), secs(3)), secs(3_603));
    }

    #[test]
    fn the_clock_advances() {
        let earlier = now();
        assert!(now() >= earlier && earlier > Duration::ZERO);
    }
}
