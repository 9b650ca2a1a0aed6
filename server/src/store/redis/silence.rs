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
        let now_ms = boot_ms();
        let silent = too_long(now_ms, self.ms());
        if silent.is_none() {
            self.0.fetch_max(now_ms, Ordering::Relaxed);
        }
        silent
    }

    /// How long the server is silent, if that is too long.
    pub(super) fn silent(&self) -> Option<Duration> {
        too_long(boot_ms(), self.ms())
    }

    pub(super) fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
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
        let is_same = |last: &&mut Served| last.run_id == opened.node.run_id();
        let Some(last) = self.last.as_mut().filter(is_same) else {
            return Ok(());
        };
        let now_ms = boot_ms();
        let was_silent = too_long(now_ms, last.answered_ms).is_some();
        if !was_silent || !(last.may_be_replaced || opened.node.may_be_replaced()) {
            return Ok(());
        }
        let since_ms = match last.awake {
            Some(awake) if too_long(now_ms, awake.answered_ms).is_none() => awake.since_ms,
            Some(_) | None => now_ms,
        };
        if Duration::from_millis(now_ms - since_ms) >= REST {
            self.last = None;
            return Ok(());
        }
        last.awake = Some(Awake {
            since_ms,
            answered_ms: now_ms,
        });
        Err(NodeError::Unreachable(format!(
            "{} did not answer for more than {} s and may have been replaced. It is used after it has answered for \
             {} s, if it is still the master.",
            opened.endpoint.name(),
            SILENT_MAX.as_secs(),
            REST.as_secs()
        )))
    }
}

fn too_long(now_ms: u64, answered_ms: u64) -> Option<Duration> {
    let silent = Duration::from_millis(now_ms.saturating_sub(answered_ms));
    (silent > SILENT_MAX).then_some(silent)
}

fn boot_ms() -> u64 {
    u64::try_from(boot_time().as_millis()).unwrap_or(u64::MAX)
}
