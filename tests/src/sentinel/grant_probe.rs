//! The first grant of a master after a failover.

use std::{net::SocketAddr, time::Duration};

use crate::{
    broker::process::KEY_PREFIX,
    client::unary::{AcquireCall, Client},
    clock::boottime,
    redis::server::RedisServer,
    store_fixture::lock_key,
    until::until,
};

/// Requests a new lock from the brokers in turn until this server has granted it, and returns the
/// time of the grant. A grant of an isolated server does not count.
pub async fn wait_for_grant(
    server: &RedisServer,
    brokers: &[SocketAddr],
    ttl: Duration,
) -> Duration {
    let probe = Client::new("probe", brokers, 0);
    let name = format!("probe/{:?}", boottime());
    let key = format!("{KEY_PREFIX}{}", lock_key("default", &name).encoded());
    let call = AcquireCall::new(&name, ttl, Duration::ZERO);
    let mut attempts = 0..;
    until("grants of the next master", async || {
        let attempt = attempts.next()?;
        probe.acquire_at(attempt, &call).await.ok()?;
        let granted_at = boottime();
        // Sentinels close the connections of a server whose role they change.
        let mut raw = server.connect().await;
        let is_there = raw.must(&["EXISTS", &key]).await.integer() == 1;
        is_there.then_some(granted_at)
    })
    .await
}
