//! The referee's clock: CLOCK_BOOTTIME, one for every process of a host, running through suspend.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot.
#[must_use]
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("time since boot is not negative");
    let nanos = u32::try_from(now.tv_nsec).expect("nanoseconds below 1e9");
    Duration::new(seconds, nanos)
}
