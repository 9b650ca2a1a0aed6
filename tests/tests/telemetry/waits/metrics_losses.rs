//! Ends of leases: each is counted once by all brokers together, with its reason, and each loss is one line
//! in the log, which names the lease and shows no secret.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::time::Duration;

use leasehold_proto::v1::{Lease, LeaseEndReason, hold_response::Message as Told};
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    callers::Shows,
    client::{AcquireCall, Client, channel},
    deployment::Deployment,
    guarded::{EVERYTHING, Guarded},
    operator::{WHY, force, request, unsafely},
    redis_server::RedisServer,
    redlock::RedlockDeployment,
    scale::{count, figures},
    scrape::{scrape, scrape_at},
    stream_client::StreamClient,
    time_left::expiry,
    until::until,
};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
const BROKERS: usize = 3;
const LINE: &str = "a lease has lost its lock";
const REASONS: [&str; 6] = [
    "released",
    "expired",
    "revoked",
    "store_lost",
    "max_hold",
    "credential_expired",
];

/// Several brokers on one Redis.
struct Site(Deployment);

impl Site {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let mut options = BrokerOptions::on(redis.url());
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

    /// The ends that all brokers have counted, by their reasons.
    async fn ends(&self) -> [f64; REASONS.len()] {
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

    /// Waits until so many ends are counted, then a while longer: there must not be more.
    async fn ended(&self, reason: &str, count: usize) {
        let count = whole(count);
        let at = REASONS
            .iter()
            .position(|known| *known == reason)
            .expect("a reason");
        until(reason, async || {
            (self.ends().await[at] >= count).then_some(())
        })
        .await;
        assert_eq!(self.ends().await[at], count, "{reason}");
    }

    /// Lines of losses in all logs.
    fn lines(&self) -> Vec<String> {
        let logs = self.0.brokers.iter().map(|broker| broker.log());
        let lines = logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|line| line.contains(LINE)).collect()
    }

    /// The one line of the loss of a lease.
    fn line(&self, lease: &Lease, reason: &str) -> String {
        let lines = self.lines();
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

/// A count as metrics have it.
fn whole(count: usize) -> f64 {
    u32::try_from(count).expect("few").into()
}

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

async fn held(stream: &mut StreamClient, call: &AcquireCall) -> Lease {
    let asked = stream.acquire(call, 1).await;
    let granted = stream.heard(|told| match told {
        Told::Granted(granted) if granted.call_id == asked => granted.lease,
        _ => None,
    });
    granted.await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_is_counted_once_with_its_reason() {
    let site = Site::start().await;
    let client = site.client();

    // Given back, by either kind of call, at another broker too.
    let lease = client.acquire_at(0, &now("unary")).await.expect("free");
    client.release_at(1, &lease).await.expect("held");
    client.release_at(2, &lease).await.expect("a repeat");
    let mut stream = site.stream(0).await;
    let lease = held(&mut stream, &now("streamed")).await;
    stream.release(&lease.lease_id).await;
    site.ended("released", 2).await;
    assert!(site.lines().is_empty(), "a release is no loss");

    // Nobody asks for the lock any more, and it is noticed all the same.
    let unary = client
        .acquire_at(0, &now("left alone"))
        .await
        .expect("free");
    let mut broken = site.stream(1).await;
    let streamed = held(&mut broken, &now("broken")).await;
    drop(broken);
    site.ended("expired", 2).await;
    site.line(&unary.lease, "expired");
    let line = site.line(&streamed, "expired");
    assert!(
        line.contains("owner=\"stream\"") && line.contains("broken"),
        "{line}"
    );

    // The broker lets it lapse.
    let mut graced = site.stream(1).await;
    let lease = held(&mut graced, &now("graced").with_grace(300)).await;
    drop(graced);
    site.ended("expired", 3).await;
    site.line(&lease, "expired");

    // Somebody waits at another broker.
    let lost = client
        .acquire_at(0, &now("waited for"))
        .await
        .expect("free");
    let waits = AcquireCall::new("waited for", TTL, Duration::from_secs(30));
    let next = client.acquire_at(2, &waits).await.expect("its turn comes");
    site.ended("expired", 4).await;
    site.line(&lost.lease, "expired");
    client.release_at(1, &next).await.expect("held");
    site.ended("released", 3).await;

    // An operator takes it: at once, and from one that does not give it back.
    let lease = held(&mut stream, &now("taken")).await;
    let admin = site.0.brokers[2].admin();
    force(admin, unsafely("taken", &lease.lease_id))
        .await
        .expect("held");
    site.ended("revoked", 1).await;
    assert!(site.line(&lease, "revoked").contains(WHY));
    let lease = held(&mut stream, &now("asked for")).await;
    force(admin, request("asked for", &lease.lease_id))
        .await
        .expect("held");
    site.ended("revoked", 2).await;
    site.line(&lease, "revoked");

    // One that is asked and gives it back has not lost it.
    let lease = client
        .acquire_at(0, &now("given back"))
        .await
        .expect("free");
    force(admin, request("given back", &lease.lease.lease_id))
        .await
        .expect("held");
    client.release_at(0, &lease).await.expect("held still");
    site.ended("released", 4).await;

    // max_hold, whatever the heartbeats say.
    let mut beating = site.stream(1).await;
    let short = now("long").held_at_most(TTL / 2);
    let lease = held(&mut beating, &short).await;
    beating.beat(TTL / 8);
    site.ended("max_hold", 1).await;
    site.line(&lease, "max_hold");

    assert_eq!(site.ends().await, [4.0, 4.0, 2.0, 0.0, 1.0, 0.0]);
    assert_eq!(site.lines().len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_loses_is_counted_once() {
    let site = Site::start().await;
    let locks = count(200, 20);
    let mut streams = Vec::new();
    for at in 0..BROKERS {
        let mut stream = site.stream(at).await;
        stream.beat(TTL / 4);
        for lock in 0..locks {
            held(&mut stream, &now(&format!("{at}-{lock}"))).await;
        }
        streams.push(stream);
    }
    let mut raw = site.0.redis.connect().await;
    raw.must(&["FLUSHALL"]).await;
    let ended = BROKERS * locks;
    site.ended("store_lost", ended).await;
    sleep(expiry(TTL)).await;
    assert_eq!(site.ends().await, [0.0, 0.0, 0.0, whole(ended), 0.0, 0.0]);
    assert_eq!(site.lines().len(), ended);
    figures(&format!(
        "metrics_losses: {ended} leases that the store lost, each told once"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_ran_out_are_counted_once_whoever_finds_them() {
    let site = Site::start().await;
    let client = site.client();
    let locks = count(1_000, 100);
    for lock in 0..locks {
        let call = now(&format!("lock-{lock}"));
        client
            .acquire_at(lock % BROKERS, &call)
            .await
            .expect("free");
    }
    sleep(expiry(TTL)).await;
    // All brokers look at all of them at the same time, with every call.
    let looks = (0..BROKERS).map(|at| {
        let client = client.clone();
        async move {
            for lock in 0..locks {
                // Another one may have it.
                let next = client.acquire_at(at, &now(&format!("lock-{lock}"))).await;
                if let Ok(next) = next {
                    client.release_at(at, &next).await.expect("held");
                }
            }
        }
    });
    futures::future::join_all(looks).await;
    site.ended("expired", locks).await;
    figures(&format!(
        "metrics_losses: {locks} leases that ran out, each told once by {BROKERS} brokers"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_is_gone_is_the_reason() {
    let (token, name) = ("the token, 5e1f", "worker");
    let site = Guarded::start(EVERYTHING, &[(name, token), ("scraper", "scrapes")]).await;
    let shows = Shows(Some(token.to_owned()));
    let mut stream = StreamClient::open_as(channel(site.broker.addr()), shows).await;
    let lease = held(&mut stream, &now("a")).await;
    stream.beat(TTL / 4);
    site.doors.set_tokens(&[("scraper", "scrapes")]);
    let ended = stream.heard(|told| match told {
        Told::Ended(ended) => Some(ended),
        _ => None,
    });
    assert_eq!(ended.await.reason(), LeaseEndReason::CredentialExpired);
    until("it has run out", async || {
        let seen = scrape_at(site.broker.admin(), Some("scrapes")).await;
        let all = seen.sum("leasehold_lease_ends_total", &[]);
        let its = seen.sum(
            "leasehold_lease_ends_total",
            &[("reason", "credential_expired")],
        );
        assert_eq!(all, its);
        (its == 1.0).then_some(())
    })
    .await;
    let log = site.broker.log();
    let line = log
        .lines()
        .find(|line| line.contains(LINE))
        .expect("its line");
    assert!(line.contains(&lease.lease_id), "{line}");
    assert!(
        line.contains("the credential of its stream ran out"),
        "{line}"
    );
    assert!(!log.contains(token) && !log.contains(&lease.lease_token));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_tell_of_one_end() {
    let site = RedlockDeployment::start(3).await;
    let brokers = site.brokers(2).await;
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
        client.acquire_at(0, &now(&lock)).await.expect("free");
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
