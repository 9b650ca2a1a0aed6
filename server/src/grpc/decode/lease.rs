//! Decoding of leases that their holders present. The lease token proves the ownership of the lease
//! id; the stores verify the other fields.

use std::collections::HashSet;

use leasehold_proto::v1 as pb;

use crate::{
    lock::{FencingToken, LOCKS_MAX, LeaseRef, LeaseToken, Limits, LockKey, PresentedLease},
    request::FieldValidator,
};

/// Decodes the lease of a request that requires one. Returns `None` if the lease is invalid.
pub(super) fn required(
    fields: &mut FieldValidator,
    lease: Option<pb::Lease>,
    limits: &Limits,
) -> Option<PresentedLease> {
    fields.required("lease", lease, |fields, lease| {
        parse(fields, "lease", lease, limits)
    })
}

/// Decodes a lease. Returns `None` if the lease is invalid.
pub(super) fn parse(
    fields: &mut FieldValidator,
    path: &str,
    lease: pb::Lease,
    limits: &Limits,
) -> Option<PresentedLease> {
    let field_path = |field: &str| format!("{path}.{field}");
    let lease_id = fields.lease_id(&field_path("lease_id"), &lease.lease_id);
    if lease.lease_token.is_empty() {
        fields.violation(field_path("lease_token"), "must not be empty");
    }
    let ttl_ms = fields.ttl(&field_path("ttl"), lease.ttl);
    if !(1..=LOCKS_MAX).contains(&lease.grants.len()) {
        let description = "must contain the 1 to 64 grants as they were received";
        fields.violation(field_path("grants"), description);
        return None;
    }
    let mut locks = Vec::new();
    for (index, grant) in lease.grants.into_iter().enumerate() {
        if fields.are_full() {
            return None;
        }
        locks.push(parse_grant(
            fields,
            &format!("{path}.grants[{index}]"),
            grant,
        ));
    }
    let locks: Option<Vec<_>> = locks.into_iter().collect();
    let (lease_id, locks) = (lease_id?, locks?);
    let mut names = HashSet::new();
    if !locks.iter().all(|(lock, _)| names.insert(lock)) {
        fields.violation(field_path("grants"), "must not name a lock twice");
    }
    let locks = locks.into_iter().map(|(lock, fencing_token)| LeaseRef {
        lock,
        lease_id,
        fencing_token,
    });
    Some(PresentedLease {
        lease_id,
        lease_token: LeaseToken::from_caller(lease.lease_token),
        ttl: limits.ttl(ttl_ms),
        locks: locks.collect(),
    })
}

fn parse_grant(
    fields: &mut FieldValidator,
    path: &str,
    grant: pb::Grant,
) -> Option<(LockKey, FencingToken)> {
    let path_of_target = format!("{path}.target");
    let target = fields.required(&path_of_target, grant.target, |fields, target| {
        fields.target(&path_of_target, &target)
    });
    let token = fields.fencing_token(&format!("{path}.fencing_token"), grant.fencing_token);
    Some((target?.lock, token?))
}
