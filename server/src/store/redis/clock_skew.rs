//! Clock samples of servers, and the minimum skew that they prove.

use std::time::Duration;

use fred::{clients::Client, error::Error};
use tokio::time::Instant;

use super::connect::time_ms;

/// Largest skew between masters that is not reported.
pub(super) const SKEW_WARNING_MIN: Duration = Duration::from_millis(100);

const SAMPLES: usize = 5;

/// A sample of a server's clock, which was read at some time between `sent` and `received`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockSample {
    pub(super) now_ms: u64,
    pub(super) sent: Instant,
    pub(super) received: Instant,
}

impl ClockSample {
    /// Reads the clock of a server.
    pub(super) async fn take(client: &Client) -> Result<Self, Error> {
        let sent = Instant::now();
        let now_ms = time_ms(client).await?;
        Ok(Self {
            now_ms,
            sent,
            received: Instant::now(),
        })
    }

    /// Takes several samples and returns the one with the shortest round trip, which is the most
    /// precise.
    pub(super) async fn best_of_several(client: &Client) -> Result<Self, Error> {
        let mut best = Self::take(client).await?;
        for _ in 1..SAMPLES {
            let next = Self::take(client).await?;
            if next.received - next.sent < best.received - best.sent {
                best = next;
            }
        }
        Ok(best)
    }

    /// Returns the time by which this clock is at least ahead of the other one.
    fn lead_over(&self, other: &Self) -> Duration {
        // Each clock is ahead of `origin` by at least `low` and at most `high`.
        let origin = self.sent.min(other.sent);
        let low = Duration::from_millis(self.now_ms).saturating_sub(self.received - origin);
        let high = Duration::from_millis(other.now_ms + 1).saturating_sub(other.sent - origin);
        low.saturating_sub(high)
    }

    /// Returns the minimum skew of two clocks.
    pub(super) fn skew(&self, other: &Self) -> Duration {
        self.lead_over(other).max(other.lead_over(self))
    }
}

/// Returns the two clocks with the largest skew, and that skew.
pub(super) fn max_skew<T>(all: &[(T, ClockSample)]) -> Option<(&T, &T, Duration)> {
    let pairs = all.iter().enumerate().flat_map(|(at, first)| {
        let others = all[at + 1..].iter();
        others.map(move |second| (&first.0, &second.0, first.1.skew(&second.1)))
    });
    pairs.max_by_key(|(_, _, skew)| *skew)
}

/// Returns the warning to operators about a skew.
pub(super) fn skew_warning(first: &str, second: &str, skew: Duration) -> String {
    format!(
        "{first} and {second} have clocks at least {} ms apart: after a failover fencing tokens \
         may decrease, and leases may end early or late. Synchronize both with one time server.",
        skew.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_skew_beyond_the_round_trip_counts() {
        let origin = Instant::now();
        let at = |now_ms, sent, received| ClockSample {
            now_ms,
            sent: origin + Duration::from_millis(sent),
            received: origin + Duration::from_millis(received),
        };
        let skew_ms = |first: ClockSample, second: ClockSample| first.skew(&second).as_millis();
        assert_eq!(skew_ms(at(10_000, 0, 1), at(10_000, 0, 1)), 0);
        assert_eq!(skew_ms(at(10_000, 0, 1), at(10_500, 500, 501)), 0);
        assert_eq!(skew_ms(at(10_200, 0, 1), at(10_000, 0, 1)), 198);
        assert_eq!(skew_ms(at(10_000, 0, 1), at(10_200, 0, 1)), 198);
        assert_eq!(
            skew_ms(at(10_200, 0, 300), at(10_000, 0, 1)),
            0,
            "a slow answer"
        );
        let all = [
            ("a", at(10_000, 0, 1)),
            ("b", at(10_150, 0, 1)),
            ("c", at(10_400, 0, 1)),
        ];
        let (first, second, skew) = max_skew(&all).expect("three");
        assert_eq!((*first, *second, skew.as_millis()), ("a", "c", 398));
    }
}
