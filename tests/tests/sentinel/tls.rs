//! Failover with Sentinel over TLS: servers and Sentinels use TLS, and have host names for
//! addresses.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker::process::BrokerProcess,
    client::unary::{AcquireCall, Client},
    clock::boottime,
    cluster::fixture::broker_options,
    redis::tls_files::StoreTlsFiles,
    scale::{print_figures, scaled_count},
    sentinel::deployment::{SentinelDeployment, SentinelOptions},
    status::error_reason,
    until::until,
};

/// TTL that exceeds the duration of a failover.
const TTL: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;
const BROKERS: usize = 2;
/// Minimum number of connections of a broker to the master: for commands, inspections and
/// hand-offs.
const CONNECTIONS: usize = 3;
/// Time within which the new master serves, with a margin for two busy cores.
const SERVED_WITHIN: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_by_names_and_tls_loses_no_lease() {
    let files = StoreTlsFiles::create(&["localhost"]);
    let mut redis = SentinelDeployment::start(SentinelOptions {
        host: "localhost",
        tls: files.server_options(),
        ..SentinelOptions::default()
    })
    .await;
    let mut options = broker_options(redis.url(), None);
    options.env.extend(files.broker_settings());
    let ttl_max = format!("{}s", TTL.as_secs());
    options
        .env
        .push(("LEASEHOLD__LIMITS__TTL_MAX".to_owned(), ttl_max));
    let mut by_address = options.clone();
    by_address.store = options.store.replace("localhost", "127.0.0.1");
    let (succeeded, output) = by_address.run("init-store", &[]).await;
    assert!(
        !succeeded && output.contains("do not agree on TLS"),
        "{output}"
    );
    assert!(output.contains("names 127.0.0.1"), "{output}");

    options.init_store().await;
    let brokers = BrokerProcess::start_many(&options, BROKERS).await;
    let addrs: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let client = Client::new("holder", &addrs, 0);
    let names = (0..scaled_count(100, 10)).map(|number| format!("kept/{number}"));
    let calls = names.map(|name| AcquireCall::new(&name, TTL, NOW));
    let calls: Vec<_> = calls.collect();
    let held = join_all(calls.iter().map(|call| client.acquire(call))).await;
    let held: Result<Vec<_>, _> = held.into_iter().collect();
    let mut held = held.expect("they are free");
    let master = redis.master().await;
    let mut raw = redis.connect(master).await;
    let connected = raw.must(&["CLIENT", "LIST"]).await.text().to_owned();
    let by_tls = format!(" laddr={} ", redis.addr(master));
    let guarded = connected.lines().filter(|line| line.contains(&by_tls));
    assert!(guarded.count() >= CONNECTIONS * BROKERS, "{connected}");
    redis.wait_until_in_sync(master).await;

    let killed = boottime();
    redis.kill(master).await;
    let next = redis.wait_for_failover(master).await;
    let named = boottime() - killed;
    let renewals = held.iter_mut().map(async |held| {
        let token = held.token();
        client.renew(held).await.expect("kept by the next master");
        assert_eq!(held.token(), token);
    });
    join_all(renewals).await;
    let renewed = boottime() - killed;
    for at in 0..BROKERS {
        let call = AcquireCall::new("new", TTL, NOW);
        let refused = client.acquire_at(at, &call).await;
        let refused = refused.expect_err("the next master waits");
        let reason = error_reason(&refused);
        assert_eq!(reason, Some(ErrorReason::StoreRecovering), "{refused}");
    }
    print_figures(&format!(
        "sentinel_tls: named by all after {} ms, all {} leases renewed after {} ms",
        named.as_millis(),
        held.len(),
        renewed.as_millis()
    ));
    assert!(renewed <= SERVED_WITHIN, "{renewed:?}");
    let by_name = format!("localhost:{}", redis.addr(next).port());
    for broker in &brokers {
        until("it has called the new master by its name", async || {
            broker.log().contains(&by_name).then_some(())
        })
        .await;
    }
}
