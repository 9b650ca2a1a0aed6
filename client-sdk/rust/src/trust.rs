//! How long a lease may be trusted, shared between its guards and the task that keeps it alive.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{clock, error::LostReason};

/// Latches: once over, it never begins again, whoever noticed first.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// On the clock of [`clock::now`], in nanoseconds; 0: over, or not begun.
    until_ns: AtomicU64,
    /// As announced last, in nanoseconds.
    ttl_ns: AtomicU64,
    why: OnceLock<LostReason>,
    over: CancellationToken,
}

/// How much earlier than the validity ends a holder gives up, so that its work can stop in time.
pub(crate) fn margin(ttl: Duration) -> Duration {
    (ttl / 10).max(Duration::from_millis(500)).min(ttl / 4)
}

impl Trust {
    /// Begins, before anybody was given a guard.
    pub(crate) fn begin(&self, valid_until: Duration, ttl: Duration) {
        self.ttl_ns.store(ns(ttl), Ordering::Relaxed);
        self.until_ns
            .store(end_ns(valid_until, ttl), Ordering::SeqCst);
    }

    /// Validity was confirmed. False if trust was over before that was heard: then it stays over.
    pub(crate) fn extend(&self, valid_until: Duration, ttl: Duration) -> bool {
        self.ttl_ns.store(ns(ttl), Ordering::Relaxed);
        let new_ns = end_ns(valid_until, ttl);
        let mut until_ns = self.live_ns();
        while until_ns > 0 {
            // Not extended if somebody found it over since the clock was read.
            let extended = self.until_ns.compare_exchange(
                until_ns,
                until_ns.max(new_ns),
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if extended.is_ok() {
                return true;
            }
            until_ns = self.live_ns();
        }
        false
    }

    /// Ends it. Only the first reason stays.
    pub(crate) fn end(&self, why: LostReason) {
        // A reader that sees the end finds the reason, too.
        let _ = self.why.set(why);
        self.until_ns.store(0, Ordering::SeqCst);
        self.over.cancel();
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.live_ns() > 0
    }

    /// When it ends, on the clock of [`clock::now`]; 0: it has been found over.
    pub(crate) fn until(&self) -> Duration {
        Duration::from_nanos(self.until_ns.load(Ordering::SeqCst))
    }

    pub(crate) fn remaining(&self) -> Duration {
        Duration::from_nanos(self.live_ns()).saturating_sub(clock::now())
    }

    /// The validity that was announced last.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        let is_over = !self.is_valid();
        is_over.then(|| self.why.get_or_init(|| LostReason::Expired).clone())
    }

    /// Cancelled when it is over. At the latest a tenth of a second after its time, since no timer
    /// runs through a suspend.
    pub(crate) fn over(&self) -> &CancellationToken {
        &self.over
    }

    /// When it ends; 0 once that has passed, and from then on.
    fn live_ns(&self) -> u64 {
        loop {
            let until_ns = self.until_ns.load(Ordering::SeqCst);
            if until_ns == 0 || ns(clock::now()) < until_ns {
                return until_ns;
            }
            let latched =
                self.until_ns
                    .compare_exchange(until_ns, 0, Ordering::SeqCst, Ordering::SeqCst);
            if latched.is_ok() {
                self.end(LostReason::Expired);
            }
        }
    }
}

fn end_ns(valid_until: Duration, ttl: Duration) -> u64 {
    // 0 would say that it was over before: 1 is as long ago.
    ns(valid_until.saturating_sub(margin(ttl))).max(1)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn the_margin_is_a_tenth_but_at_least_half_a_second_and_at_most_a_quarter() {
        assert_eq!(margin(Duration::from_secs(60)), Duration::from_secs(6));
        assert_eq!(margin(Duration::from_secs(4)), Duration::from_millis(500));
        assert_eq!(margin(Duration::from_secs(1)), Duration::from_millis(250));
    }

    #[test]
    fn trust_ends_a_margin_before_the_validity() {
        let trust = Trust::default();
        trust.begin(clock::now() + TTL, TTL);
        assert!(trust.is_valid());
        assert!(trust.remaining() <= TTL - margin(TTL));
        assert!(trust.remaining() > TTL - margin(TTL) - Duration::from_secs(1));
    }

    #[test]
    fn once_over_it_is_not_extended() {
        let trust = Trust::default();
        trust.begin(clock::now() + margin(TTL), TTL);
        assert!(!trust.extend(clock::now() + TTL, TTL));
        assert!(!trust.is_valid());
        assert_eq!(trust.lost_reason(), Some(LostReason::Expired));
        assert!(trust.over().is_cancelled());
        assert_eq!(trust.remaining(), Duration::ZERO);
    }

    #[test]
    fn the_first_reason_stays() {
        let trust = Trust::default();
        trust.begin(clock::now() + TTL, TTL);
        trust.end(LostReason::StoreLost);
        trust.end(LostReason::Expired);
        assert_eq!(trust.lost_reason(), Some(LostReason::StoreLost));
    }

    #[test]
    fn an_extension_never_shortens() {
        let trust = Trust::default();
        trust.begin(clock::now() + TTL, TTL);
        assert!(trust.extend(clock::now() + TTL / 2, TTL / 2));
        assert!(trust.remaining() > TTL / 2);
        assert_eq!(trust.ttl(), TTL / 2);
    }
}
