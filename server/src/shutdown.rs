//! When to stop: the first signal begins an orderly stop, the second one ends the process now. In `dev`, SIGINT ends it
//! at once: nothing outlives the process, so a drain would keep nothing.

use std::io;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// SIGTERM and SIGINT, caught from now on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// A second signal came during the drain.
#[derive(Debug, Error)]
#[error("ended before the drain was complete")]
pub struct DrainCut;

impl Signals {
    /// Catches the signals.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Cancels `stop` at the first signal, and returns when the process is to end at once.
    ///
    /// # Errors
    /// If a second signal is the reason.
    pub async fn end(mut self, dev: bool, stop: CancellationToken) -> Result<(), DrainCut> {
        let first = self.next().await;
        if dev && first == SignalKind::interrupt() {
            return Ok(());
        }
        tracing::info!(
            signal = name(first),
            "stopping; a second signal ends the process now"
        );
        stop.cancel();
        let second = self.next().await;
        tracing::warn!(signal = name(second), "second signal: ending now");
        Err(DrainCut)
    }

    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

fn name(signal: SignalKind) -> &'static str {
    if signal == SignalKind::interrupt() {
        "SIGINT"
    } else {
        "SIGTERM"
    }
}
