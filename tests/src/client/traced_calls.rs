//! Raw calls with a trace context.

use leasehold_proto::v1::{
    AcquireRequest, Lease, LockTarget, Owner, lock_service_client::LockServiceClient,
};
use tonic::{Request, Status, transport::Channel};
use uuid::Uuid;

use crate::{broker::process::BrokerProcess, client::unary::channel};

/// A recorded span of a caller.
#[derive(Debug, Clone)]
pub struct ParentSpan {
    /// Trace id in hexadecimal digits.
    pub trace: String,
    /// Span id in hexadecimal digits.
    pub span: String,
}

impl ParentSpan {
    /// Creates a span with random ids.
    #[must_use]
    pub fn new() -> Self {
        let (trace, span) = (Uuid::new_v4(), Uuid::new_v4());
        Self {
            trace: trace.simple().to_string(),
            span: span.simple().to_string()[..16].to_owned(),
        }
    }

    /// Returns the value of a `traceparent` header.
    #[must_use]
    pub fn header(&self, is_sampled: bool) -> String {
        let flags = u8::from(is_sampled);
        format!("00-{}-{}-{flags:02x}", self.trace, self.span)
    }

    /// Returns the value of a `grpc-trace-bin` header.
    #[must_use]
    pub fn binary(&self) -> Vec<u8> {
        let bytes = |hex: &str| {
            let hex = data_encoding::HEXLOWER.decode(hex.as_bytes());
            hex.expect("digits")
        };
        let parts = [
            vec![0, 0],
            bytes(&self.trace),
            vec![1],
            bytes(&self.span),
            vec![2, 1],
        ];
        parts.concat()
    }

    /// Returns a request with this span as its parent.
    #[must_use]
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let header = self.header(true).parse().expect("ASCII");
        request.metadata_mut().insert("traceparent", header);
        request
    }
}

impl Default for ParentSpan {
    fn default() -> Self {
        Self::new()
    }
}

/// Connects to a broker.
#[must_use]
pub fn lock_client(broker: &BrokerProcess) -> LockServiceClient<Channel> {
    LockServiceClient::new(channel(broker.addr()))
}

/// Returns a request for a lock in the default namespace with a wait in seconds.
#[must_use]
pub fn request_with_wait(lock: &str, wait_s: i64) -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            name: lock.to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker".to_owned(),
            labels: [("team".to_owned(), "a-label-value".to_owned())].into(),
            ..Owner::default()
        }),
        wait_timeout: Some(prost_types::Duration {
            seconds: wait_s,
            nanos: 0,
        }),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    }
}

/// Sends the acquire and returns the granted lease.
///
/// # Errors
/// The status that the broker returned.
pub async fn acquire_lease(
    broker: &BrokerProcess,
    request: Request<AcquireRequest>,
) -> Result<Lease, Status> {
    let taken = lock_client(broker).acquire(request).await?.into_inner();
    Ok(taken.lease.expect("a grant has a lease"))
}
