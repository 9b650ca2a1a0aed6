//! A lease as its holder shows it again. It is believed what it claims only as far as its secret
//! proves it: the stores compare the rest.

use std::collections::HashSet;

use leasehold_proto::v1 as pb;

use super::fields::Fields;
use crate::{
    access::Caller,
    grpc::{admit::Asking, status::Refused},
    lock::{Failed, FencingToken, LOCKS_MAX, LeaseRef, LeaseToken, LockError, LockKey, ShownLease},
};

/// Reads a lease; `None` if anything is wrong with it.
pub(super) fn shown(
    fields: &mut Fields,
    path: &str,
    lease: pb::Lease,
    asking: &Asking,
) -> Option<ShownLease> {
    let at = |field: &str| format!("{path}.{field}");
    let lease_id = fields.lease_id(&at("lease_id"), &lease.lease_id);
    if lease.lease_token.is_empty() {
        fields.violation(at("lease_token"), "must not be empty");
    }
    let ttl_ms = fields.ttl(&at("ttl"), lease.ttl);
    if !(1..=LOCKS_MAX).contains(&lease.grants.len()) {
        let what = "must hold the grants as they were received, 1 to 64";
        fields.violation(at("grants"), what);
        return None;
    }
    let mut locks = Vec::new();
    for (index, grant) in lease.grants.into_iter().enumerate() {
        if fields.are_full() {
            return None;
        }
        locks.push(held(fields, &format!("{path}.grants[{index}]"), grant));
    }
    let locks: Option<Vec<_>> = locks.into_iter().collect();
    let (lease_id, locks) = (lease_id?, locks?);
    let mut names = HashSet::new();
    if !locks.iter().all(|(lock, _)| names.insert(lock)) {
        fields.violation(at("grants"), "must not name a lock twice");
    }
    let locks = locks.into_iter().map(|(lock, fencing_token)| LeaseRef {
        lock,
        lease_id,
        fencing_token,
    });
    Some(ShownLease {
        lease_id,
        lease_token: LeaseToken::from_caller(lease.lease_token),
        ttl: asking.limits.ttl(ttl_ms),
        locks: locks.collect(),
    })
}

fn held(fields: &mut Fields, path: &str, grant: pb::Grant) -> Option<(LockKey, FencingToken)> {
    let path_of_target = format!("{path}.target");
    let target = fields.required(&path_of_target, grant.target, |fields, target| {
        fields.target(&path_of_target, &target)
    });
    let token = fields.fencing_token(&format!("{path}.fencing_token"), grant.fencing_token);
    Some((target?.lock, token?))
}

/// The lease is the caller's: its token and the caller's name hash to its id.
pub(super) fn proven(lease: ShownLease, caller: &Caller) -> Result<ShownLease, Refused> {
    if lease.lease_token.lease_id(&caller.name) == lease.lease_id {
        return Ok(lease);
    }
    let lock = lease.locks[0].lock.clone();
    let error = LockError::NotHolder;
    Err(Refused::Failed(Failed { lock, error }))
}
