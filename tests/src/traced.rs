//! Calls with a trace, raw.

use leasehold_proto::v1::{
    AcquireRequest, Lease, LockTarget, Owner, lock_service_client::LockServiceClient,
};
use tonic::{Request, Status, transport::Channel};
use uuid::Uuid;

use crate::{broker_process::BrokerProcess, client::channel};

/// A span of a caller, which is recorded.
#[derive(Debug, Clone)]
pub struct Parent {
    /// The trace, in hexadecimal digits.
    pub trace: String,
    /// The span.
    pub span: String,
}

impl Parent {
    /// One that nobody had before.
    #[must_use]
    pub fn new() -> Self {
        let (trace, span) = (Uuid::new_v4(), Uuid::new_v4());
        Self {
            trace: trace.simple().to_string(),
            span: span.simple().to_string()[..16].to_owned(),
        }
    }

    /// As a header.
    #[must_use]
    pub fn header(&self, is_sampled: bool) -> String {
        let flags = u8::from(is_sampled);
        format!("00-{}-{}-{flags:02x}", self.trace, self.span)
    }

    /// The same as `grpc-trace-bin`.
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

    /// A request as a part of it.
    #[must_use]
    pub fn calls<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let header = self.header(true).parse().expect("ASCII");
        request.metadata_mut().insert("traceparent", header);
        request
    }
}

impl Default for Parent {
    fn default() -> Self {
        Self::new()
    }
}

/// A connection to a broker.
#[must_use]
pub fn locks(broker: &BrokerProcess) -> LockServiceClient<Channel> {
    LockServiceClient::new(channel(broker.addr()))
}

/// What asks for a lock of the default namespace, waiting so many seconds.
#[must_use]
pub fn ask(lock: &str, wait_s: i64) -> AcquireRequest {
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

/// Acquires.
///
/// # Errors
/// As answered.
pub async fn takes(
    broker: &BrokerProcess,
    request: Request<AcquireRequest>,
) -> Result<Lease, Status> {
    let taken = locks(broker).acquire(request).await?.into_inner();
    Ok(taken.lease.expect("a grant has a lease"))
}
