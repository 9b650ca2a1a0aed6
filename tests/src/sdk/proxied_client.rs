//! A client of the Rust SDK with its own proxy in front of each broker, so that a test can
//! determine the broker to which the client is connected.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold::{Client, Guard};

use crate::net::http2_proxy::Http2Proxy;

/// A client and its proxies.
#[derive(Debug)]
pub struct ProxiedClient {
    pub client: Client,
    proxies: Vec<Http2Proxy>,
}

impl ProxiedClient {
    /// Connects, first to the broker at index `first`.
    pub async fn start(owner: &str, brokers: &[SocketAddr], first: usize) -> Self {
        let proxies = Http2Proxy::start_many(brokers.iter().copied()).await;
        let order = (0..brokers.len()).map(|index| (first + index) % brokers.len());
        let addrs: Vec<_> = order.map(|index| proxies[index].addr()).collect();
        let client = connect(owner, &addrs).await;
        Self { client, proxies }
    }

    /// Returns true if the client has a connection to this broker.
    #[must_use]
    pub fn is_connected_to(&self, broker: usize) -> bool {
        self.proxies[broker].open_connections() > 0
    }

    /// Cuts all connections and returns their number.
    pub async fn close_connections(&self) -> usize {
        let cuts = join_all(self.proxies.iter().map(Http2Proxy::close_connections)).await;
        cuts.into_iter().sum()
    }

    /// Returns the number of reconnects, to the same or another broker.
    #[must_use]
    pub fn reconnects(&self) -> usize {
        let opened: usize = self
            .proxies
            .iter()
            .map(Http2Proxy::opened_connections)
            .sum();
        opened - 1
    }
}

/// Creates a client of these brokers, without proxies.
pub async fn connect(owner: &str, brokers: &[SocketAddr]) -> Client {
    let urls: Vec<_> = brokers
        .iter()
        .map(|addr| format!("http://{addr}"))
        .collect();
    let client = Client::builder(&urls.join(",")).owner(owner).connect();
    client.await.expect("a broker that runs")
}

/// Acquires locks that are free.
pub async fn acquire_all(client: &Client, locks: &[String], ttl: Duration) -> Vec<Guard> {
    let takes = locks
        .iter()
        .map(|lock| client.lock(lock.as_str()).ttl(ttl).acquire());
    let guards = join_all(takes).await;
    let guards: Result<_, _> = guards.into_iter().collect();
    guards.expect("all are free")
}
