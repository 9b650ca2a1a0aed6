//! The referee's clock: CLOCK_BOOTTIME, one for every process of a host, running through suspend.

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

/// How long reading two clocks takes at most, unless something interrupts it.
const READ_WITHIN: Duration = Duration::from_micros(100);

/// Time since boot.
#[must_use]
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("time since boot is not negative");
    let nanos = u32::try_from(now.tv_nsec).expect("nanoseconds below 1e9");
    Duration::new(seconds, nanos)
}

/// Converts a store's time, in microseconds since 1970, to time since boot. The store's wall clock must be
/// this host's.
///
/// The distance between the two clocks is measured once per process, so that converted times compare
/// exactly as the store's own.
#[must_use]
pub fn boottime_of(store_us: u64) -> Duration {
    static SINCE_1970: OnceLock<Duration> = OnceLock::new();
    let boot = *SINCE_1970.get_or_init(time_of_boot);
    Duration::from_micros(store_us).saturating_sub(boot)
}

/// Reads both clocks until nothing interrupts that.
fn time_of_boot() -> Duration {
    loop {
        let before = boottime();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        if boottime() - before < READ_WITHIN {
            return now.expect("it is later than 1970") - before;
        }
    }
}
