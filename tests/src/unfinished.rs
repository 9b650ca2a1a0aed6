//! Calls whose messages never come.

use http::uri::PathAndQuery;
use leasehold_proto::v1::Heartbeat;
use tonic::{Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

/// Sends the head of a call with this token, or with none, and no message. Returns the refusal.
///
/// # Panics
/// If the call is answered with anything else.
pub async fn refused(channel: Channel, path: &'static str, token: Option<&str>) -> Status {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.expect("a connection");
    let codec = ProstCodec::<Heartbeat, Heartbeat>::default();
    let mut call = Request::new(tokio_stream::pending());
    if let Some(token) = token {
        let shown = format!("Bearer {token}").parse().expect("a token of ASCII");
        call.metadata_mut().insert("authorization", shown);
    }
    let path = PathAndQuery::from_static(path);
    let answer = grpc.client_streaming(call, path, codec).await;
    answer.expect_err("a call without its message")
}
