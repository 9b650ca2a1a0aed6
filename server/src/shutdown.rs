//! Shutdown on SIGTERM or SIGINT. The first signal starts a drain, and the second one ends the
//! process at once. In `dev`, SIGINT ends the process at once: no state outlives the process, so a
//! drain would preserve nothing.

use std::io;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Handlers of SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Error for a drain that was interrupted by a second signal.
#[derive(Debug, Error)]
#[error("terminated before the drain was complete")]
pub struct DrainInterrupted;

impl Signals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Cancels `stop` on the first signal, and returns when the process must end at once.
    ///
    /// # Errors
    /// If a second signal arrives.
    pub async fn wait_for_shutdown(
        mut self,
        dev: bool,
        stop: CancellationToken,
    ) -> Result<(), DrainInterrupted> {
        let first = self.next().await;
        if dev && first == SignalKind::interrupt() {
            return Ok(());
        }
        tracing::info!(
            signal = signal_name(first),
            "shutting down; a second signal terminates the process at once"
        );
        stop.cancel();
        let second = self.next().await;
        tracing::warn!(
            signal = signal_name(second),
            "second signal: terminating before the drain is complete"
        );
        Err(DrainInterrupted)
    }

    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

fn signal_name(signal: SignalKind) -> &'static str {
    if signal == SignalKind::interrupt() {
        "SIGINT"
    } else {
        "SIGTERM"
    }
}
