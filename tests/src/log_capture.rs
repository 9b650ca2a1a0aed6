//! Everything that the test's own process logs, down to the finest level.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};

/// What was logged. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    /// Begins, for all threads; once in a process.
    #[must_use]
    pub fn begin() -> Self {
        let capture = Self::default();
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(capture.clone())
            .init();
        capture
    }

    /// So far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.written()).into_owned()
    }

    fn written(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for LogCapture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogCapture {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
