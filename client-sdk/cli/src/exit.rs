//! How this program ends: its exit codes, and failures that have one.

use leasehold_proto::v1::ErrorReason as Reason;

/// The lock was lost while something relied on it.
pub(crate) const LOST: u8 = 123;
/// The lock was not obtained.
pub(crate) const NOT_OBTAINED: u8 = 124;
/// The broker, the command line or the configuration.
pub(crate) const OWN_FAILURE: u8 = 125;
/// The command is there, but cannot be run.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// There is no such command.
pub(crate) const NO_COMMAND: u8 = 127;
/// What a signal's number is added to.
pub(crate) const SIGNALLED: i32 = 128;

/// Shown below every `--help`.
pub(crate) const TABLE: &str = "\
Exit codes:
  0      done; of `run`: that of the command, as every code that is not below
  123    the lock was lost: by `run` while the command ran, by the others before the call
  124    the lock was not obtained: it is held, or the wait is over (`-E` changes it, `--skip` makes it 0)
  125    leasehold itself failed: no broker, not allowed, wrong usage or configuration
  126    `run`: the command cannot be executed
  127    `run`: there is no such command
  128+N  `run`: signal N ended the command; while waiting: signal N ended leasehold";

/// Why this program ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    /// With which code.
    pub(crate) code: u8,
    /// What, why, and what next. Empty: all is said already.
    pub(crate) text: String,
}

impl Failure {
    /// A failure of this program or of what it needs.
    pub(crate) fn own(text: impl Into<String>) -> Self {
        Self::new(OWN_FAILURE, text)
    }

    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

/// 128+N; what is no signal's number is told apart from every signal.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
}

/// The code for what a broker says.
pub(crate) fn of_reason(reason: Option<Reason>) -> u8 {
    const BUSY: [Reason; 4] = [
        Reason::LockHeld,
        Reason::WaitTimeout,
        Reason::StillQueued,
        Reason::QueueFull,
    ];
    const OVER: [Reason; 5] = [
        Reason::LeaseExpired,
        Reason::LeaseRevoked,
        Reason::LeaseNotFound,
        Reason::StaleToken,
        Reason::StaleAttach,
    ];
    match reason {
        Some(reason) if BUSY.contains(&reason) => NOT_OBTAINED,
        Some(reason) if OVER.contains(&reason) => LOST,
        Some(_) | None => OWN_FAILURE,
    }
}
