//! Compares docs/metrics.md with `/metrics` after traffic of every kind: names, types, labels and
//! units must agree.

use std::{collections::BTreeMap, time::Duration};

use leasehold_proto::v1::{
    AcquireRequest, CheckFencingTokenRequest, Heartbeat, HoldAcquire, Lease, LockRef,
    WatchLocksRequest, hold_request::Message as Ask,
};
use leasehold_tests::{
    access::{
        files_and_callers::Caller,
        fixture::{
            ALLOW_ALL_POLICY, AccessControlFixture, acquire_request, next_message, open_stream,
            send_acquire, send_message, send_release, send_renew,
        },
    },
    broker::{
        deployment::Deployment,
        tls::{BrokerTls, handshake},
    },
    net::certificates::client_config,
    telemetry::{
        documented_metrics::documented_metrics,
        scrape::{Scrape, request_metrics, scrape_at},
    },
    until::until,
};
use tokio::{net::TcpStream, task::JoinSet};
use tonic::Code;

const TTL: Duration = Duration::from_secs(10);
const TOKEN: &str = "the scraper's, 51c0ffee";

fn waits(name: &str, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        wait_timeout: wait.try_into().ok(),
        ..acquire_request(name, TTL)
    }
}

/// Causes every event that a broker counts, at least once.
async fn traffic(fixture: &AccessControlFixture) {
    let caller = fixture.caller(TOKEN);
    let lease = send_acquire(&caller, acquire_request("a", TTL))
        .await
        .expect("free");
    send_renew(&caller, &lease).await.expect("held");
    let held = send_acquire(&caller, acquire_request("a", TTL)).await;
    assert_eq!(held.expect_err("held").code(), Code::Aborted);
    let late = send_acquire(&caller, waits("a", Duration::from_millis(20))).await;
    assert_eq!(late.expect_err("held").code(), Code::Aborted);
    let mut waiters = JoinSet::new();
    let waiter = caller.clone();
    waiters.spawn(async move { send_acquire(&waiter, waits("a", TTL)).await });
    until("a caller waits", async || {
        let seen = scrape_at(fixture.broker.admin(), Some(TOKEN)).await;
        (seen.sum("leasehold_waiters", &[]) == 1.0).then_some(())
    })
    .await;
    checked(&caller, &lease).await;
    send_release(&caller, &lease).await.expect("held");
    let next_lease = waiters.join_next().await.expect("one waits");
    let next_lease = next_lease.expect("no panic").expect("handed on");
    send_release(&caller, &next_lease).await.expect("held");
    acquire_on_stream(&caller).await;
    refused(fixture, &caller).await;
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

/// Acquires a lease on a stream, sends a heartbeat, and opens a watch.
async fn acquire_on_stream(caller: &Caller) {
    let (requests, mut responses) = open_stream(caller).await;
    let ask = HoldAcquire {
        call_id: 1,
        request: Some(acquire_request("b", TTL)),
        attach_number: 1,
        ..HoldAcquire::default()
    };
    send_message(&requests, Ask::Acquire(ask)).await;
    next_message(&mut responses).await;
    send_message(&requests, Ask::Heartbeat(Heartbeat { sequence: 1 })).await;
    next_message(&mut responses).await;
    let mut looks = caller.inspection.clone();
    let watch = looks.watch_locks(WatchLocksRequest::default());
    drop(watch.await.expect("a watch"));
}

/// Causes rejections of credentials, arguments, quotas and connections, and an error of the store.
async fn refused(fixture: &AccessControlFixture, caller: &Caller) {
    let stranger = send_acquire(&fixture.caller("wrong"), acquire_request("a", TTL)).await;
    assert_eq!(stranger.expect_err("wrong").code(), Code::Unauthenticated);
    let unnamed = send_acquire(caller, acquire_request("", TTL)).await;
    assert_eq!(unnamed.expect_err("no name").code(), Code::InvalidArgument);
    // `b` is held, and `c` uses the second lock of the quota.
    let second = send_acquire(caller, acquire_request("c", TTL))
        .await
        .expect("free");
    let much = send_acquire(caller, acquire_request("d", TTL)).await;
    assert_eq!(
        much.expect_err("two at most").code(),
        Code::ResourceExhausted
    );
    let many: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(fixture.broker.addr()))
        .collect();
    let _many = futures::future::join_all(many).await;
    until("a connection is refused", async || {
        let seen = scrape_at(fixture.broker.admin(), Some(TOKEN)).await;
        let refused = seen.sum("leasehold_connections_refused_total", &[]);
        (refused > 0.0).then_some(())
    })
    .await;
    fixture.redis.process().pause().await;
    let away = send_release(caller, &second).await;
    assert_eq!(away.expect_err("no answer").code(), Code::Unavailable);
    fixture.redis.process().resume();
}

#[tokio::test]
async fn the_page_lists_what_a_broker_shows() {
    let settings = [
        ("QUOTAS__LOCKS_PER_CALLER", "2"),
        ("SERVER__MAX_CONNECTIONS_PER_ADDRESS", "30"),
    ];
    let fixture =
        AccessControlFixture::start_with(ALLOW_ALL_POLICY, &[("scraper", TOKEN)], &settings).await;
    traffic(&fixture).await;
    let tls = BrokerTls::create(false);
    let encrypted = Deployment::start_single(tls.options(String::new())).await;
    let config = client_config(&tls.authority, None);
    let wire = handshake(encrypted.brokers[0].admin(), config).await;
    let (status, answer) = request_metrics(wire.expect("trusted"), None).await;
    assert_eq!(status, 200, "{answer}");
    let (one, other) = (
        scrape_at(fixture.broker.admin(), Some(TOKEN)).await,
        Scrape::parse(&answer),
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
    let promised = documented_metrics();
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
            promised.has_description && seen.families_with_help.contains(&name),
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
