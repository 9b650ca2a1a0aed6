//! Signals to this program: those that are forwarded to the command, and those that end a wait.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

/// Signals that are forwarded to the command.
const FORWARDED: [Signal; 8] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
];
/// Signals that end a program without a command.
const TERMINATING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Signals that are caught from now on. Signals that were ignored when the program started stay
/// ignored, so that `nohup` works.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Catches the signals that `run` and `hold` handle.
    pub(crate) fn catch() -> Result<Self, Failure> {
        Self::catch_all_of(&FORWARDED)
            .map_err(|error| Failure::general(format!("cannot catch signals: {error}")))
    }

    pub(super) fn catch_all_of(signals: &[Signal]) -> io::Result<Self> {
        let ignored = ignored_mask();
        // SIGCHLD is always caught, because the exit of a child is detected by it.
        let is_caught = |signal: Signal| signal == Signal::CHILD || ignored & bit(signal) == 0;
        let caught = signals.iter().filter(|signal| is_caught(**signal));
        let caught = caught.map(|signal| Ok((*signal, stream(*signal)?)));
        caught.collect::<io::Result<_>>().map(Self)
    }

    /// Returns the next signal. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        for (signal, stream) in &mut self.0 {
            if Pin::new(stream).poll_recv(cx) == Poll::Ready(Some(())) {
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }

    /// Returns the number of the next signal that ends this program. Cancel safe.
    pub(crate) async fn next_termination(&mut self) -> i32 {
        loop {
            let signal = self.next().await;
            if TERMINATING.contains(&signal) {
                return signal.as_raw();
            }
        }
    }
}

fn stream(signal: Signal) -> io::Result<unix::Signal> {
    unix::signal(SignalKind::from_raw(signal.as_raw()))
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// Returns a bit mask of the ignored signals; 0 if the system does not report them.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
