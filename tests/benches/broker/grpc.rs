//! Pairs of acquire and release over gRPC: to a broker, or to the echo server.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_proto::v1::{AcquireRequest, Lease, LockTarget, Owner, ReleaseRequest};
use leasehold_tests::client::unary::channel;
use tonic::transport::Channel;
use uuid::Uuid;

use crate::pairs::{self, Pair, Sample};

/// Number of connections that many callers share.
pub(crate) const CHANNELS: usize = 4;

pub(crate) struct Caller {
    locks: LockServiceClient<Channel>,
    target: LockTarget,
}

impl Pair for Caller {
    async fn pair(&mut self) {
        let lease = acquire(&mut self.locks, &self.target).await;
        release(&mut self.locks, lease).await;
    }
}

/// Runs one round of `callers` at `addr`, each on its own exclusive lock.
pub(crate) async fn pairs(addr: SocketAddr, callers: usize) -> Sample {
    pairs_on(addr, callers, |at| named(&lock_name(at))).await
}

/// Runs one round as [`pairs`] does, for the time `measured`.
pub(crate) async fn pairs_for(addr: SocketAddr, callers: usize, measured: Duration) -> Sample {
    let callers = callers_on(addr, callers, |at| named(&lock_name(at)));
    pairs::run_for(callers, measured).await
}

/// Runs one round of `callers` at `addr`, each on its own target.
pub(crate) async fn pairs_on(
    addr: SocketAddr,
    callers: usize,
    target: impl Fn(usize) -> LockTarget,
) -> Sample {
    pairs::run(callers_on(addr, callers, target)).await
}

pub(crate) fn callers_on(
    addr: SocketAddr,
    callers: usize,
    target: impl Fn(usize) -> LockTarget,
) -> Vec<Caller> {
    let channels: Vec<_> = (0..CHANNELS.min(callers)).map(|_| channel(addr)).collect();
    let caller = |at: usize| Caller {
        locks: LockServiceClient::new(channels[at % channels.len()].clone()),
        target: target(at),
    };
    (0..callers).map(caller).collect()
}

/// Returns the name of the lock of the caller with index `at`.
pub(crate) fn lock_name(at: usize) -> String {
    format!("bench/pair/{at}")
}

/// Returns a target for the exclusive lock with this name.
pub(crate) fn named(name: &str) -> LockTarget {
    LockTarget {
        name: name.to_owned(),
        ..LockTarget::default()
    }
}

/// Acquires a free lock.
pub(crate) async fn acquire(locks: &mut LockServiceClient<Channel>, target: &LockTarget) -> Lease {
    let response = locks.acquire(acquire_request(target.clone())).await;
    let lease = response.expect("the lock is free").into_inner().lease;
    lease.expect("OK means held")
}

/// Returns a request that may be repeated, as client libraries send it.
pub(crate) fn acquire_request(target: LockTarget) -> AcquireRequest {
    AcquireRequest {
        target: Some(target),
        owner: Some(Owner {
            id: "bench".to_owned(),
            ..Owner::default()
        }),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    }
}

/// Releases `lease` in the form in which it was received.
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
