//! A stream that the broker cannot end, so that a drain must wait for it.

use tokio_stream::StreamExt as _;
use tonic::{Streaming, transport::Channel};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, ServerReflectionResponse,
    server_reflection_client::ServerReflectionClient, server_reflection_request::MessageRequest,
};

/// Opens a reflection stream, which stays open until it is dropped.
pub async fn open_reflection_stream(api: Channel) -> Streaming<ServerReflectionResponse> {
    let list = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(list),
    };
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let mut client = ServerReflectionClient::new(api);
    let answers = client.server_reflection_info(requests).await;
    let mut answers = answers.expect("reflection answers").into_inner();
    answers
        .message()
        .await
        .expect("no error")
        .expect("one answer");
    answers
}
