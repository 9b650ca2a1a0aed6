//! The purpose of each field of a request. A field without a rule fails the tests, so that each new
//! field states if it can name a lock.

use prost_reflect::FieldDescriptor;

/// The purpose of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldRule {
    /// Names no lock, and calls are valid without it.
    Unset,
    /// A required number that names no lock.
    Number(i64),
    /// A required text that names no lock.
    Text(&'static str),
    /// A required duration in seconds that names no lock.
    Seconds(i64),
    /// A new id for each call.
    Uuid,
    /// A message that may contain locks, and that every call has.
    RequiredMessage,
    /// A message that may contain locks, set only if the field under test is in it.
    MessageOnPath,
    /// A list of messages, tested with each of these lengths.
    Repeated(&'static [usize]),
    /// The namespace or the name of a lock.
    Name,
    /// The mode of a lock.
    Mode,
    /// The fencing token of the lock before it.
    FencingToken,
    /// The id of a lease.
    LeaseId,
    /// The token that proves a lease.
    LeaseToken,
    /// A filter of results.
    Filter,
    /// A cursor.
    Cursor,
    /// A dry-run flag.
    DryRun,
    Credential,
}

impl FieldRule {
    /// Returns true if the field may contain locks.
    #[must_use]
    pub fn may_contain_locks(self) -> bool {
        matches!(
            self,
            Self::RequiredMessage | Self::MessageOnPath | Self::Repeated(_)
        )
    }

    /// Returns true if the field selects the locks of a result.
    #[must_use]
    pub fn selects_results(self) -> bool {
        matches!(self, Self::Filter | Self::Cursor)
    }
}

const FIELD_RULES: &[(&str, FieldRule)] = &[
    ("AcquireRequest.target", FieldRule::RequiredMessage),
    ("AcquireRequest.owner", FieldRule::RequiredMessage),
    ("AcquireRequest.ttl", FieldRule::Seconds(20)),
    ("AcquireRequest.wait_timeout", FieldRule::Unset),
    ("AcquireRequest.request_id", FieldRule::Uuid),
    ("AcquireRequest.under", FieldRule::MessageOnPath),
    ("AcquireRequest.max_hold", FieldRule::Unset),
    ("AcquireRequest.lock_delay", FieldRule::Unset),
    ("AcquireRequest.disconnect_grace", FieldRule::Unset),
    ("AcquireRequest.at_least", FieldRule::Unset),
    ("AcquireAllRequest.targets", FieldRule::Repeated(&[2, 16])),
    ("AcquireAllRequest.owner", FieldRule::RequiredMessage),
    ("AcquireAllRequest.ttl", FieldRule::Seconds(20)),
    ("AcquireAllRequest.wait_timeout", FieldRule::Unset),
    ("AcquireAllRequest.request_id", FieldRule::Uuid),
    ("AcquireAllRequest.max_hold", FieldRule::Unset),
    ("AcquireAllRequest.lock_delay", FieldRule::Unset),
    ("AcquireAllRequest.disconnect_grace", FieldRule::Unset),
    ("AcquireAllRequest.at_least", FieldRule::Unset),
    ("ReleaseRequest.lease", FieldRule::RequiredMessage),
    (RELEASED_LOCK, FieldRule::MessageOnPath),
    ("ReleaseRequest.request_id", FieldRule::Unset),
    ("RenewRequest.lease", FieldRule::RequiredMessage),
    ("RenewRequest.ttl", FieldRule::Unset),
    ("HoldAcquire.call_id", FieldRule::Number(CALL_ID)),
    ("HoldAcquire.request", FieldRule::RequiredMessage),
    ("HoldAcquire.attach_number", FieldRule::Number(1)),
    ("HoldAcquire.traceparent", FieldRule::Unset),
    ("HoldAcquireAll.call_id", FieldRule::Number(CALL_ID)),
    ("HoldAcquireAll.request", FieldRule::RequiredMessage),
    ("HoldAcquireAll.attach_number", FieldRule::Number(1)),
    ("HoldAcquireAll.traceparent", FieldRule::Unset),
    ("CancelAcquire.call_id", FieldRule::Number(CALL_ID)),
    ("AttachLease.call_id", FieldRule::Number(CALL_ID)),
    ("AttachLease.lease", FieldRule::RequiredMessage),
    ("AttachLease.attach_number", FieldRule::Number(1)),
    ("Heartbeat.sequence", FieldRule::Number(1)),
    ("HoldRelease.call_id", FieldRule::Number(CALL_ID)),
    ("HoldRelease.lease_id", FieldRule::LeaseId),
    ("HoldRelease.lock", FieldRule::MessageOnPath),
    ("HoldRelease.request_id", FieldRule::Unset),
    ("DetachLease.call_id", FieldRule::Number(CALL_ID)),
    ("DetachLease.lease_id", FieldRule::LeaseId),
    ("RefreshCredential.call_id", FieldRule::Number(CALL_ID)),
    ("RefreshCredential.authorization", FieldRule::Credential),
    ("CheckFencingTokenRequest.lock", FieldRule::RequiredMessage),
    (
        "CheckFencingTokenRequest.fencing_token",
        FieldRule::FencingToken,
    ),
    ("GetLockRequest.namespace", FieldRule::Name),
    ("GetLockRequest.name", FieldRule::Name),
    ("ListLocksRequest.namespace", FieldRule::Filter),
    ("ListLocksRequest.name_prefix", FieldRule::Filter),
    ("ListLocksRequest.owner_id", FieldRule::Filter),
    ("ListLocksRequest.page_size", FieldRule::Unset),
    ("ListLocksRequest.page_token", FieldRule::Cursor),
    ("WatchLocksRequest.namespace", FieldRule::Filter),
    ("WatchLocksRequest.name_prefix", FieldRule::Filter),
    ("WatchLocksRequest.resume_token", FieldRule::Cursor),
    ("ForceReleaseLeaseRequest.lease_id", FieldRule::LeaseId),
    (
        "ForceReleaseLeaseRequest.reason",
        FieldRule::Text("the matrix"),
    ),
    ("ForceReleaseLeaseRequest.grace", FieldRule::Unset),
    ("ForceReleaseLeaseRequest.lock_delay", FieldRule::Unset),
    ("ForceReleaseLeaseRequest.validate_only", FieldRule::DryRun),
    ("ForceReleaseLeaseRequest.request_id", FieldRule::Uuid),
    ("ForceReleaseLeaseRequest.lock", FieldRule::RequiredMessage),
    ("ForceReleaseLeaseRequest.unsafe_now", FieldRule::Unset),
    ("CloseLockRequest.lock", FieldRule::RequiredMessage),
    ("CloseLockRequest.reason", FieldRule::Text("the matrix")),
    ("CloseLockRequest.until_time", FieldRule::Unset),
    ("CloseLockRequest.duration", FieldRule::Seconds(60)),
    ("CloseLockRequest.operator", FieldRule::Unset),
    ("OpenLockRequest.lock", FieldRule::RequiredMessage),
    ("SetLockLimitRequest.lock", FieldRule::RequiredMessage),
    ("SetLockLimitRequest.limit", FieldRule::Number(LIMIT)),
    ("LockTarget.namespace", FieldRule::Name),
    ("LockTarget.name", FieldRule::Name),
    ("LockTarget.mode", FieldRule::Mode),
    ("LockTarget.permits", FieldRule::Unset),
    ("LockTarget.limit", FieldRule::Unset),
    ("LockRef.namespace", FieldRule::Name),
    ("LockRef.name", FieldRule::Name),
    ("Owner.id", FieldRule::Text("matrix")),
    ("Owner.reason", FieldRule::Unset),
    ("Owner.labels", FieldRule::Unset),
    ("Lease.lease_id", FieldRule::LeaseId),
    ("Lease.lease_token", FieldRule::LeaseToken),
    ("Lease.grants", FieldRule::Repeated(&[1, 2])),
    ("Lease.ttl", FieldRule::Seconds(20)),
    ("Lease.heartbeat_interval", FieldRule::Unset),
    ("Lease.expire_time", FieldRule::Unset),
    ("Grant.target", FieldRule::RequiredMessage),
    ("Grant.fencing_token", FieldRule::FencingToken),
    ("Grant.acquire_time", FieldRule::Unset),
    ("Grant.hold_count", FieldRule::Unset),
];

/// Call id of every call of the matrix on its stream.
pub const CALL_ID: i64 = 7;
/// Limit of the semaphores that are held.
pub const LIMIT: i64 = 1;
/// Field of a request that releases one lock of a lease. The lock must be in the lease.
pub const RELEASED_LOCK: &str = "ReleaseRequest.lock";
const PACKAGE: &str = "leasehold.v1.";

/// Returns the full name of a field without its package.
#[must_use]
pub fn short_name(full_name: &str) -> &str {
    full_name.strip_prefix(PACKAGE).unwrap_or(full_name)
}

/// Returns the rule of a field.
#[must_use]
pub fn field_rule(field: &FieldDescriptor) -> FieldRule {
    let name = short_name(field.full_name());
    let known = FIELD_RULES.iter().find(|(known, _)| *known == name);
    let (_, rule) = known.unwrap_or_else(|| {
        panic!("{name}: no rule says whether the name of a lock can enter by it")
    });
    let kind = field.kind();
    let message = kind.as_message();
    let has_messages = message.is_some_and(|message| message.full_name().starts_with(PACKAGE));
    let is_gone_into = rule.may_contain_locks();
    assert!(
        is_gone_into == has_messages || field.is_map(),
        "{name}: {rule:?} is no rule for it"
    );
    *rule
}

/// Returns the rules of fields that no request has.
pub fn unused_rules(used: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let rules = FIELD_RULES.iter().map(|(name, _)| *name);
    rules.filter(|name| !used(name)).collect()
}
