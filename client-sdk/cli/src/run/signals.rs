//! Signals to this program: those that it passes on, and those that end it while it waits.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

/// What is passed on to the command.
const PASSED_ON: [Signal; 8] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
];
/// What ends a program that only waits.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Caught from now on, but for those that were ignored when this program began: so is `nohup` obeyed.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Catches what `run` and `hold` need.
    pub(crate) fn catch() -> Result<Self, Failure> {
        Self::of(&PASSED_ON).map_err(|error| Failure::own(format!("cannot catch signals: {error}")))
    }

    /// Catches these.
    pub(super) fn of(signals: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        // Without this one nobody learns how a child ended.
        let is_caught = |signal: Signal| signal == Signal::CHILD || ignored & bit(signal) == 0;
        let caught = signals.iter().filter(|signal| is_caught(**signal));
        let caught = caught.map(|signal| Ok((*signal, stream(*signal)?)));
        caught.collect::<io::Result<_>>().map(Self)
    }

    /// The next signal. Cancel safe.
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

    /// The next signal that ends this program; its number. Cancel safe.
    pub(crate) async fn end(&mut self) -> i32 {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
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

/// A bit for each signal that is ignored; none where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
