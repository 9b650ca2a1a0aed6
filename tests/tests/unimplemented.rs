//! What is not in this release says so, and names itself.

use leasehold_proto::v1::{
    RefreshCredential, WatchLocksRequest, hold_request::Message as Request,
    inspection_service_client::InspectionServiceClient,
};
use leasehold_tests::{in_process::InProcess, stream_client::StreamClient};
use tonic::{Code, Status};

#[tokio::test]
async fn messages_that_later_releases_bring_are_named() {
    let broker = InProcess::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let refresh = RefreshCredential {
        call_id: 1,
        authorization: "Bearer x".to_owned(),
    };
    stream.send(Request::RefreshCredential(refresh)).await;
    let refused = stream.refused(1).await;
    assert_eq!(refused.code, i32::from(Code::Unimplemented), "{refused:?}");
    assert!(refused.message.contains("RefreshCredential is not in"));
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn calls_that_later_releases_bring_are_named() {
    let broker = InProcess::start().await;
    let mut inspection = InspectionServiceClient::new(broker.channel());
    not_yet(
        "WatchLocks",
        inspection.watch_locks(WatchLocksRequest::default()).await,
    );
    broker.stop().await;
}

fn not_yet<T>(name: &str, answer: Result<T, Status>) {
    let status = answer.err().unwrap_or_else(|| panic!("{name} is refused"));
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    assert!(
        status.message().contains(name),
        "{name}: {}",
        status.message()
    );
    assert!(
        status.message().contains("not in this release"),
        "{}",
        status.message()
    );
}
