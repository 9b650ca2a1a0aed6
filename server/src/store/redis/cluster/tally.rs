//! What became of some slots of a node, for its settler and for the log.

use fred::error::Error;
use tracing::{error, info, warn};

use super::slot::{era_key, ranges};
use crate::store::redis::{
    complaints::Complaints,
    connection::plain,
    decide::Write,
    refusal::{Refusal, Then, Told},
    scripts::Command,
    settle::era_args,
};

/// What became of some slots.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) written: Vec<u16>,
    /// Those of them that wait, and for how long the last one does.
    pub(super) waiting: Vec<u16>,
    pub(super) wait_ms: u64,
    pub(super) elsewhere: Vec<u16>,
    pub(super) failed: Vec<u16>,
    pub(super) why: String,
    /// An era that this process knew is gone.
    pub(super) is_lost: bool,
}

/// What is to be written for a slot, instead of what.
pub(super) struct Due {
    pub(super) slot: u16,
    pub(super) expected: String,
    pub(super) write: Box<Write>,
}

impl Tally {
    pub(super) fn wrote(&mut self, slot: u16, wait_ms: u64) {
        self.written.push(slot);
        if wait_ms > 0 {
            self.waiting.push(slot);
            self.wait_ms = self.wait_ms.max(wait_ms);
        }
    }

    pub(super) fn refused(&mut self, slot: u16, error: &Error) {
        let refusal = Refusal::of(error);
        if refusal.then == Then::Elsewhere {
            self.elsewhere.push(slot);
            return;
        }
        self.failed.push(slot);
        self.why = match refusal.told {
            Told::Corrupt => "it is no era of this version".to_owned(),
            Told::Unavailable | Told::Full => plain(error),
        };
    }

    /// What an operator should know.
    pub(super) fn log(&self, name: &str, complaints: &Complaints) {
        let (waiting, failed) = (&self.waiting, &self.failed);
        if !waiting.is_empty() {
            warn!(
                slots = ranges(waiting.iter().copied()),
                wait_ms = self.wait_ms,
                "{name} may have lost locks: no new grants in these slots for a while"
            );
        } else if !self.written.is_empty() {
            info!(
                slots = ranges(self.written.iter().copied()),
                "{name} has eras written by this broker"
            );
        }
        let due = complaints.due("era", &self.why);
        if let (Some(untold), false) = (due, failed.is_empty()) {
            error!(
                untold,
                slots = ranges(failed.iter().copied()),
                "{name} has slots without an era ({}): no new grants there",
                self.why
            );
        }
    }
}

impl Due {
    pub(super) fn command(&self, prefix: &str) -> Command {
        Command {
            keys: vec![era_key(prefix, self.slot)],
            args: era_args(&self.expected, &self.write, String::new()),
        }
    }
}
