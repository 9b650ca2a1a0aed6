//! Fair semaphores that limit how many connections read at the same time. A permit is called a
//! turn.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// Turns for one purpose, granted in the order in which connections began to wait. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ReadPermits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// Turn of one connection. Dropping it releases the turn.
pub(super) struct ReadPermit {
    permits: ReadPermits,
    phase: Phase,
}

enum Phase {
    None,
    Waiting(BoxFuture<'static, Option<OwnedSemaphorePermit>>),
    Held {
        _permit: Option<OwnedSemaphorePermit>,
    },
}

/// Guard that counts a connection as waiting until dropped.
struct Waiting(Arc<Shared>);

impl ReadPermits {
    /// Creates a semaphore with `turns` turns.
    pub(super) fn new(permits: usize) -> Self {
        Self(Arc::new(Shared {
            free: Arc::new(Semaphore::new(permits)),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// Creates a semaphore with `turns` turns for each worker of the runtime.
    pub(super) fn per_worker(permits: usize) -> Self {
        let workers = Handle::try_current().map_or(1, |handle| handle.metrics().num_workers());
        Self::new(permits * workers)
    }

    /// Returns the number of free turns.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.free.available_permits()
    }
}

impl ReadPermit {
    /// Creates a handle that has no turn yet.
    pub(super) fn new(permits: &ReadPermits) -> Self {
        Self {
            permits: permits.clone(),
            phase: Phase::None,
        }
    }

    /// Waits for the turn, and keeps it until it is released.
    pub(super) fn poll_acquire(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Phase::None = self.phase {
            self.permits.0.waiting.fetch_add(1, Relaxed);
            let waiting = Waiting(Arc::clone(&self.permits.0));
            let permit = Arc::clone(&self.permits.0.free).acquire_owned();
            let permit = permit.map(|permit| {
                drop(waiting);
                permit.ok()
            });
            self.phase = Phase::Waiting(permit.boxed());
        }
        if let Phase::Waiting(permit) = &mut self.phase {
            self.phase = Phase::Held {
                _permit: ready!(permit.as_mut().poll(cx)),
            };
        }
        Poll::Ready(())
    }

    /// Releases the turn, or leaves the queue for it.
    pub(super) fn release(&mut self) {
        self.phase = Phase::None;
    }

    /// Returns true if the connection has the turn.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    /// Returns true if a connection waits for a turn of the same purpose.
    pub(super) fn is_awaited(&self) -> bool {
        self.permits.0.waiting.load(Relaxed) > 0
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
