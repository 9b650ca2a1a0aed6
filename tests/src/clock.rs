//! The oracle's clock: CLOCK_BOOTTIME, which is the same for every process of a host, and includes
//! suspends.

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

/// Maximum time to read two clocks without an interruption.
const UNINTERRUPTED_READ_MAX: Duration = Duration::from_micros(100);

/// Returns the time since boot, including suspends.
#[must_use]
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("time since boot is not negative");
    let nanos = u32::try_from(now.tv_nsec).expect("nanoseconds below 1e9");
    Duration::new(seconds, nanos)
}

/// Converts a store's time, in microseconds since 1970, to time since boot. The store's wall clock
/// must be the clock of this host.
///
/// The distance between the two clocks is measured once per process, so that converted times
/// compare exactly as the store's own.
#[must_use]
pub fn boottime_from_store(store_us: u64) -> Duration {
    static WALL_CLOCK_AT_BOOT: OnceLock<Duration> = OnceLock::new();
    let boot = *WALL_CLOCK_AT_BOOT.get_or_init(wall_clock_at_boot);
    Duration::from_micros(store_us).saturating_sub(boot)
}

/// Returns the wall-clock time of the boot. Repeats the reading of both clocks until it is not
/// interrupted.
fn wall_clock_at_boot() -> Duration {
    loop {
        let before = boottime();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        if boottime() - before < UNINTERRUPTED_READ_MAX {
            return now.expect("it is later than 1970") - before;
        }
    }
}
