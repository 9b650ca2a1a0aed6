//! Result of agreeing on the eras of some slots, for the node and for the log.

use fred::error::Error;
use tracing::{error, info, warn};

use super::slot::{era_key, ranges};
use crate::store::redis::{
    connection::plain_message,
    era_decision::EraWrite,
    era_sync::era_args,
    error_table::{CallerError, ErrorClass, NodeAction},
    log_throttle::LogThrottle,
    scripts::Command,
};

/// Result of agreeing on the eras of some slots.
#[derive(Debug, Default)]
pub(super) struct SyncReport {
    pub(super) written: Vec<u16>,
    /// The written slots that are in quarantine, and the longest quarantine.
    pub(super) quarantined: Vec<u16>,
    pub(super) quarantine_ms: u64,
    pub(super) redirected: Vec<u16>,
    pub(super) failed: Vec<u16>,
    pub(super) failure: String,
    /// True if an era that this process has used is missing in the store.
    pub(super) is_lost: bool,
}

/// An era to write for a slot, and the text that it replaces.
pub(super) struct PendingWrite {
    pub(super) slot: u16,
    pub(super) expected: String,
    pub(super) write: Box<EraWrite>,
}

impl SyncReport {
    pub(super) fn record_write(&mut self, slot: u16, wait_ms: u64) {
        self.written.push(slot);
        if wait_ms > 0 {
            self.quarantined.push(slot);
            self.quarantine_ms = self.quarantine_ms.max(wait_ms);
        }
    }

    pub(super) fn record_error(&mut self, slot: u16, error: &Error) {
        let class = ErrorClass::classify(error);
        if class.action == NodeAction::Redirect {
            self.redirected.push(slot);
            return;
        }
        self.failed.push(slot);
        self.failure = match class.caller_error {
            CallerError::Corrupt => "this version cannot read the era".to_owned(),
            CallerError::Unavailable | CallerError::Full => plain_message(error),
        };
    }

    /// Logs the result for operators.
    pub(super) fn log(&self, name: &str, throttle: &LogThrottle) {
        let (waiting, failed) = (&self.quarantined, &self.failed);
        if !waiting.is_empty() {
            warn!(
                slots = ranges(waiting.iter().copied()),
                wait_ms = self.quarantine_ms,
                "{name} may have lost locks: no new grants in these slots for a while"
            );
        } else if !self.written.is_empty() {
            info!(
                slots = ranges(self.written.iter().copied()),
                "{name} has eras written by this broker"
            );
        }
        let suppressed_before = throttle.should_log("era", &self.failure);
        if let (Some(suppressed), false) = (suppressed_before, failed.is_empty()) {
            error!(
                suppressed,
                slots = ranges(failed.iter().copied()),
                "{name} has slots without an era ({}): no new grants there",
                self.failure
            );
        }
    }
}

impl PendingWrite {
    pub(super) fn command(&self, prefix: &str) -> Command {
        Command {
            keys: vec![era_key(prefix, self.slot)],
            args: era_args(&self.expected, &self.write, String::new()),
        }
    }
}
