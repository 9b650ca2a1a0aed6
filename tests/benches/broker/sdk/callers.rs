//! Pairs by callers that share clients: each acquires its own lock and releases the guard.

use std::net::SocketAddr;

use leasehold::Client;

use crate::{
    grpc::{CHANNELS, lock_name},
    pairs::{self, Pair, Sample},
};

/// One caller.
struct Caller {
    client: Client,
    lock: String,
}

impl Pair for Caller {
    async fn pair(&mut self) {
        let guard = self.client.lock(self.lock.as_str()).acquire().await;
        let guard = guard.expect("nobody is in the way");
        guard.release().await.expect("a holder can release");
    }
}

/// One round of `callers` with as many clients as others have streams.
pub(crate) async fn pairs(addr: SocketAddr, callers: usize) -> Sample {
    let mut clients = Vec::new();
    for _ in 0..CHANNELS.min(callers) {
        clients.push(connect(addr).await);
    }
    let caller = |at: usize| Caller {
        client: clients[at % clients.len()].clone(),
        lock: lock_name(at),
    };
    let sample = pairs::run((0..callers).map(caller).collect()).await;
    for client in clients {
        client.shutdown().await;
    }
    sample
}

/// A client of the broker at `addr`.
pub(crate) async fn connect(addr: SocketAddr) -> Client {
    let client = Client::builder(&format!("http://{addr}")).owner("bench");
    client.connect().await.expect("a broker that runs")
}
