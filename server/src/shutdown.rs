//! When to stop: the first signal begins an orderly stop, the second one ends the process now.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// SIGTERM and SIGINT, caught from now on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

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

    /// Cancels `stop` at the first signal and ends at the second.
    pub async fn second(mut self, stop: CancellationToken) {
        let name = self.next().await;
        tracing::info!(
            signal = name,
            "stopping; a second signal ends the process now"
        );
        stop.cancel();
        let name = self.next().await;
        tracing::warn!(signal = name, "second signal: ending now");
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
