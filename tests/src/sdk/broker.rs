//! A broker for tests of the Rust client: a real broker, or the fake of the client SDK.

use std::{net::SocketAddr, time::Duration};

use leasehold::{Client, fake};
use tokio::time::timeout;

use crate::broker::in_process::InProcessBroker;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Broker under the clients of a test.
#[derive(Debug)]
pub enum TestBroker {
    /// A broker on the memory store.
    Real(InProcessBroker),
    /// The fake of the client SDK.
    Fake(fake::Broker),
}

impl TestBroker {
    /// Creates a client of the broker.
    pub async fn client(&self, owner: &str) -> Client {
        match self {
            Self::Real(broker) => connect(broker.api, owner).await,
            Self::Fake(broker) => broker.client(owner).expect("a client"),
        }
    }

    /// Waits until the queue of a lock has this length.
    pub async fn wait_for_queue_length(&self, lock: &str, count: u32) {
        let observer = self.client("observer").await;
        let held = || async { observer.lock(lock).try_acquire().await };
        let waiting = async {
            loop {
                let length = match self {
                    Self::Fake(broker) => broker.queue_length(lock),
                    Self::Real(broker) => queue_length(broker, lock).await,
                };
                if length == count as usize {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, waiting).await.expect("they wait");
        assert!(held().await.expect("it is held or waited for").is_none());
    }
}

async fn connect(broker: SocketAddr, owner: &str) -> Client {
    let client = Client::builder(&format!("http://{broker}")).owner(owner);
    client.connect().await.expect("a broker that runs")
}

async fn queue_length(broker: &InProcessBroker, lock: &str) -> usize {
    let client = crate::client::unary::Client::new("observer", &[broker.api], 0);
    let lock = client.get_lock(lock).await.expect("GetLock works");
    lock.map_or(0, |lock| {
        usize::try_from(lock.queue_length).expect("a count")
    })
}

/// Acquires a lock that is free or soon will be, releases it, and returns its fencing token.
pub async fn acquire_and_release(client: &Client, lock: &str) -> i64 {
    let guard = client.lock(lock).wait(TIMEOUT).acquire().await;
    guard.expect("it is free").fencing_token()
}

/// Runs each test with a real broker and with the fake.
#[macro_export]
macro_rules! with_both_brokers {
    ($($name:ident)*) => {
        mod real {
            $(#[tokio::test]
            async fn $name() {
                let broker = $crate::broker::in_process::InProcessBroker::start().await;
                super::$name($crate::sdk::broker::TestBroker::Real(broker)).await;
            })*
        }
        mod fakes {
            $(#[tokio::test]
            async fn $name() {
                let broker = leasehold::fake::Broker::new();
                super::$name($crate::sdk::broker::TestBroker::Fake(broker)).await;
            })*
        }
    };
}
