//! `/metrics`: events are counted, and scrapers must authenticate. The number of series does not
//! grow with locks, callers and namespaces. Names of locks and callers do not appear.

use std::{collections::VecDeque, time::Duration};

use leasehold_proto::v1::{AcquireRequest, Owner};
use leasehold_tests::{
    access::{
        files_and_callers::Caller,
        fixture::{
            ALLOW_ALL_POLICY, AccessControlFixture, acquire_request, open_stream, send_acquire,
            send_release,
        },
    },
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    clock::boottime,
    net::plain_http,
    scale::{print_figures, scaled_count},
    telemetry::scrape::{request_metrics, scrape, scrape_at},
    until::until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const TTL: Duration = Duration::from_secs(10);
const TOKEN: &str = "the scraper's, 51c0ffee";
/// Maximum number of values of the label `namespace`, including `other`.
const NAMESPACES_MAX: usize = 51;

#[tokio::test]
async fn what_happens_is_counted() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("scraper", TOKEN)]).await;
    let caller = fixture.caller(TOKEN);
    for _ in 0..3 {
        let lease = send_acquire(&caller, acquire_request("team:a", TTL))
            .await
            .expect("free");
        send_release(&caller, &lease).await.expect("held");
    }
    let _held = send_acquire(&caller, acquire_request("team:a", TTL))
        .await
        .expect("free");
    send_acquire(&caller, acquire_request("team:a", TTL))
        .await
        .expect_err("held");
    let seen = scrape_at(fixture.broker.admin(), Some(TOKEN)).await;
    let of_team = |name, labels: &[(&str, &str)]| {
        seen.sum(name, &[&[("namespace", "team")], labels].concat())
    };
    let granted = [("outcome", "granted"), ("mode", "exclusive")];
    assert_eq!(of_team("leasehold_acquires_total", &granted), 4.0);
    assert_eq!(
        of_team("leasehold_acquires_total", &[("outcome", "held")]),
        1.0
    );
    assert_eq!(
        of_team("leasehold_acquire_wait_seconds_count", &granted),
        4.0
    );
    assert_eq!(
        seen.sum("leasehold_acquire_uncontended_seconds_count", &[]),
        4.0
    );
    assert_eq!(
        of_team("leasehold_lease_ends_total", &[("reason", "released")]),
        3.0
    );
    assert_eq!(of_team("leasehold_lease_ends_total", &[]), 3.0);
    assert_eq!(of_team("leasehold_leases", &[("mode", "exclusive")]), 1.0);
    let op = |op| {
        seen.sum(
            "leasehold_store_request_duration_seconds_count",
            &[("op", op)],
        )
    };
    assert_eq!((op("acquire"), op("release")), (5.0, 3.0));
    let method = |name, labels: &[(&str, &str)]| {
        seen.sum(name, &[&[("grpc_method", "Acquire")], labels].concat())
    };
    assert_eq!(
        method("grpc_server_started_total", &[("grpc_type", "unary")]),
        5.0
    );
    assert_eq!(
        method("grpc_server_handled_total", &[("grpc_code", "OK")]),
        4.0
    );
    assert_eq!(
        method("grpc_server_handled_total", &[("grpc_code", "Aborted")]),
        1.0
    );
    assert_eq!(method("grpc_server_handling_seconds_count", &[]), 5.0);
    assert_eq!(seen.sum("leasehold_store_up", &[]), 1.0);
    assert_eq!(seen.sum("leasehold_draining", &[]), 0.0);
}

#[tokio::test]
async fn a_lease_stream_is_counted_until_it_ends() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("scraper", TOKEN)]).await;
    let caller = fixture.caller(TOKEN);
    let open = async || {
        let seen = scrape_at(fixture.broker.admin(), Some(TOKEN)).await;
        let method = [("grpc_method", "Hold")];
        let handled = seen.sum("grpc_server_handled_total", &method);
        (seen.sum("leasehold_streams", &[("kind", "hold")]), handled)
    };
    let streams = open_stream(&caller).await;
    assert_eq!(open().await, (1.0, 0.0));
    drop(streams);
    until("it is over", async || {
        (open().await == (0.0, 1.0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_store_that_is_away_is_seen() {
    let fixture = Deployment::start(1).await;
    let broker = &fixture.brokers[0];
    let is_up = async || scrape(broker).await.sum("leasehold_store_up", &[]);
    until("it serves", async || (is_up().await == 1.0).then_some(())).await;
    let before = scrape(broker)
        .await
        .sum("leasehold_store_failovers_total", &[]);
    assert_eq!(before, 0.0);
    let mut fixture = fixture;
    fixture.redis.kill().await;
    let broker = &fixture.brokers[0];
    let is_up = async || scrape(broker).await.sum("leasehold_store_up", &[]);
    until("it is away", async || (is_up().await == 0.0).then_some(())).await;
    fixture.redis.restart().await;
    let broker = &fixture.brokers[0];
    until("another process is there", async || {
        let seen = scrape(broker).await;
        let failovers = seen.sum("leasehold_store_failovers_total", &[]);
        (failovers == 1.0 && seen.sum("leasehold_store_up", &[]) == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_scraper_shows_who_it_is() {
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("scraper", TOKEN)]).await;
    for (token, status) in [(None, 401), (Some("wrong"), 401), (Some(TOKEN), 200)] {
        let wire = TcpStream::connect(fixture.broker.admin())
            .await
            .expect("it listens");
        let (answered, text) = request_metrics(wire, token).await;
        assert_eq!(answered, status, "{token:?}: {text}");
        assert_eq!(text.contains("leasehold_"), status == 200);
    }
    let mut on_api = TcpStream::connect(fixture.broker.addr())
        .await
        .expect("it listens");
    let request = b"GET /metrics HTTP/1.1\r\nhost: scraper\r\n\r\n";
    let _ = on_api.write_all(request).await;
    let mut answer = Vec::new();
    let _ = on_api.read_to_end(&mut answer).await;
    assert!(
        !String::from_utf8_lossy(&answer).contains("leasehold_"),
        "only operators"
    );
}

#[tokio::test]
async fn nothing_is_counted_where_that_is_switched_off() {
    let mut options = BrokerOptions::for_store("memory".to_owned());
    options
        .env
        .push(("LEASEHOLD__METRICS__ENABLED".to_owned(), "false".to_owned()));
    let broker = BrokerProcess::start(&options).await;
    let (status, body) = plain_http::get(broker.admin(), "/metrics").await;
    assert_eq!((status, body.as_str()), (404, ""));
}

/// Returns a request for a new lock, with a new owner and a new label, in one of 100 namespaces of
/// the round.
fn one_of(round: usize, number: usize) -> AcquireRequest {
    let name = format!("space-{round}-{}:lock-{round}-{number}", number % 100);
    let label = ("label-name".to_owned(), format!("value-{round}-{number}"));
    AcquireRequest {
        owner: Some(Owner {
            id: format!("owner-{round}-{number}"),
            reason: format!("because-{round}-{number}"),
            labels: [label].into(),
        }),
        ..acquire_request(&name, TTL)
    }
}

#[tokio::test]
async fn locks_callers_and_namespaces_add_no_series() {
    let fixture = Deployment::start(1).await;
    let broker = &fixture.brokers[0];
    let caller = Caller::new(broker.addr(), broker.admin(), None);
    let locks = scaled_count(10_000, 1_000);
    let (mut secrets, mut series) = (Vec::new(), Vec::new());
    let mut held = VecDeque::new();
    let started_at = boottime();
    for round in 0..2 {
        for number in 0..locks {
            let lease = send_acquire(&caller, one_of(round, number))
                .await
                .expect("free");
            if number % 100 == 0 {
                secrets.extend([lease.lease_id.clone(), lease.lease_token.clone()]);
            }
            held.push_back(lease);
            // A lease in each namespace is held. An expiry would add a series, so none lives long.
            if held.len() > 100 {
                let oldest = held.pop_front().expect("more than 100");
                send_release(&caller, &oldest).await.expect("held");
            }
        }
        let seen = scrape(broker).await;
        assert!(seen.label_values("namespace").len() <= NAMESPACES_MAX);
        assert!(seen.label_values("namespace").contains("other"));
        series.push(seen.samples.len());
        let names = ["lock-", "owner-", "because-", "label-name", "value-"];
        for secret in names.into_iter().chain(secrets.iter().map(String::as_str)) {
            assert!(!seen.text.contains(secret), "{secret} is shown");
        }
    }
    assert_eq!(
        series[0], series[1],
        "a second hundred of namespaces adds series"
    );
    let mut seen = scrape(broker).await;
    let granted = seen.sum("leasehold_acquires_total", &[("outcome", "granted")]);
    let all = u32::try_from(2 * locks).expect("few");
    assert_eq!(granted, f64::from(all), "all are counted");
    seen.samples
        .retain(|sample| sample.labels.contains_key("namespace"));
    print_figures(&format!(
        "metrics: {locks} locks and 100 namespaces, twice: {} series, {} of them by namespace, {} KiB, {} ms",
        series[1],
        seen.samples.len(),
        seen.text.len() / 1024,
        (boottime() - started_at).as_millis(),
    ));
}

#[tokio::test]
async fn namespaces_of_the_policy_are_counted_by_name() {
    let rule = r#"
        [[rule]]
        callers = ["token:nobody"]
        verbs = ["list"]
        namespaces = ["orders", "bills*"]
    "#;
    let rules = format!("{ALLOW_ALL_POLICY}{rule}");
    let fixture = AccessControlFixture::start(&rules, &[("scraper", TOKEN)]).await;
    let caller = fixture.caller(TOKEN);
    let names = (0..NAMESPACES_MAX).map(|number| format!("space-{number}:a"));
    for name in names.chain(["bills:a".to_owned(), "orders:a".to_owned()]) {
        send_acquire(&caller, acquire_request(&name, TTL))
            .await
            .expect("free");
    }
    let seen = scrape_at(fixture.broker.admin(), Some(TOKEN)).await;
    let granted = |namespace| {
        let labels = [("namespace", namespace), ("outcome", "granted")];
        seen.sum("leasehold_acquires_total", &labels)
    };
    assert_eq!(granted("orders"), 1.0);
    assert_eq!((granted("space-0"), granted("space-49")), (1.0, 1.0));
    assert_eq!((granted("space-50"), granted("bills")), (0.0, 0.0));
    assert_eq!(granted("other"), 2.0);
}
