//! What `-o json` prints, and the lease as scripts keep it: the schema of docs/cli.md.

#[cfg(test)]
mod tests;

use std::time::Duration;

use leasehold_proto::{
    text,
    v1::{self as pb, LockMode, lock, watch_locks_response::EventType},
};
use serde::{Deserialize, Serialize};

use crate::show;

/// A lease, as `acquire` prints it and `renew` and `release` read it.
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

/// One lock of a lease.
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

/// A lock and how it is shared.
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

/// A lease that this program keeps alive: without its secret.
#[derive(Debug, Serialize)]
pub(crate) struct Held {
    pub(crate) lease_id: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) fencing_token: i64,
    pub(crate) ttl: String,
    pub(crate) ttl_ms: u64,
}

/// One lock, of `get` and `ls`.
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
}

/// Who holds or waits.
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

/// One line of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct Event {
    r#type: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    subject: Option<Holder>,
    event_time: Option<String>,
}

/// What `release` says.
#[derive(Debug, Serialize)]
pub(crate) struct Released {
    pub(crate) lease_id: String,
    pub(crate) already_released: bool,
}

/// What `force-release` says.
#[derive(Debug, Serialize)]
pub(crate) struct ForceReleased {
    pub(crate) is_done: bool,
    pub(crate) holder: Option<Holder>,
    pub(crate) queue_length: i32,
}

/// What `check-token` says.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) fencing_token: i64,
    pub(crate) is_live: bool,
    pub(crate) remaining: String,
    pub(crate) remaining_ms: u64,
}

/// What `ping` says of one broker.
#[derive(Debug, Serialize)]
pub(crate) struct Ping {
    pub(crate) endpoint: String,
    pub(crate) is_serving: bool,
    pub(crate) round_trip: Option<String>,
    pub(crate) round_trip_ms: Option<u64>,
    pub(crate) error: Option<String>,
}

/// What `version` says.
#[derive(Debug, Serialize)]
pub(crate) struct Version {
    pub(crate) version: &'static str,
    pub(crate) api: &'static str,
}

/// Whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One line.
pub(crate) fn line(value: &impl Serialize) -> String {
    escaped(&serde_json::to_string(value).expect("maps have text as keys"))
}

/// Several lines, for people who look.
pub(crate) fn pretty(value: &impl Serialize) -> String {
    escaped(&serde_json::to_string_pretty(value).expect("maps have text as keys"))
}

/// Returns JSON with its hidden characters as `\uXXXX`. Those below U+0020 are escaped before, in texts,
/// and end lines between them.
fn escaped(json: &str) -> String {
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

fn moment(time: Option<prost_types::Timestamp>) -> Option<String> {
    show::system_time(time).map(show::moment)
}

impl From<&pb::Lease> for Lease {
    fn from(lease: &pb::Lease) -> Self {
        let (ttl, interval) = (
            show::duration(lease.ttl),
            show::duration(lease.heartbeat_interval),
        );
        Self {
            lease_id: lease.lease_id.clone(),
            lease_token: lease.lease_token.clone(),
            locks: lease.grants.iter().map(Grant::from).collect(),
            ttl: show::exact(ttl),
            ttl_ms: millis(ttl),
            heartbeat_interval: show::exact(interval),
            heartbeat_interval_ms: millis(interval),
            expire_time: moment(lease.expire_time),
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
            acquire_time: moment(grant.acquire_time),
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

fn mode(target: &pb::LockTarget) -> Mode {
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
            mode: mode(target),
            permits: target.permits,
            limit: target.limit,
        }
    }
}

impl From<&pb::Lock> for Lock {
    fn from(lock: &pb::Lock) -> Self {
        Self {
            target: Target::from(&lock.target.clone().unwrap_or_default()),
            state: state(lock),
            holders: lock.holders.iter().map(Holder::from).collect(),
            holder_count: lock.holder_count,
            waiters: lock.waiters.iter().map(Holder::from).collect(),
            queue_length: lock.queue_length,
            last_fencing_token: lock.last_fencing_token,
        }
    }
}

impl Lock {
    /// One that nobody holds or waits for.
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

/// What a lock is doing, in a word.
pub(crate) fn state(lock: &pb::Lock) -> &'static str {
    match lock.state() {
        lock::State::Held => "held",
        lock::State::Granting => "granting",
        lock::State::Delayed => "delayed",
        lock::State::Unspecified => "unknown",
    }
}

impl From<&pb::Holder> for Holder {
    fn from(holder: &pb::Holder) -> Self {
        let owner = holder.owner.clone().unwrap_or_default();
        let target = holder.target.clone().unwrap_or_default();
        let remaining = show::duration(holder.remaining);
        Self {
            lease_id: holder.lease_id.clone(),
            owner: owner.id,
            reason: owner.reason,
            labels: owner.labels.into_iter().collect(),
            mode: mode(&target),
            permits: target.permits,
            fencing_token: holder.fencing_token,
            since_time: moment(holder.since_time),
            remaining: show::exact(remaining),
            remaining_ms: millis(remaining),
        }
    }
}

impl From<&pb::WatchLocksResponse> for Event {
    fn from(event: &pb::WatchLocksResponse) -> Self {
        let subject = event.subject.as_ref();
        let target = subject.and_then(|subject| subject.target.as_ref());
        Self {
            r#type: event_type(event),
            namespace: target.map(|target| target.namespace.clone()),
            name: target.map(|target| target.name.clone()),
            subject: subject.map(Holder::from),
            event_time: moment(event.event_time),
        }
    }
}

/// What has changed, in a word.
pub(crate) fn event_type(event: &pb::WatchLocksResponse) -> &'static str {
    match event.r#type() {
        EventType::Acquired => "acquired",
        EventType::Released => "released",
        EventType::Expired => "expired",
        EventType::Revoked => "revoked",
        EventType::Queued => "queued",
        EventType::Abandoned => "abandoned",
        EventType::Gap => "gap",
        EventType::Bookmark => "bookmark",
        EventType::Unspecified => "unknown",
    }
}
