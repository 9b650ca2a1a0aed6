//! Limit of the spans of leases, from which the time without grants after a loss of data follows.
//!
//! The era contains the limit, and scripts cut grants and renewals to it (rejections.lua). A change
//! takes time (spans.lua). Meanwhile grants use the smaller value, and a recovery counts the larger
//! one. Therefore what a broker has read stays valid for [`SpanLimitTerms::trusted_ms`], whatever
//! happens to the store.

use std::sync::Arc;

use parking_lot::Mutex;

use super::silence::boot_ms;

/// Prefix of the field of an era that contains the limit.
const SPAN: &str = "span:";
/// Time after the decision about an era in which the era may be written. What the decision follows
/// from must not be too old then.
pub(super) const ERA_DEADLINE_MS: u64 = 5_000;
/// Error of the clocks of one host that is tolerated in the age of a stamp.
const STAMP_ERROR_MS: u64 = 5_000;

/// The limit in an era: two values, of which the second one applies from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredSpanLimit {
    pub before_ms: u64,
    pub after_ms: u64,
    /// Time of the Redis clock at which the change is complete.
    pub at_ms: u64,
}

/// The limit as it was at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLimitReading {
    /// Longest span that may be in force, or may come into force while the reading is trusted.
    pub covered_ms: u64,
    /// Longest span that grants and renewals may have.
    pub usable_ms: u64,
}

/// Settings of the limit of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLimitTerms {
    /// Age up to which a reading of the limit counts when an era is written: the longest loss of
    /// data for which the recovery follows from the limit.
    pub trusted_ms: u64,
}

/// The last reading of a store's limit by this broker. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LastSpanLimit(Arc<Mutex<Option<TimedReading>>>);

#[derive(Debug, Clone, Copy)]
struct TimedReading {
    reading: SpanLimitReading,
    /// Time at which the query was sent, in milliseconds of the clock that also runs while this
    /// host is suspended.
    sent_ms: u64,
}

impl Default for SpanLimitTerms {
    fn default() -> Self {
        Self { trusted_ms: 60_000 }
    }
}

impl SpanLimitTerms {
    /// Returns the time that each change of the limit takes at least: every reading of the former
    /// limit has become too old, and a master that was replaced meanwhile has stopped.
    pub const fn change_ms(self, former_master_max_ms: u64) -> u64 {
        self.trusted_ms.saturating_add(former_master_max_ms)
    }

    /// Returns true if a reading of this age is still recent enough when the era is written.
    const fn trusts_age(self, age_ms: u64) -> bool {
        age_ms.saturating_add(ERA_DEADLINE_MS) <= self.trusted_ms
    }

    /// Returns true if a stamp of the Redis clock is not too old.
    pub const fn trusts_stamp(self, stamp_ms: u64, now_ms: u64) -> bool {
        // A later stamp means that the clock was set back.
        stamp_ms <= now_ms.saturating_add(STAMP_ERROR_MS)
            && self.trusts_age(now_ms.saturating_sub(stamp_ms) + STAMP_ERROR_MS)
    }
}

impl StoredSpanLimit {
    /// Creates a limit without a pending change.
    pub const fn constant(limit_ms: u64) -> Self {
        Self {
            before_ms: limit_ms,
            after_ms: limit_ms,
            at_ms: 0,
        }
    }

    /// Returns the limit at a time of the Redis clock.
    pub fn at(self, now_ms: u64) -> SpanLimitReading {
        let (larger_ms, smaller_ms) = match now_ms < self.at_ms {
            true => (
                self.before_ms.max(self.after_ms),
                self.before_ms.min(self.after_ms),
            ),
            false => (self.after_ms, self.after_ms),
        };
        SpanLimitReading {
            covered_ms: larger_ms,
            usable_ms: smaller_ms,
        }
    }

    /// Returns the limit in the text of an era.
    pub(super) fn of_era(text: &str) -> Option<Self> {
        text.split('|').find_map(Self::parse)
    }

    /// Parses a field of an era. `None` if it is another field.
    pub(super) fn parse(field: &str) -> Option<Self> {
        let mut values = field.strip_prefix(SPAN)?.split(':');
        let mut next = || values.next()?.parse().ok();
        Some(Self {
            before_ms: next()?,
            after_ms: next()?,
            at_ms: next()?,
        })
    }

    /// Returns the field of the era.
    pub(super) fn field(&self) -> String {
        format!("{SPAN}{}:{}:{}", self.before_ms, self.after_ms, self.at_ms)
    }
}

impl LastSpanLimit {
    /// Records a reading whose query was sent at `sent_ms` ([`boot_ms`]).
    pub(super) fn record(&self, reading: SpanLimitReading, sent_ms: u64) {
        let mut last = self.0.lock();
        if last.is_none_or(|last| last.sent_ms <= sent_ms) {
            *last = Some(TimedReading { reading, sent_ms });
        }
    }

    /// Returns the last reading if it is not too old.
    pub(super) fn trusted(&self, terms: SpanLimitTerms) -> Option<SpanLimitReading> {
        let last = (*self.0.lock())?;
        let age_ms = boot_ms().saturating_sub(last.sent_ms);
        terms.trusts_age(age_ms).then_some(last.reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_change_grants_the_smaller_and_counts_the_larger_limit() {
        for (before_ms, after_ms) in [(10, 40), (40, 10)] {
            let limit = StoredSpanLimit {
                before_ms,
                after_ms,
                at_ms: 1_000,
            };
            let pending = SpanLimitReading {
                covered_ms: 40,
                usable_ms: 10,
            };
            assert_eq!(limit.at(999), pending);
            assert_eq!(limit.at(1_000), StoredSpanLimit::constant(after_ms).at(0));
        }
    }

    #[test]
    fn a_limit_is_read_back() {
        let limit = StoredSpanLimit {
            before_ms: 12_250,
            after_ms: 72_250,
            at_ms: 1_795_000_000_000,
        };
        assert_eq!(limit.field(), "span:12250:72250:1795000000000");
        assert_eq!(StoredSpanLimit::parse(&limit.field()), Some(limit));
        for other in ["span:1:2", "span:1:2:x", "spam:1:2:3", "moving"] {
            assert_eq!(StoredSpanLimit::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_last_reading_is_trusted_until_it_is_too_old() {
        let terms = SpanLimitTerms { trusted_ms: 60_000 };
        let reading = |covered_ms| SpanLimitReading {
            covered_ms,
            usable_ms: 1,
        };
        let last = LastSpanLimit::default();
        assert_eq!(last.trusted(terms), None);
        let now_ms = boot_ms();
        last.record(reading(1), now_ms);
        last.record(reading(2), now_ms - 1);
        assert_eq!(last.trusted(terms), Some(reading(1)), "an older query");
        let old = LastSpanLimit::default();
        old.record(reading(1), now_ms.saturating_sub(55_001));
        assert_eq!(old.trusted(terms), None);
    }

    #[test]
    fn a_stamp_is_trusted_for_less_time_because_clocks_have_errors() {
        let terms = SpanLimitTerms { trusted_ms: 60_000 };
        for (stamp_ms, is_trusted) in [
            (950_000, true),
            (949_999, false),
            (1_005_000, true),
            (1_005_001, false),
        ] {
            assert_eq!(terms.trusts_stamp(stamp_ms, 1_000_000), is_trusted);
        }
    }
}
