//! The client's thread and the tasks on it.

use std::{fmt, sync::Arc, thread, time::Duration};

use tokio::{
    runtime::{Builder, Handle},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    client::SHUTDOWN_TIMEOUT,
    endpoint::SharedEndpoints,
    error::ConnectError,
    session::{self, SessionPool},
};

/// State shared by the guards and clones of a client. Dropping the last reference ends the thread.
pub(crate) struct ClientRuntime {
    pub(crate) pool: SessionPool,
    runtime: Handle,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// The brokers, or the fake broker of tests.
#[derive(Debug)]
pub(crate) enum Backend {
    Brokers(SharedEndpoints),
    #[cfg(feature = "fake")]
    Fake(crate::fake::Broker),
}

impl ClientRuntime {
    /// Connects to the first endpoint that responds.
    pub(crate) async fn connect(brokers: SharedEndpoints) -> Result<Arc<Self>, ConnectError> {
        let client_runtime = Self::start(Backend::Brokers(Arc::clone(&brokers)))?;
        let first = client_runtime.run(async move { session::open_first_stream(&brokers).await });
        let thread_ended = || ConnectError::Unreachable("the client's thread has ended".to_owned());
        let first = first.await.ok_or_else(thread_ended)?;
        let (endpoint, stream) = first.map_err(|error| match error.is_denied {
            true => ConnectError::CredentialRefused(error.reason),
            false => ConnectError::Unreachable(error.reason),
        })?;
        client_runtime.pool.start_first(endpoint, stream);
        Ok(client_runtime)
    }

    pub(crate) fn start(backend: Backend) -> Result<Arc<Self>, ConnectError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (closed, tasks) = (CancellationToken::new(), TaskTracker::new());
        let client_runtime = Arc::new(Self {
            pool: SessionPool::new(backend, handle.clone(), tasks.clone(), closed.clone()),
            runtime: handle,
            tasks: tasks.clone(),
            closed: closed.clone(),
        });
        let serve = async move {
            closed.cancelled().await;
            tasks.close();
            // After the timeout the thread ends although tasks are still running.
            let _ = timeout(SHUTDOWN_TIMEOUT, tasks.wait()).await;
        };
        let thread = thread::Builder::new().name("leasehold".to_owned());
        thread.spawn(move || runtime.block_on(serve))?;
        Ok(client_runtime)
    }

    /// Sleeps on the client's thread, so that the caller may use any executor.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.run(sleep(time)).await;
    }

    /// Runs a future on the client's thread. Returns `None` if the thread ends first.
    async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.tasks.spawn_on(future, &self.runtime).await.ok()
    }
}

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl fmt::Debug for ClientRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientRuntime").finish_non_exhaustive()
    }
}
