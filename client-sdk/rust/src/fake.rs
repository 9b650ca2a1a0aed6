//! A broker in memory, for tests of code that takes locks: the same client and the same guards
//! without a network, and a switch to lose a lock.
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
//! Leases never run out here, and there is no `max_hold`, `lock_delay` or `disconnect_grace`: a lock is
//! held until it is given back or [lost](Broker::lose). Everything else is as with a broker: one line
//! for each lock in strict order, fencing tokens that rise, shared locks, permits, several locks at
//! once and re-entry.

mod answers;
mod locks;

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
    core::{Backend, Core},
    error::ConnectError,
    order::Order,
    target::Target,
};

/// A broker in memory. Its clones are the same broker.
#[derive(Debug, Clone, Default)]
pub struct Broker(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    locks: Mutex<Locks>,
    /// Somebody waits who did not before.
    changed: Notify,
}

impl Broker {
    /// A broker whose locks are all free.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A client of it.
    ///
    /// # Errors
    /// If its thread does not start.
    pub fn client(&self, owner: &str) -> Result<Client, ConnectError> {
        let core = Core::start(Backend::Fake(self.clone()))?;
        Ok(Client::new(core, owner.to_owned()))
    }

    /// Takes a lock away from everybody who holds it, as if the store had lost their leases; how many
    /// those were. The next in line gets it at once.
    pub fn lose(&self, lock: impl Into<Target>) -> usize {
        self.locks().lose(&lock.into().lock())
    }

    /// How many hold a lock.
    #[must_use]
    pub fn holder_count(&self, lock: impl Into<Target>) -> usize {
        self.locks().holders(&lock.into().lock()).len()
    }

    /// How many calls wait for a lock.
    #[must_use]
    pub fn queue_length(&self, lock: impl Into<Target>) -> usize {
        self.locks().queue_length(&lock.into().lock())
    }

    /// Serves the orders of one client.
    pub(crate) async fn serve(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let client = self.locks().new_client();
        loop {
            let next = self.locks().next_time_out();
            let next = next.map(|at| at.saturating_sub(clock::now()));
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Close { done }) => {
                        self.locks().close(client);
                        let _ = done.send(());
                        return;
                    }
                    Some(order) => self.obey(client, order),
                    None => return,
                },
                () = self.0.changed.notified() => {}
                () = sleep(next.unwrap_or(Duration::MAX)), if next.is_some() => {
                    self.locks().time_out(clock::now());
                }
            }
        }
    }

    fn obey(&self, client: u64, order: Order) {
        match order {
            Order::Acquire(ask) => {
                self.locks().acquire(client, *ask);
                self.0.changed.notify_waiters();
            }
            Order::Cancel { request_id } => self.locks().cancel(&request_id),
            Order::Release {
                lease_id,
                entry,
                answer,
            } => {
                self.locks().release(&lease_id, &entry);
                if let Some(answer) = answer {
                    // A caller that is gone needs no answer.
                    let _ = answer.send(Ok(()));
                }
            }
            Order::Look { lock, answer } => {
                let _ = answer.send(Ok(self.locks().holders(&lock)));
            }
            Order::Close { .. } => {}
        }
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.0.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
