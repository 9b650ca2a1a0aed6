//! docs/metrics.md and `/metrics` name the same, with the same types, labels and units, after traffic of every
//! kind.

use std::{collections::BTreeMap, time::Duration};

use leasehold_proto::v1::{
    AcquireRequest, CheckFencingTokenRequest, Heartbeat, HoldAcquire, Lease, LockRef,
    WatchLocksRequest, hold_request::Message as Ask,
};
use leasehold_tests::{
    broker_tls::{BrokerTls, handshake},
    callers::Caller,
    certificates::client_config,
    deployment::Deployment,
    guarded::{EVERYTHING, Guarded, acquire, given_back, next, renewed, send, stream, taken},
    promised::promised,
    scrape::{Scrape, ask, scrape_at},
    until::until,
};
use tokio::{net::TcpStream, task::JoinSet};
use tonic::Code;

const TTL: Duration = Duration::from_secs(10);
const TOKEN: &str = "the scraper's, 51c0ffee";

fn waits(name: &str, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        wait_timeout: wait.try_into().ok(),
        ..acquire(name, TTL)
    }
}

/// Everything that a broker counts happens once at least.
async fn traffic(site: &Guarded) {
    let caller = site.caller(TOKEN);
    let lease = taken(&caller, acquire("a", TTL)).await.expect("free");
    renewed(&caller, &lease).await.expect("held");
    let held = taken(&caller, acquire("a", TTL)).await;
    assert_eq!(held.expect_err("held").code(), Code::Aborted);
    let late = taken(&caller, waits("a", Duration::from_millis(20))).await;
    assert_eq!(late.expect_err("held").code(), Code::Aborted);
    let mut waiters = JoinSet::new();
    let waiter = caller.clone();
    waiters.spawn(async move { taken(&waiter, waits("a", TTL)).await });
    until("somebody waits", async || {
        let seen = scrape_at(site.broker.admin(), Some(TOKEN)).await;
        (seen.sum("leasehold_waiters", &[]) == 1.0).then_some(())
    })
    .await;
    checked(&caller, &lease).await;
    given_back(&caller, &lease).await.expect("held");
    let next_lease = waiters.join_next().await.expect("one waits");
    let next_lease = next_lease.expect("no panic").expect("handed on");
    given_back(&caller, &next_lease).await.expect("held");
    on_a_stream(&caller).await;
    refused(site, &caller).await;
}

async fn checked(caller: &Caller, lease: &Lease) {
    let grant = lease.grants.first().expect("a grant");
    let check = CheckFencingTokenRequest {
        lock: Some(LockRef {
            namespace: String::new(),
            name: "a".to_owned(),
        }),
        fencing_token: grant.fencing_token,
    };
    let live = caller
        .locks
        .clone()
        .check_fencing_token(check.clone())
        .await;
    live.expect("it is the newest");
    let stale = CheckFencingTokenRequest {
        fencing_token: grant.fencing_token - 1,
        ..check
    };
    let stale = caller.locks.clone().check_fencing_token(stale).await;
    assert_eq!(stale.expect_err("stale").code(), Code::Aborted);
}

/// A lease with a heartbeat, and a watch.
async fn on_a_stream(caller: &Caller) {
    let (asks, mut told) = stream(caller).await;
    let ask = HoldAcquire {
        call_id: 1,
        request: Some(acquire("b", TTL)),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send(&asks, Ask::Acquire(ask)).await;
    next(&mut told).await;
    send(&asks, Ask::Heartbeat(Heartbeat { sequence: 1 })).await;
    next(&mut told).await;
    let mut looks = caller.looks.clone();
    let watch = looks.watch_locks(WatchLocksRequest::default());
    drop(watch.await.expect("a watch"));
}

/// What is not let in.
async fn refused(site: &Guarded, caller: &Caller) {
    let stranger = taken(&site.caller("wrong"), acquire("a", TTL)).await;
    assert_eq!(stranger.expect_err("wrong").code(), Code::Unauthenticated);
    let unnamed = taken(caller, acquire("", TTL)).await;
    assert_eq!(unnamed.expect_err("no name").code(), Code::InvalidArgument);
    // b is held, c takes the second place.
    let second = taken(caller, acquire("c", TTL)).await.expect("free");
    let much = taken(caller, acquire("d", TTL)).await;
    assert_eq!(
        much.expect_err("two at most").code(),
        Code::ResourceExhausted
    );
    let many: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(site.broker.addr()))
        .collect();
    let _many = futures::future::join_all(many).await;
    until("a connection is refused", async || {
        let seen = scrape_at(site.broker.admin(), Some(TOKEN)).await;
        let refused = seen.sum("leasehold_connections_refused_total", &[]);
        (refused > 0.0).then_some(())
    })
    .await;
    site.redis.process().pause().await;
    let away = given_back(caller, &second).await;
    assert_eq!(away.expect_err("no answer").code(), Code::Unavailable);
    site.redis.process().resume();
}

#[tokio::test]
async fn the_page_lists_what_a_broker_shows() {
    let settings = [
        ("QUOTAS__LOCKS_PER_CALLER", "2"),
        ("SERVER__MAX_CONNECTIONS_PER_ADDRESS", "30"),
    ];
    let site = Guarded::start_with(EVERYTHING, &[("scraper", TOKEN)], &settings).await;
    traffic(&site).await;
    let tls = BrokerTls::create(false);
    let encrypted = Deployment::of(tls.options(String::new())).await;
    let config = client_config(&tls.authority, None);
    let wire = handshake(encrypted.brokers[0].admin(), config).await;
    let (status, answer) = ask(wire.expect("trusted"), None).await;
    assert_eq!(status, 200, "{answer}");
    let (one, other) = (
        scrape_at(site.broker.admin(), Some(TOKEN)).await,
        Scrape::of(&answer),
    );
    let ends = other.sum("leasehold_tls_cert_expiry_timestamp_seconds", &[]);
    let left = ends
        - other.sum(
            "leasehold_config_last_reload_success_timestamp_seconds",
            &[("file", "certificate")],
        );
    assert!(left > 0.0, "the certificate is good for {left} s");
    let mut shown = BTreeMap::new();
    for seen in [&one, &other] {
        for sample in &seen.samples {
            let (family, labels) = seen.family(sample);
            let known = shown
                .entry(family.clone())
                .or_insert((labels.clone(), seen));
            assert_eq!(known.0, labels, "{family}");
        }
    }
    let promised = promised();
    let strange: Vec<_> = shown
        .keys()
        .filter(|name| !promised.contains_key(*name))
        .collect();
    assert!(strange.is_empty(), "not in docs/metrics.md: {strange:?}");
    let missing: Vec<_> = promised
        .keys()
        .filter(|name| !shown.contains_key(*name))
        .collect();
    assert!(missing.is_empty(), "nothing shows {missing:?}");
    for (name, (labels, seen)) in shown {
        let promised = &promised[&name];
        assert_eq!(promised.labels, labels, "labels of {name}");
        assert_eq!(promised.kind, seen.types[&name], "type of {name}");
        assert!(
            promised.is_explained && seen.helped.contains(&name),
            "{name}"
        );
        if let Some(unit) = seen.units.get(&name) {
            assert!(
                promised.unit.starts_with(unit),
                "{name}: {unit}, not {}",
                promised.unit
            );
        }
    }
}
