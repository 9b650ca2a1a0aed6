//! Builders of acquire requests.

use std::time::Duration;

use leasehold_proto::v1::{AcquireAllRequest, AcquireRequest, LockRef, LockTarget, Owner};
use uuid::Uuid;

/// Returns the request for one lock.
#[must_use]
pub fn acquire_request(target: LockTarget, owner: Owner) -> AcquireRequest {
    AcquireRequest {
        target: Some(target),
        owner: Some(owner),
        ttl: Duration::from_secs(20).try_into().ok(),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    }
}

/// Returns the request for several locks.
#[must_use]
pub fn acquire_all_request(locks: &[LockRef]) -> AcquireAllRequest {
    AcquireAllRequest {
        targets: locks.iter().map(target).collect(),
        owner: Some(owner("matrix")),
        ttl: Duration::from_secs(20).try_into().ok(),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireAllRequest::default()
    }
}

/// Returns the target of an acquire of `lock`.
#[must_use]
pub fn target(lock: &LockRef) -> LockTarget {
    LockTarget {
        namespace: lock.namespace.clone(),
        name: lock.name.clone(),
        ..LockTarget::default()
    }
}

#[must_use]
pub fn owner(id: &str) -> Owner {
    Owner {
        id: id.to_owned(),
        ..Owner::default()
    }
}
