//! Guards of the Rust client that are held through a whole run: whether one was lost, and how close
//! any came to it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::Guard;
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{client::Client, sdk_site::hold, time_left::look};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// As many of each client.
#[derive(Debug)]
pub struct Guards {
    of_clients: Arc<Vec<Vec<Guard>>>,
    ttl: Duration,
}

impl Guards {
    /// Takes locks that are free.
    pub async fn take(clients: &[&leasehold::Client], each: usize, ttl: Duration) -> Self {
        let takes = clients.iter().enumerate().map(async |(index, client)| {
            let locks = (0..each).map(|lock| guarded(index, lock));
            hold(client, &locks.collect::<Vec<_>>(), ttl).await
        });
        Self {
            of_clients: Arc::new(join_all(takes).await),
            ttl,
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Guard> {
        self.of_clients.iter().flatten()
    }

    /// The least that any has left, until stopped.
    pub fn watch_remaining(&self, stop: &CancellationToken) -> AbortOnDropHandle<Duration> {
        let (guards, ttl, stop) = (Arc::clone(&self.of_clients), self.ttl, stop.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut least = ttl;
            while !stop.is_cancelled() {
                let now = guards.iter().flatten().map(|guard| guard.remaining()).min();
                least = least.min(now.expect("guards"));
                sleep(LOOK_EVERY).await;
            }
            least
        }))
    }

    /// How many were lost, and of how many the store says something else.
    pub async fn lost_or_changed(&self, brokers: &[SocketAddr]) -> (usize, usize) {
        let observer = Client::new("observer", brokers, 0);
        let lost = self.all().filter(|guard| guard.lost_reason().is_some());
        let lost = lost.count();
        let same = self.of_clients.iter().enumerate();
        let same = same.map(async |(client, guards)| {
            let mut changed = 0;
            for (index, guard) in guards.iter().enumerate() {
                let held = look(&observer, 0, &guarded(client, index)).await;
                let is_same = held.is_some_and(|held| {
                    held.lease_id == guard.lease_id() && held.token == guard.fencing_token()
                });
                changed += usize::from(!is_same);
            }
            changed
        });
        (lost, join_all(same).await.into_iter().sum())
    }
}

/// The name of a lock of the client with this number.
#[must_use]
pub fn guarded(client: usize, lock: usize) -> String {
    format!("guarded-{client}-{lock}")
}
