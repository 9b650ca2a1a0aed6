//! The client's thread, and the tasks on it that keep leases alive.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    client::SHUTDOWN_LIMIT,
    endpoint::SharedBrokers,
    error::{ConnectError, Error},
    keeper::{self, Link},
    order::Order,
};

/// Leases and waits of one stream, as the broker allows.
const STREAM_LEASES_MAX: usize = 1_000;

/// What the guards and clones of a client share. Dropped with the last, it ends the thread.
pub(crate) struct Core {
    backend: Backend,
    runtime: Handle,
    tasks: TaskTracker,
    keepers: Mutex<Vec<Keeper>>,
    over: CancellationToken,
}

/// Who answers.
#[derive(Debug)]
pub(crate) enum Backend {
    Brokers(SharedBrokers),
    #[cfg(feature = "fake")]
    Fake(crate::fake::Broker),
}

/// The way to one stream's leases.
pub(crate) type Orders = mpsc::UnboundedSender<Order>;

/// A task that keeps the leases of one stream.
struct Keeper {
    orders: Orders,
    load: Arc<AtomicUsize>,
}

/// A place on a stream for one lease or wait, until dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Core {
    /// Connects to the first endpoint that answers.
    pub(crate) async fn connect(brokers: SharedBrokers) -> Result<Arc<Self>, ConnectError> {
        let core = Self::start(Backend::Brokers(Arc::clone(&brokers)))?;
        let first = core.run(async move { keeper::first_link(&brokers).await });
        let gone = || ConnectError::Unreachable("the client's thread has ended".to_owned());
        let first = first.await.ok_or_else(gone)?;
        let first = first.map_err(|not_open| match not_open.is_denied {
            true => ConnectError::CredentialRefused(not_open.why),
            false => ConnectError::Unreachable(not_open.why),
        })?;
        core.new_keeper(&mut core.keepers(), Some(first));
        Ok(core)
    }

    pub(crate) fn start(backend: Backend) -> Result<Arc<Self>, ConnectError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (over, tasks) = (CancellationToken::new(), TaskTracker::new());
        let core = Arc::new(Self {
            backend,
            runtime: runtime.handle().clone(),
            tasks: tasks.clone(),
            keepers: Mutex::default(),
            over: over.clone(),
        });
        let serve = async move {
            over.cancelled().await;
            tasks.close();
            // Then the process has to go on without.
            let _ = timeout(SHUTDOWN_LIMIT, tasks.wait()).await;
        };
        let thread = thread::Builder::new().name("leasehold".to_owned());
        thread.spawn(move || runtime.block_on(serve))?;
        Ok(core)
    }

    /// The keeper for one more lease or wait, and its place there.
    pub(crate) fn place(&self) -> Result<(Orders, Slot), Error> {
        let mut keepers = self.keepers();
        if self.over.is_cancelled() {
            return Err(Error::Closed);
        }
        let is_free = |keeper: &&Keeper| keeper.load.load(Ordering::Relaxed) < STREAM_LEASES_MAX;
        if keepers.iter().find(is_free).is_none() {
            self.new_keeper(&mut keepers, None);
        }
        let keeper = keepers.iter().find(is_free).ok_or(Error::Closed)?;
        keeper.load.fetch_add(1, Ordering::Relaxed);
        Ok((keeper.orders.clone(), Slot(Arc::clone(&keeper.load))))
    }

    /// Any keeper.
    pub(crate) fn any(&self) -> Result<Orders, Error> {
        self.place().map(|(orders, _)| orders)
    }

    /// Sleeps on whatever executor.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.run(sleep(time)).await;
    }

    pub(crate) async fn shutdown(&self) {
        let keepers = {
            let mut keepers = self.keepers();
            // A call that comes now must not start another one, which nobody would close.
            self.over.cancel();
            std::mem::take(&mut *keepers)
        };
        let closed = keepers.into_iter().map(|keeper| async move {
            let (done, is_done) = oneshot::channel();
            // A keeper that has ended needs no order.
            let _ = keeper.orders.send(Order::Close { done });
            let _ = is_done.await;
        });
        join_all(closed).await;
    }

    /// Runs something on the client's thread; `None` if that ends meanwhile.
    async fn run<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.tasks.spawn_on(what, &self.runtime).await.ok()
    }

    fn new_keeper(&self, keepers: &mut Vec<Keeper>, first: Option<(usize, Box<Link>)>) {
        let (orders, received) = mpsc::unbounded_channel();
        match &self.backend {
            Backend::Brokers(brokers) => {
                let keeper = keeper::Keeper::new(Arc::clone(brokers), first);
                self.tasks.spawn_on(keeper.run(received), &self.runtime);
            }
            #[cfg(feature = "fake")]
            Backend::Fake(fake) => {
                let serve = fake.clone().serve(received);
                self.tasks.spawn_on(serve, &self.runtime);
            }
        }
        let load = Arc::default();
        keepers.push(Keeper { orders, load });
    }

    fn keepers(&self) -> MutexGuard<'_, Vec<Keeper>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}
