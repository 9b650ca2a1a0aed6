//! Metrics and logs of lease ends. All brokers together count each end once, with its reason. Each
//! lost lease has one log line, which names the lease and contains no secret.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::time::Duration;

use leasehold_proto::v1::{Lease, LeaseEndReason, hold_response::Message as Told};
use leasehold_tests::{
    access::{
        files_and_callers::BearerTokenInterceptor,
        fixture::{ALLOW_ALL_POLICY, AccessControlFixture},
    },
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    client::{
        operator::{REASON, force_release, force_release_request, unsafe_force_release_request},
        stream::StreamClient,
        unary::{AcquireCall, Client, channel},
    },
    load::store_expiry::store_expiry,
    redis::server::RedisServer,
    redlock::deployment::RedlockDeployment,
    scale::{print_figures, scaled_count},
    telemetry::scrape::{scrape, scrape_at},
    until::until,
};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
const BROKERS: usize = 3;
const LOSS_MESSAGE: &str = "a lease has lost its lock";
const REASONS: [&str; 6] = [
    "released",
    "expired",
    "revoked",
    "store_lost",
    "max_hold",
    "credential_expired",
];

/// Several brokers on one Redis.
struct Fixture(Deployment);

impl Fixture {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let mut options = BrokerOptions::for_store(redis.url());
        let debug = "info,leasehold_server::broker=debug".to_owned();
        options
            .env
            .push(("LEASEHOLD__LOG__FILTER".to_owned(), debug));
        Self(Deployment::start_on(redis, &options, BROKERS).await)
    }

    fn client(&self) -> Client {
        Client::new("holder", &self.0.addrs(), 0)
    }

    async fn stream(&self, at: usize) -> StreamClient {
        StreamClient::open(self.0.brokers[at].addr()).await
    }

    /// Returns the number of ends that all brokers have counted, by reason.
    async fn end_counts(&self) -> [f64; REASONS.len()] {
        let mut ends = [0.0; REASONS.len()];
        for broker in &self.0.brokers {
            let seen = scrape(broker).await;
            for (end, reason) in ends.iter_mut().zip(REASONS) {
                let counted = seen.sum("leasehold_lease_ends_total", &[("reason", reason)]);
                let held = seen.sum("leasehold_lease_hold_seconds_count", &[("reason", reason)]);
                assert_eq!(counted, held, "{reason}");
                *end += counted;
            }
        }
        ends
    }

    /// Waits until at least `count` ends are counted, and asserts that the next scrape has exactly
    /// `count`.
    async fn assert_end_count(&self, reason: &str, count: usize) {
        let count = to_metric_value(count);
        let at = REASONS
            .iter()
            .position(|known| *known == reason)
            .expect("a reason");
        until(reason, async || {
            (self.end_counts().await[at] >= count).then_some(())
        })
        .await;
        assert_eq!(self.end_counts().await[at], count, "{reason}");
    }

    /// Returns the log lines of all brokers about lost leases.
    fn loss_log_lines(&self) -> Vec<String> {
        let logs = self.0.brokers.iter().map(|broker| broker.log());
        let lines = logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|line| line.contains(LOSS_MESSAGE)).collect()
    }

    /// Returns the log line about the loss of a lease. Asserts that there is one, with all fields
    /// and without the lease token.
    fn loss_log_line(&self, lease: &Lease, reason: &str) -> String {
        let lines = self.loss_log_lines();
        let its = lines.iter().filter(|line| line.contains(&lease.lease_id));
        let its: Vec<_> = its.collect();
        assert_eq!(its.len(), 1, "{} in {lines:?}", lease.lease_id);
        let token = lease.grants.first().expect("a grant").fencing_token;
        for part in [
            format!("reason=\"{reason}\""),
            format!("fencing_token={token}"),
            "WARN".to_owned(),
            "held_ms=".to_owned(),
        ] {
            assert!(its[0].contains(&part), "{part} is not in {}", its[0]);
        }
        assert!(!its[0].contains(&lease.lease_token), "the token is shown");
        its[0].clone()
    }
}

/// Converts a count to the type of metric values.
fn to_metric_value(count: usize) -> f64 {
    u32::try_from(count).expect("few").into()
}

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

async fn acquire_lock(stream: &mut StreamClient, call: &AcquireCall) -> Lease {
    let call_id = stream.acquire(call, 1).await;
    let granted = stream.wait_for(|message| match message {
        Told::Granted(granted) if granted.call_id == call_id => granted.lease,
        _ => None,
    });
    granted.await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_is_counted_once_with_its_reason() {
    let fixture = Fixture::start().await;
    let client = fixture.client();

    // Released by a unary call at another broker, and on a stream.
    let lease = client
        .acquire_at(0, &immediate_call("unary"))
        .await
        .expect("free");
    client.release_at(1, &lease).await.expect("held");
    client.release_at(2, &lease).await.expect("a repeat");
    let mut stream = fixture.stream(0).await;
    let lease = acquire_lock(&mut stream, &immediate_call("streamed")).await;
    stream.release(&lease.lease_id).await;
    fixture.assert_end_count("released", 2).await;
    assert!(fixture.loss_log_lines().is_empty(), "a release is no loss");

    // The expiry is detected although no call requests the lock.
    let unary = client
        .acquire_at(0, &immediate_call("left alone"))
        .await
        .expect("free");
    let mut broken = fixture.stream(1).await;
    let streamed = acquire_lock(&mut broken, &immediate_call("broken")).await;
    drop(broken);
    fixture.assert_end_count("expired", 2).await;
    fixture.loss_log_line(&unary.lease, "expired");
    let line = fixture.loss_log_line(&streamed, "expired");
    assert!(
        line.contains("owner=\"stream\"") && line.contains("broken"),
        "{line}"
    );

    // The broker ends the lease after its disconnect grace.
    let mut graced = fixture.stream(1).await;
    let lease = acquire_lock(
        &mut graced,
        &immediate_call("graced").with_disconnect_grace(300),
    )
    .await;
    drop(graced);
    fixture.assert_end_count("expired", 3).await;
    fixture.loss_log_line(&lease, "expired");

    // A call waits at another broker.
    let lost = client
        .acquire_at(0, &immediate_call("waited for"))
        .await
        .expect("free");
    let waits = AcquireCall::new("waited for", TTL, Duration::from_secs(30));
    let next = client.acquire_at(2, &waits).await.expect("its turn comes");
    fixture.assert_end_count("expired", 4).await;
    fixture.loss_log_line(&lost.lease, "expired");
    client.release_at(1, &next).await.expect("held");
    fixture.assert_end_count("released", 3).await;

    // An operator revokes a lease immediately, and a lease whose holder does not release it on
    // request.
    let lease = acquire_lock(&mut stream, &immediate_call("taken")).await;
    let admin = fixture.0.brokers[2].admin();
    force_release(
        admin,
        unsafe_force_release_request("taken", &lease.lease_id),
    )
    .await
    .expect("held");
    fixture.assert_end_count("revoked", 1).await;
    assert!(fixture.loss_log_line(&lease, "revoked").contains(REASON));
    let lease = acquire_lock(&mut stream, &immediate_call("asked for")).await;
    force_release(admin, force_release_request("asked for", &lease.lease_id))
        .await
        .expect("held");
    fixture.assert_end_count("revoked", 2).await;
    fixture.loss_log_line(&lease, "revoked");

    // A holder that releases the lease on request has not lost it.
    let lease = client
        .acquire_at(0, &immediate_call("released"))
        .await
        .expect("free");
    force_release(
        admin,
        force_release_request("released", &lease.lease.lease_id),
    )
    .await
    .expect("held");
    client.release_at(0, &lease).await.expect("held still");
    fixture.assert_end_count("released", 4).await;

    // `max_hold` ends the lease despite its heartbeats.
    let mut beating = fixture.stream(1).await;
    let short = immediate_call("long").with_max_hold(TTL / 2);
    let lease = acquire_lock(&mut beating, &short).await;
    beating.start_heartbeats(TTL / 8);
    fixture.assert_end_count("max_hold", 1).await;
    fixture.loss_log_line(&lease, "max_hold");

    assert_eq!(fixture.end_counts().await, [4.0, 4.0, 2.0, 0.0, 1.0, 0.0]);
    assert_eq!(fixture.loss_log_lines().len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_loses_is_counted_once() {
    let fixture = Fixture::start().await;
    let locks = scaled_count(200, 20);
    let mut streams = Vec::new();
    for at in 0..BROKERS {
        let mut stream = fixture.stream(at).await;
        stream.start_heartbeats(TTL / 4);
        for lock in 0..locks {
            acquire_lock(&mut stream, &immediate_call(&format!("{at}-{lock}"))).await;
        }
        streams.push(stream);
    }
    let mut raw = fixture.0.redis.connect().await;
    raw.must(&["FLUSHALL"]).await;
    let ended = BROKERS * locks;
    fixture.assert_end_count("store_lost", ended).await;
    sleep(store_expiry(TTL)).await;
    assert_eq!(
        fixture.end_counts().await,
        [0.0, 0.0, 0.0, to_metric_value(ended), 0.0, 0.0]
    );
    assert_eq!(fixture.loss_log_lines().len(), ended);
    print_figures(&format!(
        "metrics_losses: {ended} leases that the store lost, each notified once"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_leases_are_counted_once_by_whichever_broker() {
    let fixture = Fixture::start().await;
    let client = fixture.client();
    let locks = scaled_count(1_000, 100);
    for lock in 0..locks {
        let call = immediate_call(&format!("lock-{lock}"));
        client
            .acquire_at(lock % BROKERS, &call)
            .await
            .expect("free");
    }
    sleep(store_expiry(TTL)).await;
    // All brokers request all locks at the same time.
    let looks = (0..BROKERS).map(|at| {
        let client = client.clone();
        async move {
            for lock in 0..locks {
                // Another broker may have been granted the lock.
                let next = client
                    .acquire_at(at, &immediate_call(&format!("lock-{lock}")))
                    .await;
                if let Ok(next) = next {
                    client.release_at(at, &next).await.expect("held");
                }
            }
        }
    });
    futures::future::join_all(looks).await;
    fixture.assert_end_count("expired", locks).await;
    print_figures(&format!(
        "metrics_losses: {locks} leases that ran out, each notified once by {BROKERS} brokers"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_is_gone_is_the_reason() {
    let (token, name) = ("the token, 5e1f", "worker");
    let fixture =
        AccessControlFixture::start(ALLOW_ALL_POLICY, &[(name, token), ("scraper", "scrapes")])
            .await;
    let interceptor = BearerTokenInterceptor(Some(token.to_owned()));
    let mut stream =
        StreamClient::open_with_interceptor(channel(fixture.broker.addr()), interceptor).await;
    let lease = acquire_lock(&mut stream, &immediate_call("a")).await;
    stream.start_heartbeats(TTL / 4);
    fixture.access_files.set_tokens(&[("scraper", "scrapes")]);
    let ended = stream.wait_for(|message| match message {
        Told::Ended(ended) => Some(ended),
        _ => None,
    });
    assert_eq!(ended.await.reason(), LeaseEndReason::CredentialExpired);
    until("it has run out", async || {
        let seen = scrape_at(fixture.broker.admin(), Some("scrapes")).await;
        let all = seen.sum("leasehold_lease_ends_total", &[]);
        let its = seen.sum(
            "leasehold_lease_ends_total",
            &[("reason", "credential_expired")],
        );
        assert_eq!(all, its);
        (its == 1.0).then_some(())
    })
    .await;
    let log = fixture.broker.log();
    let line = log
        .lines()
        .find(|line| line.contains(LOSS_MESSAGE))
        .expect("its line");
    assert!(line.contains(&lease.lease_id), "{line}");
    assert!(
        line.contains("the credential of its stream has expired"),
        "{line}"
    );
    assert!(!log.contains(token) && !log.contains(&lease.lease_token));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_end_reported_by_several_servers_is_counted_once() {
    let fixture = RedlockDeployment::start(3).await;
    let brokers = fixture.start_brokers(2).await;
    let addrs: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let client = Client::new("holder", &addrs, 0);
    let ends = async |reason| {
        let mut all = 0.0;
        for broker in &brokers {
            let seen = scrape(broker).await;
            all += seen.sum("leasehold_lease_ends_total", &[("reason", reason)]);
        }
        all
    };
    let before = ends("released").await;
    for lock in 0..5 {
        let lock = format!("lock-{lock}");
        client
            .acquire_at(0, &immediate_call(&lock))
            .await
            .expect("free");
        let waits = AcquireCall::new(&lock, TTL, Duration::from_secs(30));
        let next = client.acquire_at(1, &waits).await.expect("its turn comes");
        client.release_at(1, &next).await.expect("held");
    }
    until("each is counted", async || {
        (ends("expired").await >= 5.0).then_some(())
    })
    .await;
    assert_eq!(ends("expired").await, 5.0);
    assert_eq!(ends("released").await - before, 5.0);
}
