//! Signals from other tasks to the task of a connection.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::task::AtomicWaker;

/// Handle to close a connection from another task, or to let it continue to read.
#[derive(Debug, Default)]
pub(super) struct Control {
    is_close_requested: AtomicBool,
    /// Waker of the connection's task, which then checks whether it must close or may read.
    pub(super) task: AtomicWaker,
}

impl Control {
    /// Requests that the connection's task closes the connection.
    pub(super) fn request_close(&self) {
        self.is_close_requested.store(true, Ordering::Relaxed);
        self.task.wake();
    }

    /// Returns true once the connection must close.
    pub(super) fn is_close_requested(&self) -> bool {
        self.is_close_requested.load(Ordering::Relaxed)
    }
}
