//! A broker for tests of the Rust client: a real one, or the client's fake.

use std::{net::SocketAddr, time::Duration};

use leasehold::{Client, fake};
use tokio::time::timeout;

use crate::in_process::InProcess;

const SOON: Duration = Duration::from_secs(5);

/// Whom the clients of a test talk to.
#[derive(Debug)]
pub enum Broker {
    /// A broker on the memory store.
    Real(InProcess),
    /// The client's own fake.
    Fake(fake::Broker),
}

impl Broker {
    /// A client of it.
    pub async fn client(&self, owner: &str) -> Client {
        match self {
            Self::Real(broker) => connect(broker.api, owner).await,
            Self::Fake(broker) => broker.client(owner).expect("a client"),
        }
    }

    /// Waits until so many wait for a lock.
    pub async fn waits_for(&self, lock: &str, count: u32) {
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
        timeout(SOON, waiting).await.expect("they wait");
        assert!(held().await.expect("it is held or waited for").is_none());
    }
}

async fn connect(broker: SocketAddr, owner: &str) -> Client {
    let client = Client::builder(&format!("http://{broker}")).owner(owner);
    client.connect().await.expect("a broker that runs")
}

async fn queue_length(broker: &InProcess, lock: &str) -> usize {
    let client = crate::client::Client::new("observer", &[broker.api], 0);
    let lock = client.get_lock(lock).await.expect("GetLock works");
    lock.map_or(0, |lock| {
        usize::try_from(lock.queue_length).expect("a count")
    })
}

/// Takes a lock that is free or soon will be, and gives it back; its token.
pub async fn takes(client: &Client, lock: &str) -> i64 {
    let guard = client.lock(lock).wait(SOON).acquire().await;
    guard.expect("it is free").fencing_token()
}

/// Runs each behaviour with a real broker and with the fake.
#[macro_export]
macro_rules! with_both_brokers {
    ($($name:ident)*) => {
        mod real {
            $(#[tokio::test]
            async fn $name() {
                let broker = leasehold_tests::in_process::InProcess::start().await;
                super::$name($crate::sdk_broker::Broker::Real(broker)).await;
            })*
        }
        mod fakes {
            $(#[tokio::test]
            async fn $name() {
                let broker = leasehold::fake::Broker::new();
                super::$name($crate::sdk_broker::Broker::Fake(broker)).await;
            })*
        }
    };
}
