//! WatchLocks from the view of clients: changes through every broker, filters by name, gaps and the
//! end of a watch.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    ErrorReason, WatchLocksRequest, WatchLocksResponse,
    inspection_service_client::InspectionServiceClient, watch_locks_response::EventType,
};
use leasehold_tests::{
    access::{
        files_and_callers::Caller,
        fixture::{ALLOW_ALL_POLICY, AccessControlFixture},
    },
    broker::{deployment::Deployment, in_process::InProcessBroker, process::BrokerOptions},
    client::unary::{AcquireCall, Client, channel},
    status::error_reason,
    telemetry::scrape::scrape_at,
    until::until,
};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

const TTL: Duration = Duration::from_secs(10);
const NOTIFIED_WITHIN: Duration = Duration::from_secs(10);
const TIME_LIMIT: Duration = Duration::from_millis(100);

fn immediate_call(lock: &str) -> AcquireCall {
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
        let next = timeout(NOTIFIED_WITHIN, self.0.message()).await;
        next.expect("notified in time")
            .map(|event| event.expect("it goes on"))
    }

    async fn event(&mut self) -> WatchLocksResponse {
        self.next().await.expect("it goes on")
    }

    /// Waits for the next event about a lock and returns its type and the lock's name.
    async fn next_event(&mut self) -> (EventType, String) {
        loop {
            let event = self.event().await;
            let target = event.subject.clone().and_then(|subject| subject.target);
            if let Some(target) = target {
                return (event.r#type(), target.name);
            }
        }
    }

    /// Waits until the watch receives events of a broker, which may first have to learn that there
    /// is a watch.
    async fn wait_for_events(&mut self, client: &Client, at: usize, prefix: &str) {
        let mut count = 0;
        until("another broker tells what it does", async || {
            count += 1;
            let name = format!("{prefix}probe-{at}-{count}");
            client
                .acquire_at(at, &immediate_call(&name))
                .await
                .expect("it is free");
            let event_received = async { while self.next_event().await.1 != name {} };
            timeout(TIME_LIMIT, event_received).await.ok()
        })
        .await;
    }
}

#[tokio::test]
async fn changes_by_any_broker_are_sent_with_the_lock_name() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("job", &deployment.addrs(), 0);
    let mut watch = Watch::begin(deployment.brokers[0].addr(), "team/").await;
    for at in [0, 1] {
        watch.wait_for_events(&client, at, "team/").await;
    }
    client
        .acquire_at(1, &immediate_call("other"))
        .await
        .expect("it is free");
    let held = client
        .acquire_at(1, &immediate_call("team/a"))
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
    let waiting = client.start_acquire_at(0, &waits);
    assert_eq!(
        watch.next_event().await,
        (EventType::Queued, "team/a".to_owned())
    );
    client.release_at(1, &held).await.expect("the holder");
    for kind in [EventType::Released, EventType::Acquired] {
        assert_eq!(watch.next_event().await, (kind, "team/a".to_owned()));
    }
    drop(waiting);
}

#[tokio::test]
async fn a_gap_is_reported_where_changes_may_be_missing() {
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
    watch.wait_for_events(&client, 0, "").await;
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
    let broker = InProcessBroker::start().await;
    let mut watch = Watch::begin(broker.api, "").await;
    broker.stop().await;
    let ended = watch.next().await.expect_err("it is over");
    assert_eq!(ended.code(), Code::Unavailable);
    assert_eq!(error_reason(&ended), Some(ErrorReason::Draining));
}

#[tokio::test]
async fn a_watch_ends_with_the_age_of_its_connection() {
    /// Minimum duration: the connection age, which varies by a tenth, and the grace period.
    const LASTS_AT_LEAST: Duration = Duration::from_millis(1_900);
    let mut options = BrokerOptions::default();
    for key in ["MAX_CONNECTION_AGE", "MAX_CONNECTION_AGE_GRACE"] {
        let setting = (format!("LEASEHOLD__HTTP2__{key}"), "1s".to_owned());
        options.env.push(setting);
    }
    let deployment = Deployment::start_single(options).await;
    let mut watch = Watch::begin(deployment.addrs()[0], "").await;
    let started_at = Instant::now();
    let end = timeout(NOTIFIED_WITHIN, watch.0.message()).await;
    let end = end.expect("it ends").expect("without an error");
    assert_eq!(end, None);
    assert!(
        started_at.elapsed() >= LASTS_AT_LEAST,
        "{:?}",
        started_at.elapsed()
    );
}

#[tokio::test]
async fn a_quiet_watch_has_bookmarks() {
    let broker = InProcessBroker::start().await;
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
    let broker = InProcessBroker::start().await;
    let illegal = WatchLocksRequest {
        namespace: "no/slash".to_owned(),
        ..WatchLocksRequest::default()
    };
    let refused = Watch::of(broker.api, illegal).await.err().expect("refused");
    assert_eq!(error_reason(&refused), Some(ErrorReason::InvalidField));
    broker.stop().await;
}

const WATCHES_PER_CALLER: usize = 16;
const WATCHES: usize = 1_000;
const WATCHES_PER_CONNECTION: usize = 100;

async fn watch_all(caller: &Caller) -> Result<Streaming<WatchLocksResponse>, Status> {
    let request = WatchLocksRequest::default();
    let watch = caller.inspection.clone().watch_locks(request).await?;
    Ok(watch.into_inner())
}

/// Asserts that a status reports that the limit `bound` on watches is exceeded.
fn assert_limit_exceeded(refused: &Status, bound: &str) {
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert_eq!(error_reason(refused), Some(ErrorReason::QuotaExceeded));
    assert!(refused.message().contains(bound), "{}", refused.message());
    let failure = refused.get_details_quota_failure();
    let failure = failure.expect("a QuotaFailure");
    assert!(failure.violations[0].description.contains(bound));
}

#[tokio::test]
async fn one_caller_has_sixteen_watches() {
    let tokens = [("alice", "alice"), ("bob", "bob")];
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &tokens).await;
    let (alice, bob) = (fixture.caller("alice"), fixture.caller("bob"));
    let mut watches = Vec::new();
    for _ in 0..WATCHES_PER_CALLER {
        watches.push(watch_all(&alice).await.expect("a watch"));
    }
    let refused = watch_all(&alice).await.expect_err("one too many");
    assert_limit_exceeded(&refused, "the caller has 16 watches at this broker");
    let metrics = scrape_at(fixture.broker.admin(), Some("bob")).await;
    let label = [("quota", "watches_per_caller")];
    let counted = metrics.sum("leasehold_quota_refusals_total", &label);
    assert_eq!(counted as usize, 1);
    watch_all(&bob).await.expect("a watch of another caller");
    watches.pop();
    until("the watch has ended", async || watch_all(&alice).await.ok()).await;
}

#[tokio::test]
async fn a_broker_has_a_thousand_watches() {
    let broker = InProcessBroker::start().await;
    let mut watches = Vec::new();
    for _ in 0..WATCHES / WATCHES_PER_CONNECTION {
        let caller = Caller::new(broker.api, broker.admin, None);
        for _ in 0..WATCHES_PER_CONNECTION {
            watches.push(watch_all(&caller).await.expect("a watch"));
        }
    }
    let caller = Caller::new(broker.api, broker.admin, None);
    let refused = watch_all(&caller).await.expect_err("one too many");
    assert_limit_exceeded(&refused, "this broker has 1000 watches, the maximum");
    watches.pop();
    until("the watch has ended", async || {
        watch_all(&caller).await.ok()
    })
    .await;
    drop(watches);
    broker.stop().await;
}
