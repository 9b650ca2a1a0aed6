//! Clocks of servers: the estimate of one, the skew between two, and the steps of one.
//!
//! Each health check bounds the offset of the server's clock from this host's clock: the server
//! read its clock at some time between sending and receiving. A step is reported when the bounds of
//! two consecutive health checks exclude that there was none. A broker that was stopped, suspended
//! or starved has wide bounds or none, and reports nothing.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use fred::{
    clients::Client,
    error::Error,
    interfaces::ClientLike as _,
    types::{CustomCommand, Value},
};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::time::millis;

/// Largest skew between masters that is not reported.
const SKEW_WARNING_MIN: Duration = Duration::from_millis(100);
const SAMPLES: usize = 5;
/// Smallest step that is reported. Smaller steps are covered by the margins of expiries.
const STEP_MIN_MS: i64 = 500;
/// Largest time between the readings of the two clocks of this host.
const READ_GAP_MAX: Duration = Duration::from_millis(100);
/// Width up to which new bounds always replace older ones.
const NARROW_BOUNDS_MS: i64 = 100;

/// Estimate of the server's clock: its last TIME plus the time that has passed here since.
pub(super) struct Clock {
    origin: Instant,
    offset_ms: AtomicU64,
}

/// A sample of a server's clock, which was read at some time between `sent` and `received`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockSample {
    pub(super) now_ms: u64,
    pub(super) sent: Instant,
    pub(super) received: Instant,
}

/// Detector of clock steps between the health checks of one server.
#[derive(Debug)]
pub(super) struct ClockStepDetector {
    origin: Instant,
    last_bounds: Option<OffsetBounds>,
    is_suspected: bool,
}

/// Bounds of the offset of a server's clock from this host's clock, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct OffsetBounds {
    min_ms: i64,
    max_ms: i64,
    host: HostClocks,
}

/// Two clocks of this host. The monotonic clock stops while the host is suspended, the other clock
/// does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostClocks {
    monotonic: Duration,
    boot: Duration,
}

impl Clock {
    pub(super) fn starting_at(now_ms: u64) -> Self {
        Self {
            origin: Instant::now(),
            offset_ms: AtomicU64::new(now_ms),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.offset_ms.load(Ordering::Relaxed) + self.elapsed_ms()
    }

    pub(super) fn now_us(&self) -> u64 {
        let elapsed_us = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX / 2);
        self.offset_ms.load(Ordering::Relaxed) * 1_000 + elapsed_us
    }

    pub(super) fn at_least(&self, now_ms: u64) {
        let offset_ms = now_ms.saturating_sub(self.elapsed_ms());
        self.offset_ms.fetch_max(offset_ms, Ordering::Relaxed);
    }

    pub(super) fn set(&self, now_ms: u64) {
        let offset_ms = now_ms.saturating_sub(self.elapsed_ms());
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }

    fn elapsed_ms(&self) -> u64 {
        millis(self.origin.elapsed())
    }
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

impl ClockStepDetector {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            last_bounds: None,
            is_suspected: false,
        }
    }

    /// Returns the minimum step of the clock in milliseconds, once two readings prove it. `asked`
    /// are the clocks of this host before the request was sent, `after` those after the reply.
    pub(super) fn observe(
        &mut self,
        reading: &ClockSample,
        before: HostClocks,
        after: HostClocks,
    ) -> Option<i64> {
        // A host that was suspended between request and reply cannot measure the round trip.
        let now = before.agrees_with(after);
        let now = now.then(|| OffsetBounds::of(reading, self.origin, before));
        let before = self
            .last_bounds
            .filter(|before| before.host.agrees_with(after));
        let (Some(now), Some(before)) = (now, before) else {
            (self.last_bounds, self.is_suspected) = (now, false);
            return None;
        };
        let step_ms = before.step_to(now);
        let is_confirmed = step_ms.is_some() && self.is_suspected;
        self.is_suspected = step_ms.is_some();
        if step_ms.is_none() && now.width_ms() <= before.width_ms().max(NARROW_BOUNDS_MS) {
            self.last_bounds = Some(now);
        }
        step_ms.filter(|_| is_confirmed)
    }
}

impl OffsetBounds {
    fn of(reading: &ClockSample, origin: Instant, host: HostClocks) -> Self {
        let since = |at: Instant| {
            let passed_ms = at.saturating_duration_since(origin).as_millis();
            i64::try_from(passed_ms).unwrap_or(i64::MAX / 2)
        };
        let now_ms = i64::try_from(reading.now_ms).unwrap_or(i64::MAX / 2);
        Self {
            min_ms: now_ms - since(reading.received) - 1,
            max_ms: now_ms + 1 - since(reading.sent),
            host,
        }
    }

    fn width_ms(self) -> i64 {
        self.max_ms - self.min_ms
    }

    /// Returns the smallest step that explains both bounds; `None` if they are possible without a
    /// step.
    fn step_to(self, later: Self) -> Option<i64> {
        let (forward, backward) = (later.min_ms - self.max_ms, self.min_ms - later.max_ms);
        match (forward >= STEP_MIN_MS, backward >= STEP_MIN_MS) {
            (true, _) => Some(forward),
            (_, true) => Some(-backward),
            (false, false) => None,
        }
    }
}

impl HostClocks {
    pub(super) fn read() -> Self {
        Self {
            monotonic: clock(ClockId::Monotonic),
            boot: boot_time(),
        }
    }

    /// Returns true if this host was not suspended between the two readings.
    fn agrees_with(self, later: Self) -> bool {
        let passed = later.monotonic.saturating_sub(self.monotonic);
        let with_suspends = later.boot.saturating_sub(self.boot);
        with_suspends.abs_diff(passed) <= READ_GAP_MAX
    }
}

/// Returns the warning to operators about the two clocks with the largest skew, if it is too large.
pub(super) fn skew_warning(all: &[(String, ClockSample)]) -> Option<String> {
    let (first, second, skew) = max_skew(all)?;
    (skew > SKEW_WARNING_MIN).then(|| {
        format!(
            "{first} and {second} have clocks at least {} ms apart: after a failover fencing \
             tokens may decrease, and leases may end early or late. Synchronize both with one time \
             server.",
            skew.as_millis()
        )
    })
}

/// Returns the two clocks with the largest skew, and that skew.
fn max_skew<T>(all: &[(T, ClockSample)]) -> Option<(&T, &T, Duration)> {
    let pairs = all.iter().enumerate().flat_map(|(at, first)| {
        let others = all[at + 1..].iter();
        others.map(move |second| (&first.0, &second.0, first.1.skew(&second.1)))
    });
    pairs.max_by_key(|(_, _, skew)| *skew)
}

/// Returns the server's TIME in milliseconds.
pub(super) async fn time_ms(client: &Client) -> Result<u64, Error> {
    let time = CustomCommand::new_static("TIME", None::<u16>, false);
    let (seconds, micros): (u64, u64) = client.custom(time, Vec::<Value>::new()).await?;
    Ok(seconds * 1_000 + micros / 1_000)
}

/// Returns the time since this host was started, including suspends.
pub(super) fn boot_time() -> Duration {
    clock(ClockId::Boottime)
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN_MS: u64 = 1_800_000_000_000;

    /// Creates a sample of a server whose clock is ahead by `ahead_ms`, requested at `at_ms` with a
    /// round trip of `round_trip_ms`.
    fn reading(
        steps: &ClockStepDetector,
        at_ms: u64,
        round_trip_ms: u64,
        ahead_ms: i64,
    ) -> ClockSample {
        let sent = steps.origin + Duration::from_millis(at_ms);
        ClockSample {
            now_ms: (BEGIN_MS + at_ms + round_trip_ms / 2).saturating_add_signed(ahead_ms),
            sent,
            received: sent + Duration::from_millis(round_trip_ms),
        }
    }

    fn host(monotonic_ms: u64, boot_ms: u64) -> HostClocks {
        HostClocks {
            monotonic: Duration::from_millis(monotonic_ms),
            boot: Duration::from_millis(boot_ms),
        }
    }

    /// Returns the steps reported for samples of request time, round trip and offset.
    fn seen(readings: &[(u64, u64, i64)]) -> Vec<Option<i64>> {
        let mut steps = ClockStepDetector::new();
        let see = |(at_ms, round_trip_ms, ahead_ms): &(u64, u64, i64)| {
            let reading = reading(&steps, *at_ms, *round_trip_ms, *ahead_ms);
            let received_ms = at_ms + round_trip_ms;
            steps.observe(
                &reading,
                host(*at_ms, *at_ms),
                host(received_ms, received_ms),
            )
        };
        readings.iter().map(see).collect()
    }

    #[test]
    fn a_clock_step_seen_by_two_probes_is_reported() {
        let forward = seen(&[(0, 2, 0), (500, 2, 0), (1_000, 2, 3_000), (1_500, 2, 3_000)]);
        assert!(
            matches!(forward[..], [None, None, None, Some(2_990..=3_000)]),
            "{forward:?}"
        );
        let backward = seen(&[(0, 2, 0), (500, 2, -700), (1_000, 2, -700)]);
        assert!(
            matches!(backward[..], [None, None, Some(-700..=-690)]),
            "{backward:?}"
        );
    }

    #[test]
    fn small_clock_steps_and_single_outliers_are_not_reported() {
        assert_eq!(
            seen(&[(0, 2, 0), (500, 2, 490), (1_000, 2, 490), (1_500, 2, 490)]),
            [None; 4]
        );
        assert_eq!(
            seen(&[(0, 2, 0), (500, 2, 5_000), (1_000, 2, 0), (1_500, 2, 0)]),
            [None; 4]
        );
    }

    /// Slow replies give no bounds: the broker was stopped, or the server did not respond.
    #[test]
    fn a_stall_or_a_suspend_is_not_reported_as_a_clock_step() {
        assert_eq!(
            seen(&[(0, 2, 0), (500, 8_000, 0), (8_500, 2, 0), (9_000, 2, 0)]),
            [None; 4]
        );
        let mut steps = ClockStepDetector::new();
        let readings = [(0, 0), (500, 500), (1_000, 61_000), (1_500, 61_500)];
        for (at_ms, boot_ms) in readings {
            // The host was suspended for a minute, during which the server's clock continued.
            let ahead_ms = i64::try_from(boot_ms - at_ms).unwrap_or_default();
            let reading = reading(&steps, at_ms, 2, ahead_ms);
            let host = host(at_ms, boot_ms);
            assert_eq!(steps.observe(&reading, host, host), None);
        }
    }

    /// The server read its clock before the host was suspended, and the reply was read after the
    /// suspend.
    #[test]
    fn a_suspend_during_a_request_is_not_reported_as_a_clock_step() {
        let mut steps = ClockStepDetector::new();
        let probes = [
            (0, 0, 0, 0),
            (500, 0, 500, 60_500),
            (1_000, 60_000, 61_000, 61_000),
            (1_500, 60_000, 61_500, 61_500),
            (2_000, 60_000, 62_000, 62_000),
        ];
        for (at_ms, ahead_ms, sent_boot_ms, received_boot_ms) in probes {
            let reading = reading(&steps, at_ms, 2, ahead_ms);
            let before = host(at_ms, sent_boot_ms);
            let after = host(at_ms + 2, received_boot_ms + 2);
            assert_eq!(steps.observe(&reading, before, after), None, "{at_ms}");
        }
    }

    #[test]
    fn a_clock_step_during_a_slow_reply_is_reported_afterwards() {
        let seen = seen(&[
            (0, 2, 0),
            (500, 3_000, 0),
            (3_500, 2, 9_000),
            (4_000, 2, 9_000),
        ]);
        assert!(
            matches!(seen[..], [None, None, None, Some(8_990..=9_000)]),
            "{seen:?}"
        );
    }

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

    #[test]
    fn the_clock_is_set_back_only_by_the_probe() {
        let clock = Clock::starting_at(1_000_000);
        clock.at_least(2_000_000);
        clock.at_least(1_500_000);
        assert!(clock.now_ms() >= 2_000_000);
        clock.set(1_000_000);
        assert!((1_000_000..1_100_000).contains(&clock.now_ms()));
    }
}
