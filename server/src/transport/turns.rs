//! Turns of connections: few connections have one at the same time, in the order in which they began to wait.

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

/// Turns for the same purpose. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// The turn of one connection. Dropped, it is left.
pub(super) struct Turn {
    turns: Turns,
    phase: Phase,
}

enum Phase {
    None,
    Waits(BoxFuture<'static, Option<OwnedSemaphorePermit>>),
    Has {
        _permit: Option<OwnedSemaphorePermit>,
    },
}

/// Counts a connection that waits, until dropped.
struct Waiting(Arc<Shared>);

impl Turns {
    /// Creates this number of turns.
    pub(super) fn new(turns: usize) -> Self {
        Self(Arc::new(Shared {
            free: Arc::new(Semaphore::new(turns)),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// Creates this number of turns for each worker of the runtime.
    pub(super) fn per_worker(turns: usize) -> Self {
        let workers = Handle::try_current().map_or(1, |handle| handle.metrics().num_workers());
        Self::new(turns * workers)
    }

    /// Returns how many turns are free.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.free.available_permits()
    }
}

impl Turn {
    /// Creates a turn that is not taken.
    pub(super) fn of(turns: &Turns) -> Self {
        Self {
            turns: turns.clone(),
            phase: Phase::None,
        }
    }

    /// Waits for the turn, and keeps it until it is left.
    pub(super) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Phase::None = self.phase {
            let waiting = Waiting::begin(&self.turns.0);
            let permit = Arc::clone(&self.turns.0.free).acquire_owned();
            let permit = permit.map(|permit| {
                drop(waiting);
                permit.ok()
            });
            self.phase = Phase::Waits(permit.boxed());
        }
        if let Phase::Waits(permit) = &mut self.phase {
            self.phase = Phase::Has {
                _permit: ready!(permit.as_mut().poll(cx)),
            };
        }
        Poll::Ready(())
    }

    /// Leaves the turn, or the queue for it.
    pub(super) fn leave(&mut self) {
        self.phase = Phase::None;
    }

    /// Returns whether the turn is taken.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self.phase, Phase::Has { .. })
    }

    /// Returns whether a connection waits for such a turn.
    pub(super) fn is_awaited(&self) -> bool {
        self.turns.0.waiting.load(Relaxed) > 0
    }
}

impl Waiting {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.waiting.fetch_add(1, Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
