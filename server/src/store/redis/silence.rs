//! Silence of a server, after which it may have been replaced.
//!
//! A process that was stopped, or a host that was disconnected, may have been replaced meanwhile. A
//! master that resumes accepts writes for up to a second, until it counts its replicas or is
//! notified of its successor. A server that was silent is therefore used only after a rest, in
//! which that has happened.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{clock::boot_time, connect::OpenedNode, connection::NodeError, node::Node};
use crate::time::millis;

/// Longest silence after which a server is used without a rest. Promotions take longer, and leases
/// are renewed at a new master only after `store.former_master_max` has passed.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Time for which the server must then reply before it is used.
pub(super) const PROBATION: Duration = Duration::from_secs(2);

/// Time of a server's last reply, in milliseconds of the clock that also runs while this host is
/// suspended.
#[derive(Debug)]
pub(super) struct LastReply(AtomicU64);

/// The process that served last, until another process serves.
#[derive(Debug, Default)]
pub(super) struct SilenceCheck {
    last: Option<LastProcess>,
}

#[derive(Debug)]
struct LastProcess {
    run_id: String,
    replied_ms: u64,
    may_be_replaced: bool,
    recovery: Option<Recovery>,
}

/// A server that replies again after a silence.
#[derive(Debug, Clone, Copy)]
struct Recovery {
    since_ms: u64,
    answered_ms: u64,
}

impl LastReply {
    pub(super) fn now() -> Self {
        Self(AtomicU64::new(boot_ms()))
    }

    /// Records a reply of the server at `now_ms`. If the previous silence was too long, returns its
    /// length and records nothing, so that the gap remains.
    pub(super) fn record(&self, now_ms: u64) -> Option<Duration> {
        let silent = silence_over_limit(now_ms, self.ms());
        if silent.is_none() {
            self.0.fetch_max(now_ms, Ordering::Relaxed);
        }
        silent
    }

    pub(super) fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl SilenceCheck {
    /// Records that a node has closed.
    pub(super) fn record_closed(&mut self, node: &Node) {
        self.last = Some(LastProcess {
            run_id: node.run_id().to_owned(),
            replied_ms: node.last_reply_ms(),
            may_be_replaced: node.may_be_replaced(),
            recovery: None,
        });
    }

    /// Checks that a node that was just opened may be used.
    ///
    /// # Errors If its process may have been replaced and has not yet replied for [`PROBATION`].
    pub(super) fn check(&mut self, opened: &OpenedNode) -> Result<(), NodeError> {
        let node = &opened.node;
        if self.may_be_used(node.run_id(), node.may_be_replaced(), boot_ms()) {
            return Ok(());
        }
        Err(NodeError::Unreachable(format!(
            "{} did not answer for more than {} s and may have been replaced. It is used after it has answered for \
             {} s, if it is still the master.",
            opened.endpoint.name(),
            SILENT_MAX.as_secs(),
            PROBATION.as_secs()
        )))
    }

    /// Returns true if a process that replies at `now_ms` may be used.
    fn may_be_used(&mut self, run_id: &str, may_be_replaced: bool, now_ms: u64) -> bool {
        let is_same = |last: &&mut LastProcess| last.run_id == run_id;
        let Some(last) = self.last.as_mut().filter(is_same) else {
            return true;
        };
        let was_silent = silence_over_limit(now_ms, last.replied_ms).is_some();
        if !was_silent || !(last.may_be_replaced || may_be_replaced) {
            return true;
        }
        let since_ms = match last.recovery {
            Some(awake) if silence_over_limit(now_ms, awake.answered_ms).is_none() => {
                awake.since_ms
            }
            Some(_) | None => now_ms,
        };
        if Duration::from_millis(now_ms - since_ms) >= PROBATION {
            self.last = None;
            return true;
        }
        last.recovery = Some(Recovery {
            since_ms,
            answered_ms: now_ms,
        });
        false
    }
}

/// Returns the length of a server's silence, if it is too long.
pub(super) fn silence_over_limit(now_ms: u64, last_reply_ms: u64) -> Option<Duration> {
    let silent = Duration::from_millis(now_ms.saturating_sub(last_reply_ms));
    (silent > SILENT_MAX).then_some(silent)
}

/// Returns the time in milliseconds of the clock that also runs while this host is suspended.
pub(super) fn boot_ms() -> u64 {
    millis(boot_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN_MS: u64 = 5_000_000;

    /// Returns the state after the process `one`, which can be replaced, has ended. Its last reply
    /// was at `BEGIN_MS`.
    fn served_until_begin() -> SilenceCheck {
        served(true)
    }

    /// Returns the state after the process `one` has ended. Its last reply was at `BEGIN_MS`.
    fn served(may_be_replaced: bool) -> SilenceCheck {
        SilenceCheck {
            last: Some(LastProcess {
                run_id: "one".to_owned(),
                replied_ms: BEGIN_MS,
                may_be_replaced,
                recovery: None,
            }),
        }
    }

    /// Returns true if the process `run_id` may be used `after_ms` after `BEGIN_MS`.
    fn may_be_used(silence: &mut SilenceCheck, run_id: &str, after_ms: u64) -> bool {
        silence.may_be_used(run_id, true, BEGIN_MS + after_ms)
    }

    #[test]
    fn a_server_is_silent_after_more_than_two_seconds() {
        let last_reply = LastReply(AtomicU64::new(BEGIN_MS));
        assert_eq!(last_reply.record(BEGIN_MS + 2_000), None);
        assert_eq!(last_reply.record(BEGIN_MS + 4_000), None);
        let gap = last_reply.record(BEGIN_MS + 6_001);
        assert_eq!(gap, Some(Duration::from_millis(2_001)));
    }

    #[test]
    fn a_gap_stays_although_the_server_replies_again() {
        let last_reply = LastReply(AtomicU64::new(BEGIN_MS));
        assert!(last_reply.record(BEGIN_MS + 2_001).is_some());
        assert_eq!(last_reply.ms(), BEGIN_MS);
        let gap = last_reply.record(BEGIN_MS + 2_002);
        assert_eq!(gap, Some(Duration::from_millis(2_002)));
    }

    #[test]
    fn a_late_reply_does_not_set_the_last_reply_back() {
        let last_reply = LastReply(AtomicU64::new(BEGIN_MS));
        assert_eq!(last_reply.record(BEGIN_MS - 500), None);
        assert_eq!(last_reply.ms(), BEGIN_MS);
    }

    #[test]
    fn a_process_is_used_at_once_without_a_silence() {
        assert!(may_be_used(&mut SilenceCheck::default(), "one", 60_000));
        assert!(may_be_used(&mut served_until_begin(), "one", 2_000));
    }

    #[test]
    fn another_process_is_used_at_once() {
        assert!(may_be_used(&mut served_until_begin(), "two", 60_000));
    }

    #[test]
    fn a_silent_process_is_used_after_it_has_replied_for_two_seconds() {
        let mut silence = served_until_begin();
        for after_ms in [2_001, 3_000, 4_000] {
            assert!(!may_be_used(&mut silence, "one", after_ms), "{after_ms}");
        }
        assert!(may_be_used(&mut silence, "one", 4_001));
        assert!(may_be_used(&mut silence, "one", 60_000), "until it ends");
    }

    #[test]
    fn a_silence_in_the_quiet_period_restarts_it() {
        let mut silence = served_until_begin();
        assert!(!may_be_used(&mut silence, "one", 10_000));
        assert!(!may_be_used(&mut silence, "one", 12_001), "2,001 ms silent");
        assert!(!may_be_used(&mut silence, "one", 14_000));
        assert!(may_be_used(&mut silence, "one", 14_001));
    }

    #[test]
    fn a_process_that_cannot_be_replaced_is_used_at_once() {
        let check = |could_before, can_now| {
            served(could_before).may_be_used("one", can_now, BEGIN_MS + 60_000)
        };
        assert!(check(false, false));
        assert!(!check(true, false));
        assert!(!check(false, true));
    }
}
