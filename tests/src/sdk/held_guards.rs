//! Guards of the Rust client that are held during a whole run, with the number of lost guards and
//! the smallest remaining validity.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::Guard;
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    client::unary::Client, load::store_expiry::read_expiry, sdk::proxied_client::acquire_all,
};

const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Guards, equally many per client.
#[derive(Debug)]
pub struct HeldGuards {
    by_client: Arc<Vec<Vec<Guard>>>,
    ttl: Duration,
}

impl HeldGuards {
    /// Acquires locks that are free.
    pub async fn acquire(clients: &[&leasehold::Client], each: usize, ttl: Duration) -> Self {
        let takes = clients.iter().enumerate().map(async |(index, client)| {
            let locks = (0..each).map(|lock| lock_name(index, lock));
            acquire_all(client, &locks.collect::<Vec<_>>(), ttl).await
        });
        Self {
            by_client: Arc::new(join_all(takes).await),
            ttl,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.by_client.iter().flatten()
    }

    /// Returns the smallest remaining validity of any guard until stopped.
    pub fn track_min_remaining(&self, stop: &CancellationToken) -> AbortOnDropHandle<Duration> {
        let (guards, ttl, stop) = (Arc::clone(&self.by_client), self.ttl, stop.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut least_remaining = ttl;
            while !stop.is_cancelled() {
                let now = guards.iter().flatten().map(|guard| guard.remaining()).min();
                least_remaining = least_remaining.min(now.expect("guards"));
                sleep(READ_INTERVAL).await;
            }
            least_remaining
        }))
    }

    /// Returns the number of lost guards, and the number of guards whose lock has another holder or
    /// token in the store.
    pub async fn count_lost_and_changed(&self, brokers: &[SocketAddr]) -> (usize, usize) {
        let observer = Client::new("observer", brokers, 0);
        let lost = self.iter().filter(|guard| guard.lost_reason().is_some());
        let lost = lost.count();
        let same = self.by_client.iter().enumerate();
        let same = same.map(async |(client, guards)| {
            let mut changed = 0;
            for (index, guard) in guards.iter().enumerate() {
                let held = read_expiry(&observer, 0, &lock_name(client, index)).await;
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

/// Returns the name of a lock of the client with this index.
#[must_use]
pub fn lock_name(client: usize, lock: usize) -> String {
    format!("guarded-{client}-{lock}")
}
