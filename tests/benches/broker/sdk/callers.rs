//! Pairs of callers that share a client: each acquires its own lock and releases the guard.

use std::net::SocketAddr;

use leasehold::Client;

use crate::{
    grpc::lock_name,
    pairs::{self, Pair, Sample},
};

/// A caller of the client.
pub(crate) struct Caller {
    client: Client,
    lock: String,
}

impl Pair for Caller {
    async fn pair(&mut self) {
        let guard = self.client.lock(self.lock.as_str()).try_acquire().await;
        let guard = guard.expect("the broker answers");
        let guard = guard.expect("the lock is free");
        guard.release().await.expect("a holder can release");
    }
}

/// Runs one round of `callers` with one client, as in a program. As with raw stubs, the callers do
/// not wait in a queue.
pub(crate) async fn pairs(addr: SocketAddr, callers: usize) -> Sample {
    let client = connect(addr).await;
    let sample = pairs::run(of(&client, callers)).await;
    client.shutdown().await;
    sample
}

/// Returns `callers` callers of one client.
pub(crate) fn of(client: &Client, callers: usize) -> Vec<Caller> {
    let caller = |at: usize| Caller {
        client: client.clone(),
        lock: lock_name(at),
    };
    (0..callers).map(caller).collect()
}

/// Connects a client to the broker at `addr`.
pub(crate) async fn connect(addr: SocketAddr) -> Client {
    let client = Client::builder(&format!("http://{addr}")).owner("bench");
    client.connect().await.expect("a broker that runs")
}
