//! Rules of request fields. An error names the field and its valid values.

use leasehold_proto::v1::{ForceReleaseLeaseRequest, LockMode, LockTarget};
use prost_types::Duration;

use super::*;
use crate::lock::LeaseToken;

const SEMAPHORE: i32 = LockMode::Semaphore as i32;

#[track_caller]
fn assert_error<T>(decoded: Result<T, RequestError>, expected: &str, case: &str) {
    let error = decoded.err().map(|error| error.to_string());
    let error = error.unwrap_or_default();
    assert_eq!(error.is_empty(), expected.is_empty(), "{case}: {error}");
    assert!(error.contains(expected), "{case}: {error}, not {expected}");
}

/// Decodes a valid request after each change of it, and checks the error; empty for none.
macro_rules! check_changes {
    ($decode:expr, $request:expr, $changed:ident, $($change:expr => $expected:literal)*) => {
        $(
            let mut request = $request;
            let $changed = &mut request;
            $change;
            assert_error($decode(request), $expected, stringify!($change));
        )*
    };
}

fn duration(seconds: i64, nanos: i32) -> Option<Duration> {
    Some(Duration { seconds, nanos })
}

fn lock_target(name: &str, permits: i32, limit: i32) -> LockTarget {
    LockTarget {
        name: name.to_owned(),
        mode: if permits == 0 { 0 } else { SEMAPHORE },
        permits,
        limit,
        ..LockTarget::default()
    }
}

fn lock_ref(name: &str) -> Option<LockRef> {
    let (namespace, name) = (String::new(), name.to_owned());
    Some(LockRef { namespace, name })
}

fn owner(id_bytes: usize, reason_bytes: usize, label_keys: &[String]) -> Option<pb::Owner> {
    let labels = label_keys.iter().map(|key| (key.clone(), String::new()));
    Some(pb::Owner {
        id: "i".repeat(id_bytes),
        reason: "r".repeat(reason_bytes),
        labels: labels.collect(),
    })
}

/// Returns a lease of the lock `b`.
fn presented_lease() -> pb::Lease {
    let token = LeaseToken::from_caller("t".to_owned());
    pb::Lease {
        lease_id: token.lease_id("").to_string(),
        lease_token: token.expose().to_owned(),
        grants: vec![pb::Grant {
            target: Some(lock_target("b", 0, 0)),
            fencing_token: 1,
            ..pb::Grant::default()
        }],
        ..pb::Lease::default()
    }
}

fn acquire_request() -> AcquireRequest {
    AcquireRequest {
        target: Some(lock_target("a", 0, 0)),
        owner: owner(1, 0, &[]),
        ..AcquireRequest::default()
    }
}

#[test]
fn the_fields_of_an_acquire_are_checked() {
    let keys = |count: usize, bytes: usize| -> Vec<_> {
        (0..count)
            .map(|number| format!("{number:0bytes$}"))
            .collect()
    };
    let namespace = |text: &str| {
        let namespace = text.to_owned();
        Some(LockTarget {
            namespace,
            ..lock_target("a", 0, 0)
        })
    };
    check_changes! { |request| acquire(request, &Limits::default()), acquire_request(), r,
        r.target = None => "target is required"
        r.target = Some(lock_target("", 0, 0)) => "target.name must not be empty"
        r.target = Some(lock_target(&"n".repeat(512), 0, 0)) => ""
        r.target = Some(lock_target(&"n".repeat(513), 0, 0)) => "target.name must be at most 512 bytes"
        r.target = Some(lock_target("\n", 0, 0)) => "target.name must not contain control characters"
        r.target = namespace(&"n".repeat(63)) => ""
        r.target = namespace(&"n".repeat(64)) => "target.namespace must be at most 63 characters"
        r.target = namespace("N") => "target.namespace must consist of a-z, 0-9 and -"
        r.target = Some(LockTarget { mode: 9, ..lock_target("a", 0, 0) }) => "target.mode must be a known"
        r.target = Some(LockTarget { mode: 0, ..lock_target("a", 1, 0) }) => "target.permits is for mode"
        r.target = Some(lock_target("a", 1_000, 1_000)) => ""
        r.target = Some(lock_target("a", 1, 1_001)) => "target.limit must be 0 to 1000"
        r.target = Some(lock_target("a", -1, 0)) => "target.permits must be 0 to 1000"
        r.target = Some(lock_target("a", 3, 2)) => "target.permits must be at most limit"
        r.owner = None => "owner is required"
        r.owner = owner(0, 0, &[]) => "owner.id must not be empty"
        r.owner = owner(256, 512, &[]) => ""
        r.owner = owner(257, 0, &[]) => "owner.id must be at most 256 bytes"
        r.owner = owner(1, 513, &[]) => "owner.reason must be at most 512 bytes"
        r.owner = owner(1, 0, &keys(16, 2)) => ""
        r.owner = owner(1, 0, &keys(17, 2)) => "owner.labels must be at most 16"
        r.owner = owner(1, 0, &keys(1, 63)) => ""
        r.owner = owner(1, 0, &keys(1, 64)) => "keys must be 1 to 63 bytes"
        r.owner = owner(256, 512, &keys(16, 63)) => "owner must be at most 1024 bytes in all"
        r.ttl = duration(0, 0) => "ttl must be more than 0"
        r.ttl = duration(1, -1) => "ttl nanos must have the sign of seconds"
        r.ttl = duration(0, 1_000_000_000) => "ttl nanos must be within"
        r.ttl = duration(315_576_000_001, 0) => "ttl seconds must be within"
        r.wait_timeout = duration(0, -1) => "wait_timeout must not be negative"
        r.disconnect_grace = duration(-1, 0) => "disconnect_grace must not be negative"
        r.max_hold = duration(0, 0) => "max_hold must be more than 0"
        r.lock_delay = duration(10, 0) => ""
        r.lock_delay = duration(10, 1) => "lock_delay must be at most"
        r.at_least = duration(86_400, 0) => ""
        r.at_least = duration(86_401, 0) => "at_least must be at most limits.at_least_max"
        r.at_least = duration(10, 0) => ""
        r.at_least = duration(9, 0) => "at_least must not be shorter than ttl"
        r.at_least = duration(0, 0) => "at_least must not be shorter than ttl"
        r.at_least = duration(-1, 0) => "at_least must not be negative"
        r.request_id = "1".to_owned() => "request_id must be a UUID"
    }
}

#[test]
fn the_fields_of_a_presented_lease_are_checked() {
    let request = ReleaseRequest {
        lease: Some(presented_lease()),
        ..ReleaseRequest::default()
    };
    check_changes! { |request| release(request, &Limits::default()), request.clone(), r,
        r.lease = None => "lease is required"
        r.lock = lock_ref("b") => ""
        r.lock = lock_ref("a") => "lock must be a lock of the lease"
        r.request_id = "0d8f4b9a-4c7e-4b8a-9f63-6a3f5d5f0c11".to_owned() => "lock is required with request_id"
    }
    let release_lease = |lease| {
        let lease = Some(lease);
        release(
            ReleaseRequest {
                lease,
                ..ReleaseRequest::default()
            },
            &Limits::default(),
        )
    };
    check_changes! { release_lease, presented_lease(), lease,
        lease.lease_id.clear() => "lease.lease_id must be the id of a lease"
        lease.lease_token.clear() => "lease.lease_token must not be empty"
        lease.grants.clear() => "lease.grants must contain the 1 to 64 grants"
        lease.grants[0].target = None => "lease.grants[0].target is required"
        lease.grants[0].fencing_token = 0 => "lease.grants[0].fencing_token must be 1 to"
        lease.grants.extend_from_within(..) => "lease.grants must not name a lock twice"
    }
    let mut request = acquire_request();
    request.target = Some(lock_target("b", 0, 0));
    request.under = Some(presented_lease());
    check_changes! { |request| acquire(request, &Limits::default()), request.clone(), r,
        r.ttl = duration(1, 0) => ""
        r.max_hold = duration(1, 0) => "max_hold must be unset"
        r.lock_delay = duration(1, 0) => "lock_delay must be unset"
        r.at_least = duration(60, 0) => "at_least must be unset"
    }
}

#[test]
fn the_fields_of_other_requests_are_checked() {
    let all = |names: &[&str]| AcquireAllRequest {
        targets: names.iter().map(|name| lock_target(name, 0, 0)).collect(),
        owner: owner(1, 0, &[]),
        ..AcquireAllRequest::default()
    };
    check_changes! { |request| acquire_all(request, &Limits::default()), all(&["a", "b"]), r,
        r.targets.push(lock_target("c", 0, 0)) => ""
        r.targets.truncate(1) => "targets must be 2 to 16"
        r.targets.resize(17, lock_target("c", 0, 0)) => "targets must be 2 to 16"
        r.targets[1].name = "a".to_owned() => "targets[1] must not name a lock twice"
    }
    check_changes! { |request| hold_acquire(request, &Limits::default()), HoldAcquire::default(), r,
        r.attach_number = 1 => "request is required"
        r.request = Some(acquire_request()) => "attach_number must be at least 1; request.request_id is required"
    }
    let revoke = ForceReleaseLeaseRequest {
        lock: lock_ref("a"),
        lease_id: presented_lease().lease_id,
        reason: "stuck".to_owned(),
        ..ForceReleaseLeaseRequest::default()
    };
    check_changes! { |request| force_release(request, &Limits::default()), revoke.clone(), r,
        r.unsafe_now = true => ""
        r.reason.clear() => "reason must be 1 to 512 bytes"
        (r.unsafe_now, r.grace) = (true, duration(1, 0)) => "grace must be unset with unsafe_now"
    }
}

#[test]
fn times_have_defaults_and_are_clamped_to_the_limits() {
    for (ttl, wait, expected) in [
        (None, None, (10_000, 0, None)),
        (duration(0, 1), duration(0, 1), (1_000, 1, Some(1_000))),
        (
            duration(61, 0),
            duration(3_601, 0),
            (60_000, 3_600_000, Some(60_000)),
        ),
    ] {
        let call = acquire(
            AcquireRequest {
                ttl,
                wait_timeout: wait,
                disconnect_grace: ttl.and(duration(100, 0)),
                ..acquire_request()
            },
            &Limits::default(),
        );
        let Ok(call) = call else {
            panic!("{ttl:?} is valid");
        };
        let grace_ms = call.options.disconnect_grace_ms;
        assert_eq!((call.ttl.as_millis(), call.wait_ms, grace_ms), expected);
    }
}
