//! Behavior outside of the API's own code: reflection, and messages that the gRPC library cannot
//! decode.

use http::uri::PathAndQuery;
use leasehold_proto::v1::{
    AcquireResponse, GetLockRequest, Heartbeat, inspection_service_client::InspectionServiceClient,
};
use leasehold_tests::broker::in_process::InProcessBroker;
use tonic::{Code, Request, client::Grpc};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::{v1, v1alpha};

#[tokio::test]
async fn reflection_lists_the_services() {
    let broker = InProcessBroker::start().await;
    let list = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(list),
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(broker.channel());
    let answers = client
        .server_reflection_info(tokio_stream::once(request))
        .await;
    let answer = answers.expect("v1 answers").into_inner().message().await;
    let answer = format!("{:?}", answer.expect("no error").expect("one answer"));
    assert!(answer.contains("leasehold.v1.LockService"), "{answer}");
    assert!(
        answer.contains("leasehold.v1.InspectionService"),
        "{answer}"
    );
    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(list),
    };
    let mut client =
        v1alpha::server_reflection_client::ServerReflectionClient::new(broker.channel());
    let answers = client
        .server_reflection_info(tokio_stream::once(request))
        .await;
    let answer = answers
        .expect("v1alpha answers")
        .into_inner()
        .message()
        .await;
    let answer = format!("{:?}", answer.expect("no error").expect("one answer"));
    assert!(answer.contains("leasehold.v1.LockService"), "{answer}");
    broker.stop().await;
}

#[tokio::test]
async fn a_message_that_cannot_be_decoded_is_the_librarys_internal_error() {
    let broker = InProcessBroker::start().await;
    let mut grpc = Grpc::new(broker.channel());
    grpc.ready().await.expect("a connection");
    let path = PathAndQuery::from_static("/leasehold.v1.LockService/Acquire");
    // Field 1 is a number in this message, but a message in `AcquireRequest`.
    let codec = ProstCodec::<Heartbeat, AcquireResponse>::default();
    let sent = Request::new(Heartbeat { sequence: 7 });
    let status = grpc
        .unary(sent, path, codec)
        .await
        .expect_err("undecodable");
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    broker.stop().await;
}

#[tokio::test]
async fn a_message_over_64_kib_is_refused_unread() {
    let broker = InProcessBroker::start().await;
    let mut inspection = InspectionServiceClient::new(broker.channel());
    let request = GetLockRequest {
        name: "x".repeat(65 * 1_024),
        ..GetLockRequest::default()
    };
    let status = inspection.get_lock(request).await.expect_err("too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    broker.stop().await;
}
