//! What is not in this release says so, and names itself.

use leasehold_proto::v1::{RefreshCredential, hold_request::Message as Request};
use leasehold_tests::{in_process::InProcess, stream_client::StreamClient};
use tonic::Code;

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
