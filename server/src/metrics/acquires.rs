//! Acquires: what became of each, how long it took, and which of them wait.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::time::Instant;

use super::{
    All, Metrics,
    labels::{self, CANCELLED, DENIED, GRANTED, INVALID},
    namespaces::Namespace,
    seconds,
};
use crate::lock::{AcquireCall, LockError, LockKey, Mode};

/// Numbers of calls that wait, so that those of one moment differ.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A call from its beginning to its answer.
#[derive(Default)]
pub struct Timed(Option<Running>);

struct Running {
    all: Arc<All>,
    /// That of its first lock.
    namespace: Arc<Namespace>,
    mode: usize,
    begun: Instant,
    /// For one lock that it was granted at once.
    is_uncontended: AtomicBool,
}

/// A call in line, until dropped.
pub struct Waiting(Option<InLine>);

struct InLine {
    namespace: Arc<Namespace>,
    mode: usize,
    number: (Instant, u64),
}

impl Metrics {
    /// A call begins.
    #[must_use]
    pub fn begin(&self, call: &AcquireCall) -> Timed {
        Timed(self.0.as_ref().map(|all| {
            let mode = call
                .targets
                .first()
                .map_or(Mode::Exclusive, |target| target.mode);
            Running {
                all: Arc::clone(all),
                namespace: all.namespaces.admit(call.first().namespace()),
                mode: labels::mode(mode),
                begun: Instant::now(),
                is_uncontended: AtomicBool::new(call.targets.len() == 1),
            }
        }))
    }

    /// What was asked for is no call, or is not allowed. Nobody gets a namespace counted by that.
    pub fn not_begun(&self, is_denied: bool) {
        if let Some(all) = &self.0 {
            let outcome = if is_denied { DENIED } else { INVALID };
            all.namespaces.of("").acquired(None, outcome, None);
        }
    }
}

impl Timed {
    /// It waits in line from now on.
    #[must_use]
    pub fn wait(&self, lock: &LockKey, mode: Mode) -> Waiting {
        Waiting(self.0.as_ref().map(|running| {
            running.is_uncontended.store(false, Ordering::Relaxed);
            let namespace = running.all.namespaces.admit(lock.namespace());
            let number = (Instant::now(), NUMBERS.fetch_add(1, Ordering::Relaxed));
            let mode = labels::mode(mode);
            namespace.waiters(mode).inc();
            namespace.waiting().insert(number);
            InLine {
                namespace,
                mode,
                number,
            }
        }))
    }

    /// It has a lock for which it waited, and of whose grant the broker heard then.
    pub fn handed_over(&self, heard: Instant) {
        if let Some(running) = &self.0 {
            running.all.handover.observe(seconds(heard.elapsed()));
        }
    }

    /// It is granted.
    pub fn granted(&self) {
        if let Some(running) = &self.0 {
            let took = seconds(running.begun.elapsed());
            if running.is_uncontended.load(Ordering::Relaxed) {
                running.all.uncontended.observe(took);
            }
            running
                .namespace
                .acquired(Some(running.mode), GRANTED, Some(took));
        }
    }

    /// Nobody waits for its answer any more.
    pub fn abandoned(&self) {
        self.end(CANCELLED);
    }

    /// It got nothing.
    pub fn failed(&self, error: &LockError) {
        self.end(labels::outcome(error));
    }

    fn end(&self, outcome: usize) {
        if let Some(running) = &self.0 {
            let took = seconds(running.begun.elapsed());
            running
                .namespace
                .acquired(Some(running.mode), outcome, Some(took));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(InLine {
            namespace,
            mode,
            number,
        }) = &self.0
        {
            namespace.waiters(*mode).dec();
            namespace.waiting().remove(number);
        }
    }
}
