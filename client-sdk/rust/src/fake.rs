//! A broker in memory, for tests of code that acquires locks. It serves the same client and guards
//! without a network, and can end leases on request.
//!
//! ```
//! use leasehold::{LostReason, fake};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = fake::Broker::new();
//! let client = broker.client("test")?;
//! let guard = client.lock("orders/42").acquire().await?;
//! assert!(broker.client("other")?.lock("orders/42").try_acquire().await?.is_none());
//!
//! broker.lose("orders/42");
//! assert!(!guard.is_valid());
//! assert_eq!(guard.lost().await, LostReason::StoreLost);
//! # Ok(())
//! # }
//! ```
//!
//! Leases never expire here, and there is no `max_hold`, `lock_delay`, `at_least` or
//! `disconnect_grace`: a lock is held until it is released or [lost](Broker::lose), and is then
//! free at once. Everything else works as with a broker:
//! one queue for each lock in strict order, rising fencing tokens, shared locks, permits, several
//! locks at once and re-entry.

mod locks;
mod replies;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};

use self::locks::Locks;
use crate::{
    client::Client,
    clock,
    command::Command,
    error::ConnectError,
    runtime::{Backend, ClientRuntime},
    target::Target,
};

/// A broker in memory. Clones refer to the same broker.
#[derive(Debug, Clone, Default)]
pub struct Broker(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    locks: Mutex<Locks>,
    /// Notified when a request enters a queue, because the next timeout may be earlier.
    changed: Notify,
}

impl Broker {
    /// Creates a broker whose locks are all free.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a new client of the broker.
    ///
    /// # Errors
    /// [`ConnectError::Thread`] if the client's thread does not start.
    pub fn client(&self, owner: &str) -> Result<Client, ConnectError> {
        let runtime = ClientRuntime::start(Backend::Fake(self.clone()))?;
        Ok(Client::new(runtime, owner.to_owned()))
    }

    /// Ends the leases of all holders of a lock, as if the store had lost them, and returns their
    /// number. The next waiters acquire the lock at once.
    pub fn lose(&self, lock: impl Into<Target>) -> usize {
        self.locks().lose(&lock.into().lock_ref())
    }

    /// Returns the number of holders of a lock.
    #[must_use]
    pub fn holder_count(&self, lock: impl Into<Target>) -> usize {
        self.locks().holders(&lock.into().lock_ref()).len()
    }

    /// Returns the number of calls that wait for a lock.
    #[must_use]
    pub fn queue_length(&self, lock: impl Into<Target>) -> usize {
        self.locks().queue_length(&lock.into().lock_ref())
    }

    /// Serves the commands of one client.
    pub(crate) async fn serve(self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let client = self.locks().new_client();
        loop {
            let next = self.locks().next_timeout();
            let next = next.map(|at| at.saturating_sub(clock::now()));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Close { done }) => {
                        self.locks().close(client);
                        let _ = done.send(());
                        return;
                    }
                    Some(command) => self.on_command(client, command),
                    None => return,
                },
                () = self.0.changed.notified() => {}
                () = sleep(next.unwrap_or(Duration::MAX)), if next.is_some() => {
                    self.locks().time_out(clock::now());
                }
            }
        }
    }

    fn on_command(&self, client: u64, command: Command) {
        match command {
            Command::Acquire(acquire) => {
                self.locks().acquire(client, *acquire);
                self.0.changed.notify_waiters();
            }
            Command::Cancel { request_id } => self.locks().cancel(&request_id),
            Command::Release {
                lease_id,
                scope,
                reply,
            } => {
                self.locks().release(&lease_id, &scope);
                if let Some(reply) = reply {
                    // A caller that was dropped needs no response.
                    let _ = reply.send(Ok(()));
                }
            }
            Command::GetHolders { lock, reply } => {
                let _ = reply.send(Ok(self.locks().holders(&lock)));
            }
            Command::SetLimit { lock, limit, reply } => {
                let _ = reply.send(self.locks().set_limit(&lock, limit));
            }
            Command::Close { .. } => {}
        }
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.0.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
