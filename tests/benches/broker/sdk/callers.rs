//! Pairs by callers that share a client: each acquires its own lock and releases the guard.

use std::net::SocketAddr;

use leasehold::Client;

use crate::{
    grpc::lock_name,
    pairs::{self, Pair, Sample},
};

/// One caller.
pub(crate) struct Caller {
    client: Client,
    lock: String,
}

impl Pair for Caller {
    async fn pair(&mut self) {
        let guard = self.client.lock(self.lock.as_str()).try_acquire().await;
        let guard = guard.expect("the broker answers");
        let guard = guard.expect("nobody is in the way");
        guard.release().await.expect("a holder can release");
    }
}

/// One round of `callers` with one client, as a program has it. They ask as raw stubs do: without a
/// place in line.
pub(crate) async fn pairs(addr: SocketAddr, callers: usize) -> Sample {
    let client = connect(addr).await;
    let sample = pairs::run(of(&client, callers)).await;
    client.shutdown().await;
    sample
}

/// So many callers of one client.
pub(crate) fn of(client: &Client, callers: usize) -> Vec<Caller> {
    let caller = |at: usize| Caller {
        client: client.clone(),
        lock: lock_name(at),
    };
    (0..callers).map(caller).collect()
}

/// A client of the broker at `addr`.
pub(crate) async fn connect(addr: SocketAddr) -> Client {
    let client = Client::builder(&format!("http://{addr}")).owner("bench");
    client.connect().await.expect("a broker that runs")
}
