//! Whether the clock of a server was stepped.
//!
//! Each probe bounds by how much that clock is ahead of this host's: the server read its clock at some moment
//! between sending and receiving. A step counts when the bounds of two probes in a row rule out that there was
//! none: a broker that was stopped, suspended or starved has wide bounds, or none, and claims nothing.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::clocks::Reading;

/// Smaller steps are borne by the margins of expiries.
const STEP_MIN_MS: i64 = 500;
/// The clocks of this host may have been read apart by so much.
const READ_APART_MAX: Duration = Duration::from_millis(100);
/// Bounds this narrow replace older ones.
const NARROW_MS: i64 = 100;

/// Looks for steps between the probes of one server.
#[derive(Debug)]
pub(super) struct ClockSteps {
    origin: Instant,
    before: Option<Bounds>,
    is_suspected: bool,
}

/// By how much a server's clock is ahead of ours, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    least_ms: i64,
    most_ms: i64,
    host: HostClocks,
}

/// Two clocks of this host: one stands still while the host is suspended, the other does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostClocks {
    monotonic: Duration,
    boot: Duration,
}

impl ClockSteps {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            before: None,
            is_suspected: false,
        }
    }

    /// By how many milliseconds at least the clock was stepped, once two readings say so. The clocks of this
    /// host were read before the server was asked, and after it had answered.
    pub(super) fn see(
        &mut self,
        reading: &Reading,
        asked: HostClocks,
        answered: HostClocks,
    ) -> Option<i64> {
        // A host that is suspended while it asks does not know how long it waited.
        let now = asked.agrees_with(answered);
        let now = now.then(|| Bounds::of(reading, self.origin, asked));
        let before = self
            .before
            .filter(|before| before.host.agrees_with(answered));
        let (Some(now), Some(before)) = (now, before) else {
            (self.before, self.is_suspected) = (now, false);
            return None;
        };
        let step_ms = before.step_to(now);
        let is_confirmed = step_ms.is_some() && self.is_suspected;
        self.is_suspected = step_ms.is_some();
        if step_ms.is_none() && now.width_ms() <= before.width_ms().max(NARROW_MS) {
            self.before = Some(now);
        }
        step_ms.filter(|_| is_confirmed)
    }
}

impl Bounds {
    fn of(reading: &Reading, origin: Instant, host: HostClocks) -> Self {
        let since = |at: Instant| millis(at.saturating_duration_since(origin));
        let now_ms = i64::try_from(reading.now_ms).unwrap_or(i64::MAX / 2);
        Self {
            least_ms: now_ms - since(reading.received) - 1,
            most_ms: now_ms + 1 - since(reading.sent),
            host,
        }
    }

    fn width_ms(self) -> i64 {
        self.most_ms - self.least_ms
    }

    /// The smallest step that explains both; `None` if it need not be one.
    fn step_to(self, later: Self) -> Option<i64> {
        let (forward, back) = (later.least_ms - self.most_ms, self.least_ms - later.most_ms);
        match (forward >= STEP_MIN_MS, back >= STEP_MIN_MS) {
            (true, _) => Some(forward),
            (_, true) => Some(-back),
            (false, false) => None,
        }
    }
}

impl HostClocks {
    /// As they are.
    pub(super) fn read() -> Self {
        Self {
            monotonic: clock(ClockId::Monotonic),
            boot: boot_time(),
        }
    }

    /// Whether this host was not suspended in between.
    fn agrees_with(self, later: Self) -> bool {
        let passed = later.monotonic.saturating_sub(self.monotonic);
        let with_suspends = later.boot.saturating_sub(self.boot);
        with_suspends.abs_diff(passed) <= READ_APART_MAX
    }
}

/// The time since this host was started, suspends included.
pub(super) fn boot_time() -> Duration {
    clock(ClockId::Boottime)
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN_MS: u64 = 1_800_000_000_000;

    /// A server whose clock is ahead by so much, asked at that time; the answer took so long.
    fn reading(steps: &ClockSteps, at_ms: u64, took_ms: u64, ahead_ms: i64) -> Reading {
        let sent = steps.origin + Duration::from_millis(at_ms);
        Reading {
            now_ms: (BEGIN_MS + at_ms + took_ms / 2).saturating_add_signed(ahead_ms),
            sent,
            received: sent + Duration::from_millis(took_ms),
        }
    }

    fn host(monotonic_ms: u64, boot_ms: u64) -> HostClocks {
        HostClocks {
            monotonic: Duration::from_millis(monotonic_ms),
            boot: Duration::from_millis(boot_ms),
        }
    }

    /// What the steps are that these readings show: when, how long the answer took, how far ahead.
    fn seen(readings: &[(u64, u64, i64)]) -> Vec<Option<i64>> {
        let mut steps = ClockSteps::new();
        let see = |(at_ms, took_ms, ahead_ms): &(u64, u64, i64)| {
            let reading = reading(&steps, *at_ms, *took_ms, *ahead_ms);
            let answered_ms = at_ms + took_ms;
            steps.see(
                &reading,
                host(*at_ms, *at_ms),
                host(answered_ms, answered_ms),
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
        let back = seen(&[(0, 2, 0), (500, 2, -700), (1_000, 2, -700)]);
        assert!(
            matches!(back[..], [None, None, Some(-700..=-690)]),
            "{back:?}"
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

    /// Answers that took long bound nothing: the broker was stopped, or the server stood still.
    #[test]
    fn a_stall_or_a_suspend_is_not_reported_as_a_clock_step() {
        assert_eq!(
            seen(&[(0, 2, 0), (500, 8_000, 0), (8_500, 2, 0), (9_000, 2, 0)]),
            [None; 4]
        );
        let mut steps = ClockSteps::new();
        let readings = [(0, 0), (500, 500), (1_000, 61_000), (1_500, 61_500)];
        for (at_ms, boot_ms) in readings {
            // The host was suspended for a minute, during which the server's clock went on.
            let ahead_ms = i64::try_from(boot_ms - at_ms).unwrap_or_default();
            let reading = reading(&steps, at_ms, 2, ahead_ms);
            let host = host(at_ms, boot_ms);
            assert_eq!(steps.see(&reading, host, host), None);
        }
    }

    /// The server read its clock before the host was suspended, and the answer was read after that.
    #[test]
    fn a_suspend_while_an_answer_is_under_way_is_not_reported_as_a_clock_step() {
        let mut steps = ClockSteps::new();
        let probes = [
            (0, 0, 0, 0),
            (500, 0, 500, 60_500),
            (1_000, 60_000, 61_000, 61_000),
            (1_500, 60_000, 61_500, 61_500),
            (2_000, 60_000, 62_000, 62_000),
        ];
        for (at_ms, ahead_ms, asked_boot_ms, answered_boot_ms) in probes {
            let reading = reading(&steps, at_ms, 2, ahead_ms);
            let asked = host(at_ms, asked_boot_ms);
            let answered = host(at_ms + 2, answered_boot_ms + 2);
            assert_eq!(steps.see(&reading, asked, answered), None, "{at_ms}");
        }
    }

    #[test]
    fn a_clock_step_during_a_slow_answer_is_reported_afterwards() {
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
}
