//! Calls with incomplete request messages.

use http::uri::PathAndQuery;
use leasehold_proto::v1::Heartbeat;
use tonic::{Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

/// Sends the headers of a call, optionally with a bearer token, but no message. Returns the error
/// of the broker.
///
/// # Panics
/// If the call succeeds.
pub async fn send_without_message(
    channel: Channel,
    path: &'static str,
    token: Option<&str>,
) -> Status {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.expect("a connection");
    let codec = ProstCodec::<Heartbeat, Heartbeat>::default();
    let mut call = Request::new(tokio_stream::pending());
    if let Some(token) = token {
        let authorization = format!("Bearer {token}").parse().expect("a token of ASCII");
        call.metadata_mut().insert("authorization", authorization);
    }
    let path = PathAndQuery::from_static(path);
    let answer = grpc.client_streaming(call, path, codec).await;
    answer.expect_err("a call without its message")
}
