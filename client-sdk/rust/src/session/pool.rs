//! Session pool: the session tasks of one client.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use futures::future::join_all;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Session, StreamConnection};
use crate::{command::Command, error::Error, runtime::Backend};

/// Maximum number of leases and pending acquires on the stream of one session, as the broker
/// allows.
const STREAM_LEASES_MAX: usize = 1_000;

/// The session tasks of a client. Starts a further session when the streams of all others are full.
pub(crate) struct SessionPool {
    backend: Backend,
    runtime: Handle,
    tasks: TaskTracker,
    sessions: Mutex<Vec<SessionHandle>>,
    closed: CancellationToken,
}

/// Sender of commands to a session task.
pub(crate) type CommandSender = mpsc::UnboundedSender<Command>;

/// Handle of a session task, which renews the leases of one stream.
struct SessionHandle {
    commands: CommandSender,
    load: Arc<AtomicUsize>,
}

/// Capacity on the stream of a session for one lease or pending acquire, returned when dropped.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<AtomicUsize>);

impl SessionPool {
    /// Creates a pool without sessions, whose session tasks run on `runtime` and are counted in
    /// `tasks`. No session starts after `closed` is cancelled.
    pub(crate) fn new(
        backend: Backend,
        runtime: Handle,
        tasks: TaskTracker,
        closed: CancellationToken,
    ) -> Self {
        Self {
            backend,
            runtime,
            tasks,
            sessions: Mutex::default(),
            closed,
        }
    }

    /// Starts a session with an open stream. `endpoint` is the index of the stream's endpoint.
    pub(crate) fn start_first(&self, endpoint: usize, stream: Box<StreamConnection>) {
        self.start_session(&mut self.sessions(), Some((endpoint, stream)));
    }

    /// Returns the command sender of a session with free capacity, and a slot on the stream of that
    /// session. Starts a session if all others are full.
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

    /// Returns the command sender of any session.
    pub(crate) fn any_session(&self) -> Result<CommandSender, Error> {
        self.session_with_capacity().map(|(commands, _)| commands)
    }

    /// Ends all sessions and waits until they have released their leases.
    pub(crate) async fn close(&self) {
        let sessions = {
            let mut sessions = self.sessions();
            // A later call must not start another session, because it would never be closed.
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

    fn start_session(
        &self,
        sessions: &mut Vec<SessionHandle>,
        first: Option<(usize, Box<StreamConnection>)>,
    ) {
        let (commands, received) = mpsc::unbounded_channel();
        match &self.backend {
            Backend::Brokers(brokers) => {
                let session = Session::new(Arc::clone(brokers), first);
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

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
