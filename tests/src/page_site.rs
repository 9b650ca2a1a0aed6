//! A broker with some locks and a line, for those who look at its page.

use std::{net::SocketAddr, time::Duration};

use crate::{
    client::{AcquireCall, Client, Open},
    deployment::Deployment,
    page::Looker,
    until::until,
};

const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// Without anything at which a line may break.
pub const LONG_NAME: &str = "a-very-long-name/without-spaces/invoices/2026/11/23/0123456789abcdef0123456789abcdef0123456789abcdef";

/// The page is told of changes from then on, and shows what there was before.
pub const IS_LIVE: &str = "await page.locator('#state', { hasText: /^Live$/ }).waitFor()";

/// A call that does not wait.
#[must_use]
pub fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

/// A broker with some locks, and a line.
#[derive(Debug)]
pub struct Site {
    /// The broker, and its store.
    pub site: Deployment,
    /// `worker-1`, who holds them.
    pub client: Client,
    _line: Vec<Open>,
    /// That of the lock with the line.
    pub lease_id: String,
}

impl Site {
    /// Starts it.
    pub async fn start() -> Self {
        let site = Deployment::start(1).await;
        let client = Client::new("worker-1", &site.addrs(), 0);
        let looker = Looker::new(site.brokers[0].admin());
        until("it is ready", async || {
            (looker.get("/").await.status == 200).then_some(())
        })
        .await;
        let held = client.acquire_at(0, &now("invoices")).await;
        let lease_id = held.expect("it is free").lease.lease_id;
        client
            .acquire_at(0, &now(LONG_NAME))
            .await
            .expect("it is free");
        let mut line = Vec::new();
        for n in 1..=3 {
            let waits = AcquireCall::new("invoices", TTL, WAIT);
            line.push(client.named(&format!("waiter-{n}"), 0).open_at(0, &waits));
            client.queued_at(0, "invoices", n).await;
        }
        Self {
            site,
            client,
            _line: line,
            lease_id,
        }
    }

    /// Where its page is.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        self.site.brokers[0].admin()
    }
}
