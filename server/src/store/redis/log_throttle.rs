//! Throttled log of a server's error replies: each kind at most once a minute, however many calls
//! receive it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const LOG_INTERVAL: Duration = Duration::from_secs(60);
const ERRORS_MAX: usize = 100;

/// The error replies that were logged, with the time of each.
#[derive(Debug, Default)]
pub(super) struct LogThrottle(Mutex<Vec<LoggedError>>);

#[derive(Debug)]
struct LoggedError {
    kind: &'static str,
    subject: String,
    logged_at: Instant,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns the number of suppressed entries since the last logged one, or `None` if this one is
    /// suppressed as well.
    pub(super) fn should_log(&self, kind: &'static str, about: &str) -> Option<u64> {
        self.should_log_at(Instant::now(), kind, about)
    }

    fn should_log_at(&self, now: Instant, kind: &'static str, about: &str) -> Option<u64> {
        let mut errors = self.0.lock();
        let is_same = |error: &&mut LoggedError| error.kind == kind && error.subject == about;
        if let Some(error) = errors.iter_mut().find(is_same) {
            error.suppressed += 1;
            if now < error.logged_at + LOG_INTERVAL {
                return None;
            }
            error.logged_at = now;
            return Some(std::mem::take(&mut error.suppressed) - 1);
        }
        if errors.len() == ERRORS_MAX {
            errors.retain(|error| now < error.logged_at + LOG_INTERVAL);
        }
        if errors.len() == ERRORS_MAX {
            return None;
        }
        errors.push(LoggedError {
            kind,
            subject: about.to_owned(),
            logged_at: now,
            suppressed: 0,
        });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_logged_once_per_interval() {
        let throttle = LogThrottle::default();
        let (now, later) = (Instant::now(), Instant::now() + LOG_INTERVAL);
        assert_eq!(throttle.should_log_at(now, "one", ""), Some(0));
        for _ in 0..9 {
            assert_eq!(throttle.should_log_at(now, "one", ""), None);
        }
        assert_eq!(throttle.should_log_at(now, "other", ""), Some(0));
        assert_eq!(throttle.should_log_at(now, "one", "a lock"), Some(0));
        assert_eq!(throttle.should_log_at(later, "one", ""), Some(9));
        assert_eq!(throttle.should_log_at(later, "one", ""), None);
    }

    #[test]
    fn a_storm_of_different_errors_is_logged_in_part() {
        let throttle = LogThrottle::default();
        let logged = |at| {
            let locks = (0..10_000).map(|lock| format!("lock {lock}"));
            let logged_locks = locks.filter_map(|lock| throttle.should_log_at(at, "one", &lock));
            logged_locks.count()
        };
        let now = Instant::now();
        assert_eq!((logged(now), logged(now)), (ERRORS_MAX, 0));
        assert_eq!(logged(now + LOG_INTERVAL), ERRORS_MAX);
    }
}
