//! Durations in milliseconds, and times since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the whole milliseconds of a duration, at most `u64::MAX`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time from the beginning of 1970 to `at`, or zero if `at` is earlier.
pub(crate) fn unix_time(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the current time in milliseconds since 1970.
pub(crate) fn now_unix_millis() -> u64 {
    millis(unix_time(SystemTime::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_outside_the_range_are_clamped() {
        assert_eq!(millis(Duration::from_micros(1_999)), 1);
        assert_eq!(millis(Duration::MAX), u64::MAX);
        let second = Duration::from_secs(1);
        assert_eq!(unix_time(UNIX_EPOCH + second), second);
        assert_eq!(unix_time(UNIX_EPOCH - second), Duration::ZERO);
    }
}
