//! Exit codes of the program, and failures that carry one.

use leasehold_proto::v1::ErrorReason as Reason;

/// The lock was lost while a command relied on it.
pub(crate) const LOST: u8 = 123;
/// The lock was not acquired.
pub(crate) const NOT_OBTAINED: u8 = 124;
/// The program itself failed: the broker, the command line or the configuration.
pub(crate) const GENERAL_FAILURE: u8 = 125;
/// The command exists, but cannot be executed.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// The command does not exist.
pub(crate) const NO_COMMAND: u8 = 127;
/// Base to which the number of a signal is added.
pub(crate) const SIGNALLED: i32 = 128;

/// Table of exit codes at the end of every `--help`.
pub(crate) const TABLE: &str = "\
Exit codes:
  0      success; of `run`: the code of the command, as with every code that is not below
  123    the lock was lost: by `run` before the command ended, by the others before the call
  124    the lock was not acquired: it is held, or the wait has ended (`-E` changes it, `--skip` makes it 0)
  125    leasehold itself failed: no broker, permission denied, wrong usage or configuration
  126    `run`: the command cannot be executed
  127    `run`: the command does not exist
  128+N  `run`: signal N ended the command; while waiting: signal N ended leasehold";

/// Reason for which the program exits without success.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit code of the program.
    pub(crate) code: u8,
    /// Message: what failed, why, and what to do. Empty if everything was printed before.
    pub(crate) text: String,
}

impl Failure {
    /// Creates a failure of the program itself or of its environment.
    pub(crate) fn general(text: impl Into<String>) -> Self {
        Self::new(GENERAL_FAILURE, text)
    }

    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

/// Returns 128 plus the signal's number, or 255 for an invalid number.
pub(crate) fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
}

/// Returns the exit code for the error reason of a broker.
pub(crate) fn code_of_reason(reason: Option<Reason>) -> u8 {
    const CONTENTION: [Reason; 4] = [
        Reason::LockHeld,
        Reason::WaitTimeout,
        Reason::StillQueued,
        Reason::QueueFull,
    ];
    const LEASE_ENDED: [Reason; 5] = [
        Reason::LeaseExpired,
        Reason::LeaseRevoked,
        Reason::LeaseNotFound,
        Reason::StaleToken,
        Reason::StaleAttach,
    ];
    match reason {
        Some(reason) if CONTENTION.contains(&reason) => NOT_OBTAINED,
        Some(reason) if LEASE_ENDED.contains(&reason) => LOST,
        Some(_) | None => GENERAL_FAILURE,
    }
}
