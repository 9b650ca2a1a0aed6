//! A broker with some locks and a queue, for tests of the operator console.

use std::{net::SocketAddr, time::Duration};

use crate::{
    broker::deployment::Deployment,
    client::unary::{AcquireCall, AcquireHandle, Client},
    console::client::ConsoleUser,
    until::until,
};

const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// Lock name without a character at which a browser can break a line.
pub const LONG_NAME: &str = "a-very-long-name/without-spaces/invoices/2026/11/23/0123456789abcdef0123456789abcdef0123456789abcdef";

/// Waits until the page receives changes. By then the page displays all earlier changes.
pub const WAIT_UNTIL_LIVE: &str = "await page.locator('#state', { hasText: /^Live$/ }).waitFor()";

/// Returns a call that does not wait.
#[must_use]
pub fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

/// A broker with held locks, one of which has a queue.
#[derive(Debug)]
pub struct ConsoleFixture {
    /// The broker and its store.
    pub deployment: Deployment,
    /// Client of `worker-1`, which holds the locks.
    pub client: Client,
    _waiters: Vec<AcquireHandle>,
    /// Lease id of the holder of the lock with the queue.
    pub queued_lease_id: String,
}

impl ConsoleFixture {
    pub async fn start() -> Self {
        let fixture = Deployment::start(1).await;
        let client = Client::new("worker-1", &fixture.addrs(), 0);
        let user = ConsoleUser::new(fixture.brokers[0].admin());
        until("it is ready", async || {
            (user.get("/").await.status == 200).then_some(())
        })
        .await;
        let held = client.acquire_at(0, &immediate_call("invoices")).await;
        let lease_id = held.expect("it is free").lease.lease_id;
        client
            .acquire_at(0, &immediate_call(LONG_NAME))
            .await
            .expect("it is free");
        let mut line = Vec::new();
        for n in 1..=3 {
            let waits = AcquireCall::new("invoices", TTL, WAIT);
            line.push(
                client
                    .with_name(&format!("waiter-{n}"), 0)
                    .start_acquire_at(0, &waits),
            );
            client.wait_for_queue_length_at(0, "invoices", n).await;
        }
        Self {
            deployment: fixture,
            client,
            _waiters: line,
            queued_lease_id: lease_id,
        }
    }

    /// Returns the address of the console.
    #[must_use]
    pub fn console_addr(&self) -> SocketAddr {
        self.deployment.brokers[0].admin()
    }
}
