//! Tests of the JSON output for messages of brokers, against golden files.

use std::time::{Duration, UNIX_EPOCH};

use leasehold_proto::v1::{
    Closure, ClosureCause, Holder, Lock, LockMode, LockTarget, Owner, PermitUsage,
    WatchLocksResponse, lock::State, watch_locks_response::EventType,
};
use serde_json::Value;

use super::{ClosureOutput, Event, ForceReleaseOutput, line};

fn target() -> Option<LockTarget> {
    Some(LockTarget {
        namespace: "default".to_owned(),
        name: "gpu".to_owned(),
        mode: LockMode::Semaphore.into(),
        permits: 2,
        limit: 8,
    })
}

fn holder() -> Holder {
    let owner = Owner {
        id: "worker-9".to_owned(),
        reason: "nightly".to_owned(),
        labels: [("team".to_owned(), "x".to_owned())].into(),
    };
    let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
    Holder {
        lease_id: "l1".to_owned(),
        owner: Some(owner),
        target: target(),
        fencing_token: 17,
        since_time: Some(since.into()),
        remaining: Duration::from_millis(12_500).try_into().ok(),
    }
}

fn waiter() -> Holder {
    Holder {
        lease_id: String::new(),
        fencing_token: 0,
        since_time: None,
        ..holder()
    }
}

fn closure() -> Closure {
    Closure {
        cause: ClosureCause::Operator.into(),
        owner: holder().owner,
        until_time: holder().since_time,
        remaining: holder().remaining,
    }
}

fn is_golden(golden: &str, found: &str) {
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(parse(found), parse(golden), "{found}");
}

#[test]
fn a_list_of_locks() {
    let locks = [State::Held, State::Granting, State::Closed].map(|state| Lock {
        target: target(),
        state: state.into(),
        holders: vec![holder()],
        waiters: vec![waiter()],
        queue_length: 7,
        last_fencing_token: 17,
        holder_count: 3,
        closure: (state == State::Closed).then(closure),
        permit_usage: (state == State::Held).then_some(PermitUsage {
            limit: 8,
            used: 3,
            is_limit_set: true,
        }),
    });
    let locks: Vec<_> = locks.iter().map(super::Lock::from).collect();
    let golden = include_str!("../../../../tests/golden/cli/ls.json");
    is_golden(golden, &line(&locks));
}

#[test]
fn hidden_characters_are_escaped() {
    let owner = "a\u{9b}31m\u{202e}b\u{200b}\u{2028}\u{7f}\u{e0041}\u{1b}\n\"ü";
    let released = super::ReleaseOutput {
        lease_id: owner.to_owned(),
        already_released: false,
    };
    for printed in [line(&released), super::pretty(&released)] {
        let escaped = r#""a\u009b31m\u202eb\u200b\u2028\u007f\udb40\udc41\u001b\n\"ü""#;
        assert!(printed.contains(escaped), "{printed}");
        let read: Value = serde_json::from_str(&printed).expect("JSON");
        assert_eq!(read["lease_id"], owner);
    }
}

#[test]
fn events_are_one_line_each() {
    let at = UNIX_EPOCH + Duration::from_millis(1_700_000_001_000);
    let event = |kind: EventType, subject| WatchLocksResponse {
        r#type: kind.into(),
        subject,
        event_time: Some(at.into()),
        resume_token: "t".to_owned(),
    };
    let events = [
        event(EventType::Acquired, Some(holder())),
        event(EventType::Queued, Some(waiter())),
        event(EventType::Gap, None),
        event(EventType::Bookmark, None),
    ];
    let golden = include_str!("../../../../tests/golden/cli/watch.ndjson");
    let printed: Vec<_> = events
        .iter()
        .map(|event| line(&Event::from(event)))
        .collect();
    assert_eq!(printed.len(), golden.lines().count());
    for (printed, golden) in printed.iter().zip(golden.lines()) {
        assert!(!printed.contains('\n'));
        is_golden(golden, printed);
    }
}

#[test]
fn a_closed_lock_is_printed_as_json() {
    let closed = ClosureOutput::new("default", "gpu", Some(&closure()));
    let golden = include_str!("../../../../tests/golden/cli/close.json");
    is_golden(golden, &line(&closed));
}

#[test]
fn a_revoked_lease_is_printed_as_json() {
    let released = ForceReleaseOutput {
        is_done: true,
        holder: Some(super::Holder::from(&holder())),
        queue_length: 7,
    };
    let golden = include_str!("../../../../tests/golden/cli/force_release.json");
    is_golden(golden, &line(&released));
}
