//! Encoding of domain types as protobuf messages.

use leasehold_proto::v1::{self as pb, watch_locks_response::EventType};
use prost_types::{Duration, Timestamp};

use crate::{
    broker::ReleaseResult,
    inspection::{ListedLock, LockEvent},
    lock::{
        ActiveClosure, ActiveRecovery, ClosureCause, HeldLock, Holder, Lease, LeaseId, LockKey,
        LockState, LockStatus, Mode, Owner, WaiterInfo,
    },
    store::{Change, ChangeKind},
    time::now_unix_millis,
};

/// Encodes a lease whose validity starts now.
pub(super) fn lease(lease: &Lease) -> pb::Lease {
    let ttl_ms = lease.ttl().as_millis();
    pb::Lease {
        lease_id: lease.lease_id.to_string(),
        lease_token: lease.lease_token.expose().to_owned(),
        grants: lease.locks.iter().map(grant).collect(),
        ttl: Some(duration(ttl_ms)),
        heartbeat_interval: Some(duration(lease.ttl().heartbeat_interval_ms())),
        expire_time: Some(timestamp(now_unix_millis().saturating_add(ttl_ms))),
    }
}

fn grant(held: &HeldLock) -> pb::Grant {
    let grant = held.grant;
    pb::Grant {
        target: Some(target(&held.lock, grant.mode)),
        fencing_token: signed(grant.fencing_token.get()),
        acquire_time: Some(timestamp(grant.acquired_ms)),
        hold_count: count(grant.hold_count),
    }
}

pub(super) fn released(result: ReleaseResult) -> pb::ReleaseResponse {
    pb::ReleaseResponse {
        already_released: result.already_released,
        hold_count: count(result.hold_count),
    }
}

/// Encodes a lock, whose mode may be known from holders that the caller may not see.
pub(super) fn lock(lock: &LockKey, mode: Mode, state: &LockState) -> pb::Lock {
    let lock_state = match state.status() {
        LockStatus::Held => pb::lock::State::Held,
        LockStatus::Closed => pb::lock::State::Closed,
        LockStatus::Granting => pb::lock::State::Granting,
        LockStatus::Free => pb::lock::State::Free,
    };
    let holders = state.holders.iter().map(|held| holder(lock, held));
    let waiters = state.waiters.iter();
    pb::Lock {
        target: Some(pb::LockTarget {
            permits: 0,
            ..target(lock, mode)
        }),
        state: lock_state.into(),
        holder_count: count(state.holder_count),
        holders: holders.collect(),
        waiters: waiters.map(|queued| waiter(lock, queued)).collect(),
        queue_length: count(state.queue_length),
        last_fencing_token: signed(state.last_fencing_token),
        closure: state.closure.as_deref().map(closure),
        permit_usage: state.permit_usage.map(|usage| pb::PermitUsage {
            limit: count(usage.limit),
            used: count(usage.used),
            is_limit_set: usage.is_limit_set,
        }),
    }
}

pub(super) fn closure(active: &ActiveClosure) -> pb::Closure {
    let cause = match active.closure.cause {
        ClosureCause::LockDelay => pb::ClosureCause::LockDelay,
        ClosureCause::AtLeast => pb::ClosureCause::AtLeast,
        ClosureCause::Operator => pb::ClosureCause::Operator,
    };
    let is_known = active.closure.owner != Owner::default();
    pb::Closure {
        cause: cause.into(),
        owner: is_known.then(|| owner(&active.closure.owner)),
        until_time: Some(timestamp(active.closure.until_ms)),
        remaining: Some(duration(active.remaining_ms)),
    }
}

pub(super) fn recovery(active: &ActiveRecovery) -> pb::StoreRecovery {
    pb::StoreRecovery {
        cause: active.event().to_owned(),
        since_time: active.recovery.since_ms.map(timestamp),
        remaining: Some(duration(active.remaining_ms())),
    }
}

pub(super) fn listed_lock(listed: &ListedLock) -> pb::Lock {
    lock(&listed.lock, listed.mode, &listed.state)
}

pub(super) fn holder(lock: &LockKey, holder: &Holder) -> pb::Holder {
    pb::Holder {
        lease_id: holder.lease_id.to_string(),
        owner: Some(owner(&holder.owner)),
        target: Some(target(lock, holder.mode)),
        fencing_token: signed(holder.fencing_token.get()),
        since_time: Some(timestamp(holder.since_ms)),
        remaining: Some(duration(holder.remaining_ms)),
    }
}

/// Encodes a holder of which only the lease id is known.
pub(super) fn unknown_holder(lock: &LockKey, lease_id: LeaseId) -> pb::Holder {
    pb::Holder {
        lease_id: lease_id.to_string(),
        target: Some(target(lock, Mode::Exclusive)),
        ..pb::Holder::default()
    }
}

/// Encodes an event of a watch with the time of this broker's clock.
pub(super) fn event(event: LockEvent) -> pb::WatchLocksResponse {
    let (event_type, subject) = match event {
        LockEvent::Bookmark => (EventType::Bookmark, None),
        LockEvent::Gap => (EventType::Gap, None),
        LockEvent::Changed {
            lock,
            kind,
            mode,
            change,
        } => {
            let subject = match change {
                Some(change) => changed_holder(&lock, &change),
                None => pb::Holder {
                    target: Some(target(&lock, mode)),
                    ..pb::Holder::default()
                },
            };
            (event_type(kind), Some(subject))
        }
    };
    let now_ms = now_unix_millis();
    pb::WatchLocksResponse {
        r#type: event_type.into(),
        subject,
        event_time: Some(timestamp(now_ms)),
        resume_token: now_ms.to_string(),
    }
}

fn event_type(kind: ChangeKind) -> EventType {
    match kind {
        ChangeKind::Acquired => EventType::Acquired,
        ChangeKind::Released => EventType::Released,
        ChangeKind::Expired => EventType::Expired,
        ChangeKind::Revoked => EventType::Revoked,
        ChangeKind::Queued => EventType::Queued,
        ChangeKind::Abandoned => EventType::Abandoned,
        ChangeKind::Closed => EventType::Closed,
        ChangeKind::Opened => EventType::Opened,
    }
}

/// Encodes the holder or waiter that a change is about.
fn changed_holder(lock: &LockKey, change: &Change) -> pb::Holder {
    let lease_id = change.lease_id.as_ref();
    pb::Holder {
        lease_id: lease_id.map(ToString::to_string).unwrap_or_default(),
        owner: Some(owner(&change.owner)),
        target: Some(target(lock, change.mode)),
        fencing_token: signed(change.fencing_token),
        since_time: Some(timestamp(change.since_ms)),
        remaining: Some(duration(change.remaining_ms)),
    }
}

pub(super) fn duration(ms: u64) -> Duration {
    Duration {
        seconds: signed(ms / 1_000),
        nanos: sub_second(ms),
    }
}

fn waiter(lock: &LockKey, waiter: &WaiterInfo) -> pb::Holder {
    pb::Holder {
        lease_id: String::new(),
        owner: Some(owner(&waiter.owner)),
        target: Some(target(lock, waiter.mode)),
        fencing_token: 0,
        since_time: Some(timestamp(waiter.since_ms)),
        remaining: Some(duration(waiter.remaining_ms)),
    }
}

fn owner(owner: &Owner) -> pb::Owner {
    pb::Owner {
        id: owner.id.clone(),
        reason: owner.reason.clone(),
        labels: owner.labels.iter().cloned().collect(),
    }
}

fn target(lock: &LockKey, mode: Mode) -> pb::LockTarget {
    let (mode, permits, limit) = match mode {
        Mode::Exclusive => (pb::LockMode::Exclusive, 0, 0),
        Mode::Shared => (pb::LockMode::Shared, 0, 0),
        Mode::Semaphore { permits, limit } => (pb::LockMode::Semaphore, permits, limit),
    };
    pb::LockTarget {
        namespace: lock.namespace().to_owned(),
        name: lock.name().to_owned(),
        mode: mode.into(),
        permits: count(permits),
        limit: count(limit),
    }
}

fn timestamp(ms: u64) -> Timestamp {
    Timestamp {
        seconds: signed(ms / 1_000),
        nanos: sub_second(ms),
    }
}

fn sub_second(ms: u64) -> i32 {
    i32::try_from(ms % 1_000 * 1_000_000).unwrap_or_default()
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
