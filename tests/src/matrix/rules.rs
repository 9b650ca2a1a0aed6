//! What each field of a request is for. A field without a rule ends the tests: whoever adds one says
//! whether a lock's name can enter by it.

use prost_reflect::FieldDescriptor;

/// What a field is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// No lock can be named by it, and calls are good without it.
    Unset,
    /// Says nothing about a lock, and must be there.
    Number(i64),
    /// The same as text.
    Text(&'static str),
    /// The same as a duration, in seconds.
    Seconds(i64),
    /// A fresh id of a call.
    Uuid,
    /// A message in which there may be locks, which every call has.
    Needed,
    /// The same, which a call has only to name a lock so.
    OnWay,
    /// Several of these; with each of these counts.
    Several(&'static [usize]),
    /// The namespace or the name of a lock.
    Name,
    /// How a lock is held.
    Mode,
    /// The token of the grant of the lock before it.
    FencingToken,
    /// Names a lease.
    LeaseId,
    /// Proves that it is the caller's.
    LeaseToken,
    /// Narrows what is found.
    Narrows,
    /// Goes on where another answer ended.
    GoesOn,
    /// Only tell what would happen.
    OnlyTells,
    /// A credential.
    Credential,
}

impl Rule {
    /// Whether there may be locks within.
    #[must_use]
    pub fn is_gone_into(self) -> bool {
        matches!(self, Self::Needed | Self::OnWay | Self::Several(_))
    }

    /// Whether locks are found by it.
    #[must_use]
    pub fn finds(self) -> bool {
        matches!(self, Self::Narrows | Self::GoesOn)
    }
}

const RULES: &[(&str, Rule)] = &[
    ("AcquireRequest.target", Rule::Needed),
    ("AcquireRequest.owner", Rule::Needed),
    ("AcquireRequest.ttl", Rule::Seconds(20)),
    ("AcquireRequest.wait_timeout", Rule::Unset),
    ("AcquireRequest.request_id", Rule::Uuid),
    ("AcquireRequest.under", Rule::OnWay),
    ("AcquireRequest.max_hold", Rule::Unset),
    ("AcquireRequest.lock_delay", Rule::Unset),
    ("AcquireRequest.disconnect_grace", Rule::Unset),
    ("AcquireAllRequest.targets", Rule::Several(&[2, 16])),
    ("AcquireAllRequest.owner", Rule::Needed),
    ("AcquireAllRequest.ttl", Rule::Seconds(20)),
    ("AcquireAllRequest.wait_timeout", Rule::Unset),
    ("AcquireAllRequest.request_id", Rule::Uuid),
    ("AcquireAllRequest.max_hold", Rule::Unset),
    ("AcquireAllRequest.lock_delay", Rule::Unset),
    ("AcquireAllRequest.disconnect_grace", Rule::Unset),
    ("ReleaseRequest.lease", Rule::Needed),
    (RELEASED_LOCK, Rule::OnWay),
    ("ReleaseRequest.request_id", Rule::Unset),
    ("RenewRequest.lease", Rule::Needed),
    ("RenewRequest.ttl", Rule::Unset),
    ("HoldAcquire.call_id", Rule::Number(CALL_ID)),
    ("HoldAcquire.request", Rule::Needed),
    ("HoldAcquire.attach_number", Rule::Number(1)),
    ("HoldAcquire.traceparent", Rule::Unset),
    ("HoldAcquireAll.call_id", Rule::Number(CALL_ID)),
    ("HoldAcquireAll.request", Rule::Needed),
    ("HoldAcquireAll.attach_number", Rule::Number(1)),
    ("HoldAcquireAll.traceparent", Rule::Unset),
    ("CancelAcquire.call_id", Rule::Number(CALL_ID)),
    ("AttachLease.call_id", Rule::Number(CALL_ID)),
    ("AttachLease.lease", Rule::Needed),
    ("AttachLease.attach_number", Rule::Number(1)),
    ("Heartbeat.sequence", Rule::Number(1)),
    ("HoldRelease.call_id", Rule::Number(CALL_ID)),
    ("HoldRelease.lease_id", Rule::LeaseId),
    ("HoldRelease.lock", Rule::OnWay),
    ("HoldRelease.request_id", Rule::Unset),
    ("DetachLease.call_id", Rule::Number(CALL_ID)),
    ("DetachLease.lease_id", Rule::LeaseId),
    ("RefreshCredential.call_id", Rule::Number(CALL_ID)),
    ("RefreshCredential.authorization", Rule::Credential),
    ("CheckFencingTokenRequest.lock", Rule::Needed),
    ("CheckFencingTokenRequest.fencing_token", Rule::FencingToken),
    ("GetLockRequest.namespace", Rule::Name),
    ("GetLockRequest.name", Rule::Name),
    ("ListLocksRequest.namespace", Rule::Narrows),
    ("ListLocksRequest.name_prefix", Rule::Narrows),
    ("ListLocksRequest.owner_id", Rule::Narrows),
    ("ListLocksRequest.page_size", Rule::Unset),
    ("ListLocksRequest.page_token", Rule::GoesOn),
    ("WatchLocksRequest.namespace", Rule::Narrows),
    ("WatchLocksRequest.name_prefix", Rule::Narrows),
    ("WatchLocksRequest.resume_token", Rule::GoesOn),
    ("ForceReleaseLeaseRequest.lease_id", Rule::LeaseId),
    ("ForceReleaseLeaseRequest.reason", Rule::Text("the matrix")),
    ("ForceReleaseLeaseRequest.grace", Rule::Unset),
    ("ForceReleaseLeaseRequest.lock_delay", Rule::Unset),
    ("ForceReleaseLeaseRequest.validate_only", Rule::OnlyTells),
    ("ForceReleaseLeaseRequest.request_id", Rule::Uuid),
    ("ForceReleaseLeaseRequest.lock", Rule::Needed),
    ("ForceReleaseLeaseRequest.unsafe_now", Rule::Unset),
    ("SetLockLimitRequest.lock", Rule::Needed),
    ("SetLockLimitRequest.limit", Rule::Number(LIMIT)),
    ("LockTarget.namespace", Rule::Name),
    ("LockTarget.name", Rule::Name),
    ("LockTarget.mode", Rule::Mode),
    ("LockTarget.permits", Rule::Unset),
    ("LockTarget.limit", Rule::Unset),
    ("LockRef.namespace", Rule::Name),
    ("LockRef.name", Rule::Name),
    ("Owner.id", Rule::Text("matrix")),
    ("Owner.reason", Rule::Unset),
    ("Owner.labels", Rule::Unset),
    ("Lease.lease_id", Rule::LeaseId),
    ("Lease.lease_token", Rule::LeaseToken),
    ("Lease.grants", Rule::Several(&[1, 2])),
    ("Lease.ttl", Rule::Seconds(20)),
    ("Lease.heartbeat_interval", Rule::Unset),
    ("Lease.expire_time", Rule::Unset),
    ("Grant.target", Rule::Needed),
    ("Grant.fencing_token", Rule::FencingToken),
    ("Grant.acquire_time", Rule::Unset),
    ("Grant.hold_count", Rule::Unset),
];

/// Every call of the matrix has this id on its stream.
pub const CALL_ID: i64 = 7;
/// Of the semaphores that are held.
pub const LIMIT: i64 = 1;
/// A part of a lease is given back: the lease has it.
pub const RELEASED_LOCK: &str = "ReleaseRequest.lock";
const PACKAGE: &str = "leasehold.v1.";

/// The name of a field without that of the package.
#[must_use]
pub fn short(full_name: &str) -> &str {
    full_name.strip_prefix(PACKAGE).unwrap_or(full_name)
}

/// What a field is for.
#[must_use]
pub fn rule(field: &FieldDescriptor) -> Rule {
    let name = short(field.full_name());
    let known = RULES.iter().find(|(known, _)| *known == name);
    let (_, rule) = known.unwrap_or_else(|| {
        panic!("{name}: no rule says whether the name of a lock can enter by it")
    });
    let kind = field.kind();
    let message = kind.as_message();
    let has_messages = message.is_some_and(|message| message.full_name().starts_with(PACKAGE));
    let is_gone_into = rule.is_gone_into();
    assert!(
        is_gone_into == has_messages || field.is_map(),
        "{name}: {rule:?} is no rule for it"
    );
    *rule
}

/// The rules that no request has needed.
pub fn unused(used: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let rules = RULES.iter().map(|(name, _)| *name);
    rules.filter(|name| !used(name)).collect()
}
