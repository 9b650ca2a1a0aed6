//! JSON output of `-o json`, and the lease file of scripts: the schema of docs/cli.md.

#[cfg(test)]
mod tests;

use std::time::Duration;

use leasehold_proto::{
    text,
    v1::{self as pb, ClosureCause, LockMode, lock, watch_locks_response::EventType},
};
use serde::{Deserialize, Serialize};

use crate::output;

/// A lease as `acquire` prints it, and as `renew` and `release` read it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) lease_id: String,
    pub(crate) lease_token: String,
    pub(crate) locks: Vec<Grant>,
    #[serde(default)]
    ttl: String,
    #[serde(default)]
    ttl_ms: u64,
    #[serde(default)]
    heartbeat_interval: String,
    #[serde(default)]
    heartbeat_interval_ms: u64,
    #[serde(default)]
    expire_time: Option<String>,
}

/// A lock of a lease.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Grant {
    #[serde(flatten)]
    target: Target,
    pub(crate) fencing_token: i64,
    #[serde(default)]
    hold_count: i32,
    #[serde(default)]
    acquire_time: Option<String>,
}

/// A lock and its mode.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    permits: i32,
    #[serde(default)]
    limit: i32,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Exclusive,
    Shared,
    Semaphore,
}

/// A lease that this program renews, without its secret token.
#[derive(Debug, Serialize)]
pub(crate) struct HoldOutput {
    pub(crate) lease_id: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) fencing_token: i64,
    pub(crate) ttl: String,
    pub(crate) ttl_ms: u64,
}

/// A lock in the output of `get` and `ls`.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    #[serde(flatten)]
    target: Target,
    state: &'static str,
    holders: Vec<Holder>,
    holder_count: i32,
    waiters: Vec<Holder>,
    queue_length: i32,
    last_fencing_token: i64,
    closure: Option<Closure>,
    permit_usage: Option<PermitUsage>,
}

/// Limit of a semaphore, and the permits in use.
#[derive(Debug, Serialize)]
pub(crate) struct PermitUsage {
    limit: i32,
    used: i32,
    free: i32,
    is_limit_set: bool,
}

/// Output of `set-limit`.
#[derive(Debug, Serialize)]
pub(crate) struct LimitOutput {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` if the limit was removed.
    pub(crate) limit: Option<i32>,
    pub(crate) previous_limit: Option<i32>,
}

/// Closure of a lock.
#[derive(Debug, Serialize)]
pub(crate) struct Closure {
    cause: &'static str,
    owner: String,
    reason: String,
    until_time: Option<String>,
    remaining: String,
    remaining_ms: u64,
}

/// A holder or waiter of a lock.
#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    lease_id: String,
    owner: String,
    reason: String,
    labels: std::collections::BTreeMap<String, String>,
    mode: Mode,
    permits: i32,
    fencing_token: i64,
    since_time: Option<String>,
    remaining: String,
    remaining_ms: u64,
}

/// One line of the output of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct Event {
    r#type: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    subject: Option<Holder>,
    event_time: Option<String>,
}

/// Output of the command `release`.
#[derive(Debug, Serialize)]
pub(crate) struct ReleaseOutput {
    pub(crate) lease_id: String,
    pub(crate) already_released: bool,
}

/// Output of the command `force-release`.
#[derive(Debug, Serialize)]
pub(crate) struct ForceReleaseOutput {
    pub(crate) is_done: bool,
    pub(crate) holder: Option<Holder>,
    pub(crate) queue_length: i32,
}

/// Output of the commands `close`, `reserve` and `open`.
#[derive(Debug, Serialize)]
pub(crate) struct ClosureOutput {
    namespace: String,
    name: String,
    /// The closure in effect, or the one that was ended; `None` if the lock was not closed.
    closure: Option<Closure>,
}

/// Output of the command `check-token`.
#[derive(Debug, Serialize)]
pub(crate) struct CheckTokenOutput {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) fencing_token: i64,
    pub(crate) is_live: bool,
    pub(crate) remaining: String,
    pub(crate) remaining_ms: u64,
}

/// Output of `ping` for one broker.
#[derive(Debug, Serialize)]
pub(crate) struct PingOutput {
    pub(crate) endpoint: String,
    pub(crate) is_serving: bool,
    pub(crate) round_trip: Option<String>,
    pub(crate) round_trip_ms: Option<u64>,
    pub(crate) error: Option<String>,
}

/// Output of the command `version`.
#[derive(Debug, Serialize)]
pub(crate) struct VersionOutput {
    pub(crate) version: &'static str,
    pub(crate) api: &'static str,
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a value as JSON on one line.
pub(crate) fn line(value: &impl Serialize) -> String {
    escape_hidden(&serde_json::to_string(value).expect("maps have text as keys"))
}

/// Formats a value as indented JSON for people.
pub(crate) fn pretty(value: &impl Serialize) -> String {
    escape_hidden(&serde_json::to_string_pretty(value).expect("maps have text as keys"))
}

/// Returns JSON with its hidden characters as `\uXXXX`. Control characters below U+0020 are escaped
/// before in strings, and are only line ends between them.
fn escape_hidden(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c >= ' ' && text::is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped += &format!("\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn format_timestamp(time: Option<prost_types::Timestamp>) -> Option<String> {
    output::system_time(time).map(output::format_timestamp)
}

impl From<&pb::Lease> for Lease {
    fn from(lease: &pb::Lease) -> Self {
        let (ttl, interval) = (
            output::duration(lease.ttl),
            output::duration(lease.heartbeat_interval),
        );
        Self {
            lease_id: lease.lease_id.clone(),
            lease_token: lease.lease_token.clone(),
            locks: lease.grants.iter().map(Grant::from).collect(),
            ttl: output::format_exact(ttl),
            ttl_ms: millis(ttl),
            heartbeat_interval: output::format_exact(interval),
            heartbeat_interval_ms: millis(interval),
            expire_time: format_timestamp(lease.expire_time),
        }
    }
}

impl From<Lease> for pb::Lease {
    fn from(lease: Lease) -> Self {
        Self {
            lease_id: lease.lease_id,
            lease_token: lease.lease_token,
            grants: lease.locks.into_iter().map(pb::Grant::from).collect(),
            ttl: Duration::from_millis(lease.ttl_ms).try_into().ok(),
            ..Self::default()
        }
    }
}

impl From<&pb::Grant> for Grant {
    fn from(grant: &pb::Grant) -> Self {
        Self {
            target: Target::from(&grant.target.clone().unwrap_or_default()),
            fencing_token: grant.fencing_token,
            hold_count: grant.hold_count,
            acquire_time: format_timestamp(grant.acquire_time),
        }
    }
}

impl From<Grant> for pb::Grant {
    fn from(grant: Grant) -> Self {
        let Target {
            namespace,
            name,
            mode,
            permits,
            limit,
        } = grant.target;
        let mode = match mode {
            Mode::Exclusive => LockMode::Exclusive,
            Mode::Shared => LockMode::Shared,
            Mode::Semaphore => LockMode::Semaphore,
        };
        let target = pb::LockTarget {
            namespace,
            name,
            mode: mode.into(),
            permits,
            limit,
        };
        Self {
            target: Some(target),
            fencing_token: grant.fencing_token,
            hold_count: grant.hold_count,
            ..Self::default()
        }
    }
}

fn lock_mode(target: &pb::LockTarget) -> Mode {
    match target.mode() {
        LockMode::Shared => Mode::Shared,
        LockMode::Semaphore => Mode::Semaphore,
        LockMode::Exclusive | LockMode::Unspecified => Mode::Exclusive,
    }
}

impl From<&pb::LockTarget> for Target {
    fn from(target: &pb::LockTarget) -> Self {
        Self {
            namespace: target.namespace.clone(),
            name: target.name.clone(),
            mode: lock_mode(target),
            permits: target.permits,
            limit: target.limit,
        }
    }
}

impl From<&pb::Lock> for Lock {
    fn from(lock: &pb::Lock) -> Self {
        Self {
            target: Target::from(&lock.target.clone().unwrap_or_default()),
            state: state_name(lock),
            holders: lock.holders.iter().map(Holder::from).collect(),
            holder_count: lock.holder_count,
            waiters: lock.waiters.iter().map(Holder::from).collect(),
            queue_length: lock.queue_length,
            last_fencing_token: lock.last_fencing_token,
            closure: lock.closure.as_ref().map(Closure::from),
            permit_usage: lock.permit_usage.as_ref().map(PermitUsage::from),
        }
    }
}

impl From<&pb::PermitUsage> for PermitUsage {
    fn from(usage: &pb::PermitUsage) -> Self {
        Self {
            limit: usage.limit,
            used: usage.used,
            free: (usage.limit - usage.used).max(0),
            is_limit_set: usage.is_limit_set,
        }
    }
}

impl From<&pb::Closure> for Closure {
    fn from(closure: &pb::Closure) -> Self {
        let owner = closure.owner.clone().unwrap_or_default();
        let remaining = output::duration(closure.remaining);
        Self {
            cause: cause_name(closure),
            owner: owner.id,
            reason: owner.reason,
            until_time: format_timestamp(closure.until_time),
            remaining: output::format_exact(remaining),
            remaining_ms: millis(remaining),
        }
    }
}

impl ClosureOutput {
    pub(crate) fn new(namespace: &str, name: &str, closure: Option<&pb::Closure>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            closure: closure.map(Closure::from),
        }
    }
}

/// Returns the name of the cause of a closure.
pub(crate) fn cause_name(closure: &pb::Closure) -> &'static str {
    match closure.cause() {
        ClosureCause::LockDelay => "lock_delay",
        ClosureCause::AtLeast => "at_least",
        ClosureCause::Operator => "operator",
        ClosureCause::Unspecified => "unknown",
    }
}

impl Lock {
    /// Returns a lock without holders and waiters.
    pub(crate) fn free(namespace: &str, name: &str) -> Self {
        let target = pb::LockTarget {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..pb::LockTarget::default()
        };
        let target = Some(target);
        let free = pb::Lock {
            target,
            ..pb::Lock::default()
        };
        Self {
            state: "free",
            ..Self::from(&free)
        }
    }
}

/// Returns the name of a lock's state.
pub(crate) fn state_name(lock: &pb::Lock) -> &'static str {
    match lock.state() {
        lock::State::Held => "held",
        lock::State::Granting => "granting",
        lock::State::Closed => "closed",
        lock::State::Free => "free",
        lock::State::Unspecified => "unknown",
    }
}

impl From<&pb::Holder> for Holder {
    fn from(holder: &pb::Holder) -> Self {
        let owner = holder.owner.clone().unwrap_or_default();
        let target = holder.target.clone().unwrap_or_default();
        let remaining = output::duration(holder.remaining);
        Self {
            lease_id: holder.lease_id.clone(),
            owner: owner.id,
            reason: owner.reason,
            labels: owner.labels.into_iter().collect(),
            mode: lock_mode(&target),
            permits: target.permits,
            fencing_token: holder.fencing_token,
            since_time: format_timestamp(holder.since_time),
            remaining: output::format_exact(remaining),
            remaining_ms: millis(remaining),
        }
    }
}

impl From<&pb::WatchLocksResponse> for Event {
    fn from(event: &pb::WatchLocksResponse) -> Self {
        let subject = event.subject.as_ref();
        let target = subject.and_then(|subject| subject.target.as_ref());
        Self {
            r#type: event_type_name(event),
            namespace: target.map(|target| target.namespace.clone()),
            name: target.map(|target| target.name.clone()),
            subject: subject.map(Holder::from),
            event_time: format_timestamp(event.event_time),
        }
    }
}

/// Returns the name of an event's type.
pub(crate) fn event_type_name(event: &pb::WatchLocksResponse) -> &'static str {
    match event.r#type() {
        EventType::Acquired => "acquired",
        EventType::Released => "released",
        EventType::Expired => "expired",
        EventType::Revoked => "revoked",
        EventType::Queued => "queued",
        EventType::Abandoned => "abandoned",
        EventType::Closed => "closed",
        EventType::Opened => "opened",
        EventType::Gap => "gap",
        EventType::Bookmark => "bookmark",
        EventType::Unspecified => "unknown",
    }
}
