//! The way from other tasks to the task of a connection.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::Waker,
};

use futures::task::AtomicWaker;

/// Closes a connection from another task, or lets it continue to read.
#[derive(Debug, Default)]
pub(super) struct Control {
    is_cut: AtomicBool,
    task: AtomicWaker,
}

impl Control {
    /// Closes the connection.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.task.wake();
    }

    /// Returns true once the connection is to close.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Has the connection check again whether it may read.
    pub(super) fn wake(&self) {
        self.task.wake();
    }

    /// Notes the connection's task. It checks [`is_cut`](Self::is_cut) afterwards.
    pub(super) fn register(&self, task: &Waker) {
        self.task.register(task);
    }
}
