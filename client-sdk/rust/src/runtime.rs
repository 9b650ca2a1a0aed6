//! The client's thread, and the session tasks on it that renew leases.

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
    client::SHUTDOWN_TIMEOUT,
    command::Command,
    endpoint::SharedEndpoints,
    error::{ConnectError, Error},
    session::{self, StreamConnection},
};

/// Maximum number of leases and pending acquires on one stream, as the broker allows.
const STREAM_LEASES_MAX: usize = 1_000;

/// State shared by the guards and clones of a client. Dropping the last reference ends the thread.
pub(crate) struct ClientRuntime {
    backend: Backend,
    runtime: Handle,
    tasks: TaskTracker,
    sessions: Mutex<Vec<SessionHandle>>,
    closed: CancellationToken,
}

/// The brokers, or the fake broker of tests.
#[derive(Debug)]
pub(crate) enum Backend {
    Brokers(SharedEndpoints),
    #[cfg(feature = "fake")]
    Fake(crate::fake::Broker),
}

/// Sender of commands to a session task.
pub(crate) type CommandSender = mpsc::UnboundedSender<Command>;

/// Handle of a session task, which renews the leases of one stream.
struct SessionHandle {
    commands: CommandSender,
    load: Arc<AtomicUsize>,
}

/// Capacity on a stream for one lease or pending acquire, returned when dropped.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<AtomicUsize>);

impl ClientRuntime {
    /// Connects to the first endpoint that responds.
    pub(crate) async fn connect(brokers: SharedEndpoints) -> Result<Arc<Self>, ConnectError> {
        let client_runtime = Self::start(Backend::Brokers(Arc::clone(&brokers)))?;
        let first = client_runtime.run(async move { session::open_first_stream(&brokers).await });
        let thread_ended = || ConnectError::Unreachable("the client's thread has ended".to_owned());
        let first = first.await.ok_or_else(thread_ended)?;
        let first = first.map_err(|error| match error.is_denied {
            true => ConnectError::CredentialRefused(error.reason),
            false => ConnectError::Unreachable(error.reason),
        })?;
        client_runtime.start_session(&mut client_runtime.sessions(), Some(first));
        Ok(client_runtime)
    }

    pub(crate) fn start(backend: Backend) -> Result<Arc<Self>, ConnectError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (closed, tasks) = (CancellationToken::new(), TaskTracker::new());
        let client_runtime = Arc::new(Self {
            backend,
            runtime: runtime.handle().clone(),
            tasks: tasks.clone(),
            sessions: Mutex::default(),
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

    /// Returns the command sender of a session task with free capacity, and a slot on the stream of
    /// that task. Starts a session task if all others are full.
    pub(crate) fn session_with_capacity(&self) -> Result<(CommandSender, StreamSlot), Error> {
        let mut sessions = self.sessions();
        if self.closed.is_cancelled() {
            return Err(Error::Closed);
        }
        let is_free =
            |session: &&SessionHandle| session.load.load(Ordering::Relaxed) < STREAM_LEASES_MAX;
        if sessions.iter().find(is_free).is_none() {
            self.start_session(&mut sessions, None);
        }
        let session = sessions.iter().find(is_free).ok_or(Error::Closed)?;
        session.load.fetch_add(1, Ordering::Relaxed);
        Ok((
            session.commands.clone(),
            StreamSlot(Arc::clone(&session.load)),
        ))
    }

    /// Returns the command sender of any session task.
    pub(crate) fn any_session(&self) -> Result<CommandSender, Error> {
        self.session_with_capacity().map(|(commands, _)| commands)
    }

    /// Sleeps on the client's thread, so that the caller may use any executor.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.run(sleep(time)).await;
    }

    pub(crate) async fn shutdown(&self) {
        let sessions = {
            let mut sessions = self.sessions();
            // A later call must not start another session task, because it would never be closed.
            self.closed.cancel();
            std::mem::take(&mut *sessions)
        };
        let closed = sessions.into_iter().map(|session| async move {
            let (done, is_done) = oneshot::channel();
            // A session task that has ended needs no command.
            let _ = session.commands.send(Command::Close { done });
            let _ = is_done.await;
        });
        join_all(closed).await;
    }

    /// Runs a future on the client's thread. Returns `None` if the thread ends first.
    async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.tasks.spawn_on(future, &self.runtime).await.ok()
    }

    fn start_session(
        &self,
        sessions: &mut Vec<SessionHandle>,
        first: Option<(usize, Box<StreamConnection>)>,
    ) {
        let (commands, received) = mpsc::unbounded_channel();
        match &self.backend {
            Backend::Brokers(brokers) => {
                let session = session::Session::new(Arc::clone(brokers), first);
                self.tasks.spawn_on(session.run(received), &self.runtime);
            }
            #[cfg(feature = "fake")]
            Backend::Fake(fake) => {
                let serve = fake.clone().serve(received);
                self.tasks.spawn_on(serve, &self.runtime);
            }
        }
        let load = Arc::default();
        sessions.push(SessionHandle { commands, load });
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<SessionHandle>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ClientRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientRuntime").finish_non_exhaustive()
    }
}
