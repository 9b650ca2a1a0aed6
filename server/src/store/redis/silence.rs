//! Gaps in the answers of a server.
//!
//! A process that was stopped, or a host that was cut off, may have been replaced meanwhile: a master that wakes
//! up takes writes for up to a second, until it counts its replicas or hears of its successor. So a server that did
//! not answer for a while is not used before it had the time to learn that.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{clock_step::boot_time, connection::NodeError, node::Node, open::Opened};

/// A server that was silent for longer may have been replaced. Promotions take longer, and nobody renews at a new
/// master before `store.former_master_max` has passed.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// How long it then has to answer before it is used.
pub(super) const REST: Duration = Duration::from_secs(2);

/// When a server last answered, in milliseconds of the clock that does not stand still while this host is suspended.
#[derive(Debug)]
pub(super) struct LastAnswer(AtomicU64);

/// What is known of the process that served last, until another one serves.
#[derive(Debug, Default)]
pub(super) struct Silence {
    last: Option<Served>,
}

#[derive(Debug)]
struct Served {
    run_id: String,
    answered_ms: u64,
    may_be_replaced: bool,
    awake: Option<Awake>,
}

/// The process of a node that was just opened.
#[derive(Debug, Clone, Copy)]
struct Process<'a> {
    run_id: &'a str,
    may_be_replaced: bool,
}

/// A server that answers again.
#[derive(Debug, Clone, Copy)]
struct Awake {
    since_ms: u64,
    answered_ms: u64,
}

impl LastAnswer {
    pub(super) fn now() -> Self {
        Self(AtomicU64::new(boot_ms()))
    }

    /// The server answers. How long it was silent before, if that was too long: the gap stays then.
    pub(super) fn renew(&self) -> Option<Duration> {
        self.renew_at(boot_ms())
    }

    /// How long the server is silent, if that is too long.
    pub(super) fn silent(&self) -> Option<Duration> {
        too_long(boot_ms(), self.ms())
    }

    pub(super) fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn renew_at(&self, now_ms: u64) -> Option<Duration> {
        let silent = too_long(now_ms, self.ms());
        if silent.is_none() {
            self.0.fetch_max(now_ms, Ordering::Relaxed);
        }
        silent
    }
}

impl Silence {
    /// A node has ended.
    pub(super) fn ended(&mut self, node: &Node) {
        self.last = Some(Served {
            run_id: node.run_id().to_owned(),
            answered_ms: node.last_answer_ms(),
            may_be_replaced: node.may_be_replaced(),
            awake: None,
        });
    }

    /// Whether a node may be used that was just opened.
    ///
    /// # Errors
    /// While its process, which may have been replaced, has not answered for long enough.
    pub(super) fn check(&mut self, opened: &Opened) -> Result<(), NodeError> {
        let process = Process {
            run_id: opened.node.run_id(),
            may_be_replaced: opened.node.may_be_replaced(),
        };
        if self.may_be_used(process, boot_ms()) {
            return Ok(());
        }
        Err(NodeError::Unreachable(format!(
            "{} did not answer for more than {} s and may have been replaced. It is used after it has answered for \
             {} s, if it is still the master.",
            opened.endpoint.name(),
            SILENT_MAX.as_secs(),
            REST.as_secs()
        )))
    }

    /// Returns whether a process that answers at `now_ms` may be used.
    fn may_be_used(&mut self, process: Process<'_>, now_ms: u64) -> bool {
        let is_same = |last: &&mut Served| last.run_id == process.run_id;
        let Some(last) = self.last.as_mut().filter(is_same) else {
            return true;
        };
        let was_silent = too_long(now_ms, last.answered_ms).is_some();
        if !was_silent || !(last.may_be_replaced || process.may_be_replaced) {
            return true;
        }
        let since_ms = match last.awake {
            Some(awake) if too_long(now_ms, awake.answered_ms).is_none() => awake.since_ms,
            Some(_) | None => now_ms,
        };
        if Duration::from_millis(now_ms - since_ms) >= REST {
            self.last = None;
            return true;
        }
        last.awake = Some(Awake {
            since_ms,
            answered_ms: now_ms,
        });
        false
    }
}

fn too_long(now_ms: u64, answered_ms: u64) -> Option<Duration> {
    let silent = Duration::from_millis(now_ms.saturating_sub(answered_ms));
    (silent > SILENT_MAX).then_some(silent)
}

fn boot_ms() -> u64 {
    u64::try_from(boot_time().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN_MS: u64 = 5_000_000;

    /// After the process `one` that can be replaced has ended, which answered last at `BEGIN_MS`.
    fn served_until_begin() -> Silence {
        served(true)
    }

    /// After the process `one` has ended, which answered last at `BEGIN_MS`.
    fn served(may_be_replaced: bool) -> Silence {
        Silence {
            last: Some(Served {
                run_id: "one".to_owned(),
                answered_ms: BEGIN_MS,
                may_be_replaced,
                awake: None,
            }),
        }
    }

    /// Whether the process `run_id` may be used so long after `BEGIN_MS`.
    fn may_be_used(silence: &mut Silence, run_id: &str, after_ms: u64) -> bool {
        let process = Process {
            run_id,
            may_be_replaced: true,
        };
        silence.may_be_used(process, BEGIN_MS + after_ms)
    }

    #[test]
    fn a_server_is_silent_after_more_than_two_seconds() {
        let last_answer = LastAnswer(AtomicU64::new(BEGIN_MS));
        assert_eq!(last_answer.renew_at(BEGIN_MS + 2_000), None);
        assert_eq!(last_answer.renew_at(BEGIN_MS + 4_000), None);
        let gap = last_answer.renew_at(BEGIN_MS + 6_001);
        assert_eq!(gap, Some(Duration::from_millis(2_001)));
    }

    #[test]
    fn a_gap_stays_although_the_server_answers_again() {
        let last_answer = LastAnswer(AtomicU64::new(BEGIN_MS));
        assert!(last_answer.renew_at(BEGIN_MS + 2_001).is_some());
        assert_eq!(last_answer.ms(), BEGIN_MS);
        let gap = last_answer.renew_at(BEGIN_MS + 2_002);
        assert_eq!(gap, Some(Duration::from_millis(2_002)));
    }

    #[test]
    fn a_late_answer_does_not_set_the_last_one_back() {
        let last_answer = LastAnswer(AtomicU64::new(BEGIN_MS));
        assert_eq!(last_answer.renew_at(BEGIN_MS - 500), None);
        assert_eq!(last_answer.ms(), BEGIN_MS);
    }

    #[test]
    fn a_process_is_used_at_once_without_a_silence() {
        assert!(may_be_used(&mut Silence::default(), "one", 60_000));
        assert!(may_be_used(&mut served_until_begin(), "one", 2_000));
    }

    #[test]
    fn another_process_is_used_at_once() {
        assert!(may_be_used(&mut served_until_begin(), "two", 60_000));
    }

    #[test]
    fn a_process_that_was_silent_is_used_after_it_answered_for_two_seconds() {
        let mut silence = served_until_begin();
        for after_ms in [2_001, 3_000, 4_000] {
            assert!(!may_be_used(&mut silence, "one", after_ms), "{after_ms}");
        }
        assert!(may_be_used(&mut silence, "one", 4_001));
        assert!(may_be_used(&mut silence, "one", 60_000), "until it ends");
    }

    #[test]
    fn a_silence_while_a_process_rests_begins_the_rest_again() {
        let mut silence = served_until_begin();
        assert!(!may_be_used(&mut silence, "one", 10_000));
        assert!(!may_be_used(&mut silence, "one", 12_001), "2,001 ms silent");
        assert!(!may_be_used(&mut silence, "one", 14_000));
        assert!(may_be_used(&mut silence, "one", 14_001));
    }

    #[test]
    fn a_process_that_cannot_be_replaced_is_used_at_once() {
        let check = |could_before, can_now| {
            let process = Process {
                run_id: "one",
                may_be_replaced: can_now,
            };
            served(could_before).may_be_used(process, BEGIN_MS + 60_000)
        };
        assert!(check(false, false));
        assert!(!check(true, false));
        assert!(!check(false, true));
    }
}
