//! Pairs over gRPC: to a broker, or to the echo.

use std::net::SocketAddr;

use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_proto::v1::{AcquireRequest, Lease, LockTarget, Owner, ReleaseRequest};
use leasehold_tests::client::channel;
use tonic::transport::Channel;
use uuid::Uuid;

use crate::pairs::{self, Pair, Sample};

/// Connections that many callers share.
pub(crate) const CHANNELS: usize = 4;

struct Caller {
    locks: LockServiceClient<Channel>,
    name: String,
}

impl Pair for Caller {
    async fn pair(&mut self) {
        let response = self.locks.acquire(acquire_request(&self.name)).await;
        let lease = response
            .expect("the caller's own lock is free")
            .into_inner()
            .lease;
        release(&mut self.locks, lease.expect("OK means held")).await;
    }
}

/// One round of `callers` at `addr`.
pub(crate) async fn pairs(addr: SocketAddr, callers: usize) -> Sample {
    let channels: Vec<_> = (0..CHANNELS.min(callers)).map(|_| channel(addr)).collect();
    let caller = |at: usize| Caller {
        locks: LockServiceClient::new(channels[at % channels.len()].clone()),
        name: lock_name(at),
    };
    pairs::run((0..callers).map(caller).collect()).await
}

/// The lock of the caller at `at`.
pub(crate) fn lock_name(at: usize) -> String {
    format!("bench/pair/{at}")
}

/// A call that may be repeated, as client libraries send it.
pub(crate) fn acquire_request(name: &str) -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            name: name.to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "bench".to_owned(),
            ..Owner::default()
        }),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    }
}

/// Gives `lease` back as it was received.
pub(crate) async fn release(locks: &mut LockServiceClient<Channel>, lease: Lease) {
    let request = ReleaseRequest {
        lease: Some(lease),
        ..ReleaseRequest::default()
    };
    let response = locks.release(request).await.expect("a holder can release");
    assert!(
        !response.into_inner().already_released,
        "a lease is released once"
    );
}
