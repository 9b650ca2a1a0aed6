//! Validity of a lease, shared between its guards and the session task that renews it.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{clock, error::LostReason};

/// The validity of a lease. Latches: once ended, it never starts again, in any thread.
#[derive(Debug, Default)]
pub(crate) struct LeaseValidity {
    /// End of the validity on [`clock::now`], in nanoseconds; 0: ended, or not started.
    valid_until_ns: AtomicU64,
    /// TTL that the broker announced last, in nanoseconds.
    ttl_ns: AtomicU64,
    reason: OnceLock<LostReason>,
    ended: CancellationToken,
}

/// Returns the safety margin before the end of a validity, in which the guarded work can stop.
pub(crate) fn safety_margin(ttl: Duration) -> Duration {
    (ttl / 10).max(Duration::from_millis(500)).min(ttl / 4)
}

impl LeaseValidity {
    /// Starts the validity, before a guard exists.
    pub(crate) fn start(&self, valid_until: Duration, ttl: Duration) {
        self.ttl_ns.store(as_nanos(ttl), Ordering::Relaxed);
        self.valid_until_ns
            .store(validity_end_ns(valid_until, ttl), Ordering::SeqCst);
    }

    /// Extends the validity after a confirmed heartbeat. Returns false if the validity has ended
    /// before; then it stays ended.
    pub(crate) fn extend(&self, valid_until: Duration, ttl: Duration) -> bool {
        self.ttl_ns.store(as_nanos(ttl), Ordering::Relaxed);
        let new_ns = validity_end_ns(valid_until, ttl);
        let mut valid_until_ns = self.latched_valid_until_ns();
        while valid_until_ns > 0 {
            // Fails if another thread found the validity ended since the clock was read.
            let extended = self.valid_until_ns.compare_exchange(
                valid_until_ns,
                valid_until_ns.max(new_ns),
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if extended.is_ok() {
                return true;
            }
            valid_until_ns = self.latched_valid_until_ns();
        }
        false
    }

    /// Ends the validity. Only the first reason is kept.
    pub(crate) fn expire(&self, reason: LostReason) {
        // Set before the end, so that a reader of the end also reads the reason.
        let _ = self.reason.set(reason);
        self.valid_until_ns.store(0, Ordering::SeqCst);
        self.ended.cancel();
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.latched_valid_until_ns() > 0
    }

    /// Returns the end of the validity on [`clock::now`]; 0 if it was found to have ended.
    pub(crate) fn valid_until(&self) -> Duration {
        Duration::from_nanos(self.valid_until_ns.load(Ordering::SeqCst))
    }

    pub(crate) fn remaining(&self) -> Duration {
        Duration::from_nanos(self.latched_valid_until_ns()).saturating_sub(clock::now())
    }

    /// Returns the TTL that the broker announced last.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        let has_ended = !self.is_valid();
        has_ended.then(|| self.reason.get_or_init(|| LostReason::Expired).clone())
    }

    /// Returns a token that is cancelled when the validity ends, at most a tenth of a second later,
    /// since no timer runs through a suspend.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Returns the end of the validity; 0, permanently, once it has passed.
    fn latched_valid_until_ns(&self) -> u64 {
        loop {
            let valid_until_ns = self.valid_until_ns.load(Ordering::SeqCst);
            if valid_until_ns == 0 || as_nanos(clock::now()) < valid_until_ns {
                return valid_until_ns;
            }
            let latched = self.valid_until_ns.compare_exchange(
                valid_until_ns,
                0,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if latched.is_ok() {
                self.expire(LostReason::Expired);
            }
        }
    }
}

fn validity_end_ns(valid_until: Duration, ttl: Duration) -> u64 {
    // 0 means ended; 1 is a deadline that has passed as well.
    as_nanos(valid_until.saturating_sub(safety_margin(ttl))).max(1)
}

fn as_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn the_margin_is_a_tenth_but_at_least_half_a_second_and_at_most_a_quarter() {
        assert_eq!(
            safety_margin(Duration::from_secs(60)),
            Duration::from_secs(6)
        );
        assert_eq!(
            safety_margin(Duration::from_secs(4)),
            Duration::from_millis(500)
        );
        assert_eq!(
            safety_margin(Duration::from_secs(1)),
            Duration::from_millis(250)
        );
    }

    #[test]
    fn the_validity_ends_a_safety_margin_early() {
        let validity = LeaseValidity::default();
        validity.start(clock::now() + TTL, TTL);
        assert!(validity.is_valid());
        assert!(validity.remaining() <= TTL - safety_margin(TTL));
        assert!(validity.remaining() > TTL - safety_margin(TTL) - Duration::from_secs(1));
    }

    #[test]
    fn an_ended_validity_is_not_extended() {
        let validity = LeaseValidity::default();
        validity.start(clock::now() + safety_margin(TTL), TTL);
        assert!(!validity.extend(clock::now() + TTL, TTL));
        assert!(!validity.is_valid());
        assert_eq!(validity.lost_reason(), Some(LostReason::Expired));
        assert!(validity.ended().is_cancelled());
        assert_eq!(validity.remaining(), Duration::ZERO);
    }

    #[test]
    fn the_first_reason_stays() {
        let validity = LeaseValidity::default();
        validity.start(clock::now() + TTL, TTL);
        validity.expire(LostReason::StoreLost);
        validity.expire(LostReason::Expired);
        assert_eq!(validity.lost_reason(), Some(LostReason::StoreLost));
    }

    #[test]
    fn an_extension_never_shortens() {
        let validity = LeaseValidity::default();
        validity.start(clock::now() + TTL, TTL);
        assert!(validity.extend(clock::now() + TTL / 2, TTL / 2));
        assert!(validity.remaining() > TTL / 2);
        assert_eq!(validity.ttl(), TTL / 2);
    }
}
