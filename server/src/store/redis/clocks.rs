//! The clocks of several servers, and how far they are apart for certain.

use std::time::Duration;

use fred::{clients::Client, error::Error};
use tokio::time::Instant;

use super::open::time_ms;

/// Masters whose clocks are further apart are reported.
pub(super) const APART_MAX: Duration = Duration::from_millis(100);

const TRIES: usize = 5;

/// What a server's clock showed at some moment between two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) now_ms: u64,
    pub(super) sent: Instant,
    pub(super) received: Instant,
}

impl Reading {
    /// Asks a server.
    pub(super) async fn of(client: &Client) -> Result<Self, Error> {
        let sent = Instant::now();
        let now_ms = time_ms(client).await?;
        Ok(Self {
            now_ms,
            sent,
            received: Instant::now(),
        })
    }

    /// The quickest of a few: the less it took, the more it says.
    pub(super) async fn quick(client: &Client) -> Result<Self, Error> {
        let mut best = Self::of(client).await?;
        for _ in 1..TRIES {
            let next = Self::of(client).await?;
            if next.received - next.sent < best.received - best.sent {
                best = next;
            }
        }
        Ok(best)
    }

    /// How far this clock is ahead of the other one at least.
    fn ahead_of(&self, other: &Self) -> Duration {
        // Each is ahead of `origin` by no less than `low`, and by no more than `high`.
        let origin = self.sent.min(other.sent);
        let low = Duration::from_millis(self.now_ms).saturating_sub(self.received - origin);
        let high = Duration::from_millis(other.now_ms + 1).saturating_sub(other.sent - origin);
        low.saturating_sub(high)
    }

    /// How far two clocks are apart at least.
    pub(super) fn apart(&self, other: &Self) -> Duration {
        self.ahead_of(other).max(other.ahead_of(self))
    }
}

/// The two of all that are furthest apart, and how far.
pub(super) fn furthest<T>(all: &[(T, Reading)]) -> Option<(&T, &T, Duration)> {
    let pairs = all.iter().enumerate().flat_map(|(at, one)| {
        let others = all[at + 1..].iter();
        others.map(move |other| (&one.0, &other.0, one.1.apart(&other.1)))
    });
    pairs.max_by_key(|(_, _, apart)| *apart)
}

/// What an operator should know of clocks so far apart.
pub(super) fn warning(one: &str, other: &str, apart: Duration) -> String {
    format!(
        "{one} and {other} have clocks at least {} ms apart: after a fail-over fencing tokens may \
         fall, and leases end early or late. Let both follow one time server.",
        apart.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_way_cannot_explain_counts() {
        let origin = Instant::now();
        let at = |now_ms, sent, received| Reading {
            now_ms,
            sent: origin + Duration::from_millis(sent),
            received: origin + Duration::from_millis(received),
        };
        let apart = |one: Reading, other: Reading| one.apart(&other).as_millis();
        assert_eq!(apart(at(10_000, 0, 1), at(10_000, 0, 1)), 0);
        assert_eq!(apart(at(10_000, 0, 1), at(10_500, 500, 501)), 0);
        assert_eq!(apart(at(10_200, 0, 1), at(10_000, 0, 1)), 198);
        assert_eq!(apart(at(10_000, 0, 1), at(10_200, 0, 1)), 198);
        assert_eq!(
            apart(at(10_200, 0, 300), at(10_000, 0, 1)),
            0,
            "a slow answer"
        );
        let all = [
            ("a", at(10_000, 0, 1)),
            ("b", at(10_150, 0, 1)),
            ("c", at(10_400, 0, 1)),
        ];
        let (one, other, apart) = furthest(&all).expect("three");
        assert_eq!((*one, *other, apart.as_millis()), ("a", "c", 398));
    }
}
