//! A program that uses the Rust client: one client behind a proxy of its own before each broker, so
//! that the test sees which broker it is on.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold::{Client, Guard};

use crate::proxy::Proxy;

/// A client of the Rust SDK.
#[derive(Debug)]
pub struct Site {
    /// The client.
    pub client: Client,
    proxies: Vec<Proxy>,
}

impl Site {
    /// Connects, at first to the broker at `first`.
    pub async fn start(owner: &str, brokers: &[SocketAddr], first: usize) -> Self {
        let proxies = Proxy::start_many(brokers.iter().copied()).await;
        let order = (0..brokers.len()).map(|index| (first + index) % brokers.len());
        let addrs: Vec<_> = order.map(|index| proxies[index].addr()).collect();
        let client = connect(owner, &addrs).await;
        Self { client, proxies }
    }

    /// Whether it has a connection to that broker.
    #[must_use]
    pub fn is_on(&self, broker: usize) -> bool {
        self.proxies[broker].open() > 0
    }

    /// Cuts its connections; how many there were.
    pub async fn cut(&self) -> usize {
        let cuts = join_all(self.proxies.iter().map(Proxy::cut)).await;
        cuts.into_iter().sum()
    }

    /// How often it has gone to another broker, or came back.
    #[must_use]
    pub fn moves(&self) -> usize {
        let opened: usize = self.proxies.iter().map(Proxy::opened).sum();
        opened - 1
    }
}

/// A client of these brokers, without proxies.
pub async fn connect(owner: &str, brokers: &[SocketAddr]) -> Client {
    let urls: Vec<_> = brokers
        .iter()
        .map(|addr| format!("http://{addr}"))
        .collect();
    let client = Client::builder(&urls.join(",")).owner(owner).connect();
    client.await.expect("a broker that runs")
}

/// Takes locks that are free.
pub async fn hold(client: &Client, locks: &[String], ttl: Duration) -> Vec<Guard> {
    let takes = locks
        .iter()
        .map(|lock| client.lock(lock.as_str()).ttl(ttl).acquire());
    let guards = join_all(takes).await;
    let guards: Result<_, _> = guards.into_iter().collect();
    guards.expect("all are free")
}
