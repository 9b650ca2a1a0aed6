//! WatchLocks as clients hear it: through whichever broker, by name, with gaps and an end.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, WatchLocksRequest, WatchLocksResponse,
    inspection_service_client::InspectionServiceClient, watch_locks_response::EventType,
};
use leasehold_tests::{
    broker_process::BrokerOptions,
    callers::Caller,
    client::{AcquireCall, Client, channel},
    deployment::Deployment,
    guarded::{EVERYTHING, Guarded},
    in_process::InProcess,
    scrape::scrape_at,
    status::reason,
    until::until,
};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

const TTL: Duration = Duration::from_secs(10);
const HEARD_WITHIN: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(100);

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

struct Watch(Streaming<WatchLocksResponse>);

impl Watch {
    async fn of(broker: SocketAddr, request: WatchLocksRequest) -> Result<Self, Status> {
        let mut inspection = InspectionServiceClient::new(channel(broker));
        Ok(Self(inspection.watch_locks(request).await?.into_inner()))
    }

    async fn begin(broker: SocketAddr, prefix: &str) -> Self {
        let request = WatchLocksRequest {
            name_prefix: prefix.to_owned(),
            ..WatchLocksRequest::default()
        };
        Self::of(broker, request).await.expect("a watch begins")
    }

    async fn next(&mut self) -> Result<WatchLocksResponse, Status> {
        let next = timeout(HEARD_WITHIN, self.0.message()).await;
        next.expect("told in time")
            .map(|event| event.expect("it goes on"))
    }

    async fn event(&mut self) -> WatchLocksResponse {
        self.next().await.expect("it goes on")
    }

    /// The next event that is about a lock: its kind, and which lock.
    async fn heard(&mut self) -> (EventType, String) {
        loop {
            let event = self.event().await;
            let target = event.subject.clone().and_then(|subject| subject.target);
            if let Some(target) = target {
                return (event.r#type(), target.name);
            }
        }
    }

    /// Waits until it hears what a broker does, which may have to learn first that somebody watches.
    async fn hears(&mut self, client: &Client, at: usize, prefix: &str) {
        let mut count = 0;
        until("another broker tells what it does", async || {
            count += 1;
            let name = format!("{prefix}probe-{at}-{count}");
            client
                .acquire_at(at, &now(&name))
                .await
                .expect("it is free");
            let told = async { while self.heard().await.1 != name {} };
            timeout(SOON, told).await.ok()
        })
        .await;
    }
}

#[tokio::test]
async fn what_any_broker_does_is_told_by_name() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("job", &deployment.addrs(), 0);
    let mut watch = Watch::begin(deployment.brokers[0].addr(), "team/").await;
    for at in [0, 1] {
        watch.hears(&client, at, "team/").await;
    }
    client
        .acquire_at(1, &now("other"))
        .await
        .expect("it is free");
    let held = client
        .acquire_at(1, &now("team/a"))
        .await
        .expect("it is free");
    let acquired = watch.event().await;
    assert_eq!(acquired.r#type(), EventType::Acquired);
    let subject = acquired.subject.expect("a holder");
    assert_eq!(subject.lease_id, held.lease.lease_id);
    assert_eq!(subject.fencing_token, held.token());
    assert_eq!(subject.owner.expect("an owner").id, "job");
    assert!(acquired.event_time.is_some() && !acquired.resume_token.is_empty());
    let waits = AcquireCall::new("team/a", TTL, Duration::from_secs(30));
    let waiting = client.open_at(0, &waits);
    assert_eq!(
        watch.heard().await,
        (EventType::Queued, "team/a".to_owned())
    );
    client.release_at(1, &held).await.expect("the holder");
    for kind in [EventType::Released, EventType::Acquired] {
        assert_eq!(watch.heard().await, (kind, "team/a".to_owned()));
    }
    drop(waiting);
}

#[tokio::test]
async fn a_gap_is_told_where_something_may_be_missed() {
    let mut deployment = Deployment::start(1).await;
    let broker = deployment.brokers[0].addr();
    let resumed = WatchLocksRequest {
        resume_token: "1".to_owned(),
        ..WatchLocksRequest::default()
    };
    let mut resumed = Watch::of(broker, resumed).await.expect("it goes on");
    assert_eq!(resumed.event().await.r#type(), EventType::Gap);
    let client = Client::new("job", &[broker], 0);
    let mut watch = Watch::begin(broker, "").await;
    watch.hears(&client, 0, "").await;
    deployment.redis.kill().await;
    deployment.redis.restart().await;
    let mut kind = watch.event().await.r#type();
    while kind != EventType::Gap {
        assert!(
            [EventType::Acquired, EventType::Bookmark].contains(&kind),
            "{kind:?}"
        );
        kind = watch.event().await.r#type();
    }
}

#[tokio::test]
async fn a_watch_ends_with_its_broker_and_says_so() {
    let broker = InProcess::start().await;
    let mut watch = Watch::begin(broker.api, "").await;
    broker.stop().await;
    let ended = watch.next().await.expect_err("it is over");
    assert_eq!(ended.code(), Code::Unavailable);
    assert_eq!(reason(&ended), Some(ErrorReason::Draining));
}

#[tokio::test]
async fn a_watch_ends_with_the_age_of_its_connection() {
    /// The age, which differs by a tenth from connection to connection, and the time to move.
    const LASTS_AT_LEAST: Duration = Duration::from_millis(1_900);
    let mut options = BrokerOptions::default();
    for key in ["MAX_CONNECTION_AGE", "MAX_CONNECTION_AGE_GRACE"] {
        let setting = (format!("LEASEHOLD__HTTP2__{key}"), "1s".to_owned());
        options.env.push(setting);
    }
    let deployment = Deployment::of(options).await;
    let mut watch = Watch::begin(deployment.addrs()[0], "").await;
    let began = Instant::now();
    let end = timeout(HEARD_WITHIN, watch.0.message()).await;
    let end = end.expect("it ends").expect("without an error");
    assert_eq!(end, None);
    assert!(began.elapsed() >= LASTS_AT_LEAST, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_quiet_watch_has_bookmarks() {
    let broker = InProcess::start().await;
    let mut watch = Watch::begin(broker.api, "").await;
    let next = timeout(Duration::from_secs(15), watch.0.message()).await;
    let event = next
        .expect("in time")
        .expect("it goes on")
        .expect("an event");
    assert_eq!(event.r#type(), EventType::Bookmark);
    assert!(event.subject.is_none() && !event.resume_token.is_empty());
    broker.stop().await;
}

#[tokio::test]
async fn illegal_names_are_refused() {
    let broker = InProcess::start().await;
    let illegal = WatchLocksRequest {
        namespace: "no/slash".to_owned(),
        ..WatchLocksRequest::default()
    };
    let refused = Watch::of(broker.api, illegal).await.err().expect("refused");
    assert_eq!(reason(&refused), Some(ErrorReason::InvalidField));
    broker.stop().await;
}

const WATCHES_PER_CALLER: usize = 16;
const WATCHES: usize = 1_000;
const WATCHES_PER_CONNECTION: usize = 100;

async fn watch_all(caller: &Caller) -> Result<Streaming<WatchLocksResponse>, Status> {
    let request = WatchLocksRequest::default();
    let watch = caller.looks.clone().watch_locks(request).await?;
    Ok(watch.into_inner())
}

/// That a bound on watches is reached, and which.
fn is_over(refused: &Status, bound: &str) {
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert_eq!(reason(refused), Some(ErrorReason::QuotaExceeded));
    assert!(refused.message().contains(bound), "{}", refused.message());
    let failure = refused.get_details_quota_failure();
    let failure = failure.expect("a QuotaFailure");
    assert!(failure.violations[0].description.contains(bound));
}

#[tokio::test]
async fn one_caller_has_sixteen_watches() {
    let tokens = [("alice", "alice"), ("bob", "bob")];
    let site = Guarded::start(EVERYTHING, &tokens).await;
    let (alice, bob) = (site.caller("alice"), site.caller("bob"));
    let mut watches = Vec::new();
    for _ in 0..WATCHES_PER_CALLER {
        watches.push(watch_all(&alice).await.expect("a watch"));
    }
    let refused = watch_all(&alice).await.expect_err("one too many");
    is_over(&refused, "the caller has 16 watches at this broker");
    let metrics = scrape_at(site.broker.admin(), Some("bob")).await;
    let label = [("quota", "watches_per_caller")];
    let counted = metrics.sum("leasehold_quota_refusals_total", &label);
    assert_eq!(counted as usize, 1);
    watch_all(&bob).await.expect("a watch of another caller");
    watches.pop();
    until("the watch has ended", async || watch_all(&alice).await.ok()).await;
}

#[tokio::test]
async fn a_broker_has_a_thousand_watches() {
    let broker = InProcess::start().await;
    let mut watches = Vec::new();
    for _ in 0..WATCHES / WATCHES_PER_CONNECTION {
        let caller = Caller::new(broker.api, broker.admin, None);
        for _ in 0..WATCHES_PER_CONNECTION {
            watches.push(watch_all(&caller).await.expect("a watch"));
        }
    }
    let caller = Caller::new(broker.api, broker.admin, None);
    let refused = watch_all(&caller).await.expect_err("one too many");
    is_over(&refused, "this broker has 1000 watches, the maximum");
    watches.pop();
    until("the watch has ended", async || {
        watch_all(&caller).await.ok()
    })
    .await;
    drop(watches);
    broker.stop().await;
}
