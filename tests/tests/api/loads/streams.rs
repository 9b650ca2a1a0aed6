//! Limits on the number of lease streams.

use futures::future::join_all;
use leasehold_proto::v1::{ErrorReason, HoldRequest, HoldResponse};
use leasehold_tests::{
    access::{
        files_and_callers::Caller,
        fixture::{ALLOW_ALL_POLICY, AccessControlFixture},
    },
    status::error_reason,
    telemetry::scrape::scrape_at,
    until::until,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

const PER_CALLER: usize = 2_000;
const PER_CONNECTION: usize = 1_000;

/// A lease stream without requests.
struct Idle(
    #[expect(dead_code, reason = "kept open")] mpsc::Sender<HoldRequest>,
    #[expect(dead_code, reason = "kept open")] Streaming<HoldResponse>,
);

async fn idle(caller: &Caller) -> Result<Idle, Status> {
    let (asks, requests) = mpsc::channel(1);
    let mut locks = caller.locks.clone();
    let answers = locks.hold(ReceiverStream::new(requests)).await?;
    Ok(Idle(asks, answers.into_inner()))
}

#[tokio::test]
async fn one_caller_has_two_thousand_lease_streams() {
    let tokens = [("alice", "alice"), ("bob", "bob")];
    let fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &tokens).await;
    let mut open = Vec::new();
    for _ in 0..PER_CALLER / PER_CONNECTION {
        let alice = fixture.caller("alice");
        let streams = join_all((0..PER_CONNECTION).map(|_| idle(&alice))).await;
        open.extend(streams.into_iter().map(|stream| stream.expect("a stream")));
    }
    let (alice, bob) = (fixture.caller("alice"), fixture.caller("bob"));
    let refused = idle(&alice).await.err().expect("one too many");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert_eq!(error_reason(&refused), Some(ErrorReason::QuotaExceeded));
    let bound = "the caller has 2000 lease streams at this broker, the maximum";
    assert!(refused.message().contains(bound), "{}", refused.message());
    let metrics = scrape_at(fixture.broker.admin(), Some("bob")).await;
    let label = [("quota", "streams_per_caller")];
    let counted = metrics.sum("leasehold_quota_refusals_total", &label);
    assert_eq!(counted as usize, 1);
    idle(&bob).await.expect("a stream of another caller");
    open.pop();
    until("the stream has ended", async || idle(&alice).await.ok()).await;
}
