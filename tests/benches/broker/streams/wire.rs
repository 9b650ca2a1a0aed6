//! Lease streams with small buffers, of which a load generator can open a hundred thousand.

use std::net::SocketAddr;

use futures::Stream;
use http::uri::PathAndQuery;
use leasehold_proto::v1::{
    AcquireRequest, HoldAcquire, HoldRequest, HoldResponse, hold_request::Message,
};
use tonic::{
    Request, Status, Streaming,
    client::Grpc,
    codec::{BufferSettings, Codec},
    transport::{Channel, Endpoint},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

const METHOD: &str = "/leasehold.v1.LockService/Hold";
const BUFFER_BYTES: usize = 256;
const BATCH_BYTES: usize = 32 * 1024;

/// tonic's codec with buffers of the size of our messages instead of 8 KiB for each direction.
struct Lean;

impl Codec for Lean {
    type Encode = HoldRequest;
    type Decode = HoldResponse;
    type Encoder = ProstEncoder<HoldRequest>;
    type Decoder = ProstDecoder<HoldResponse>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER_BYTES, BATCH_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER_BYTES, BATCH_BYTES))
    }
}

/// Creates a connection without keepalive pings, because those of the broker detect a dead
/// connection.
pub(crate) fn connection(addr: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("a socket address");
    endpoint.tcp_nodelay(true).connect_lazy()
}

/// Opens a stream that sends the messages of `outgoing`.
pub(crate) async fn open_lean(
    connection: Channel,
    outgoing: impl Stream<Item = HoldRequest> + Send + 'static,
) -> Result<Streaming<HoldResponse>, Status> {
    let mut grpc = Grpc::new(connection);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let method = PathAndQuery::from_static(METHOD);
    let response = grpc.streaming(Request::new(outgoing), method, Lean).await?;
    Ok(response.into_inner())
}

/// Creates the first attempt of an acquire.
pub(crate) fn acquire(call_id: i64, request: AcquireRequest) -> Message {
    Message::Acquire(HoldAcquire {
        call_id,
        request: Some(request),
        attach_number: 1,
        ..HoldAcquire::default()
    })
}

/// Wraps `message` for the stream.
pub(crate) fn request(message: Message) -> HoldRequest {
    let message = Some(message);
    HoldRequest { message }
}
