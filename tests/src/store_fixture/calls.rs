//! Builders of acquire calls and their variants.

use leasehold_server::lock::{
    AcquireCommand, ArgumentsHash, AttemptId, FencingToken, LeaseBinding, LeaseOptions, LeaseRef,
    LeaseToken, LockKey, Mode, Owner, RequestId, Ttl,
};

use super::TTL_MS;

/// Returns a new call for a lock, which does not wait.
pub fn new_call(lock: &LockKey) -> AcquireCommand {
    let token = LeaseToken::from_caller(AttemptId::random().to_string());
    AcquireCommand {
        lock: lock.clone(),
        mode: Mode::Exclusive,
        lease_id: token.lease_id(""),
        binding: LeaseBinding::New,
        stream: None,
        request: RequestId::random().hash(),
        arguments: ArgumentsHash::of(&[b"arguments"]),
        attempt: AttemptId::random(),
        ttl: Ttl::from_stored(TTL_MS),
        options: LeaseOptions::default(),
        wait_ms: 0,
        owner: Owner::default(),
        rejoin: false,
    }
}

/// Returns the lease that a grant of `call` with this token created.
pub fn lease_of(call: &AcquireCommand, fencing_token: FencingToken) -> LeaseRef {
    LeaseRef {
        lock: call.lock.clone(),
        lease_id: call.lease_id,
        fencing_token,
    }
}

/// Returns the operator that closes locks.
pub fn operator() -> Owner {
    Owner {
        id: "token:alice".to_owned(),
        reason: "a freeze|\n!".to_owned(),
        ..Owner::default()
    }
}

/// Returns another attempt of the same call.
pub fn new_attempt(call: &AcquireCommand) -> AcquireCommand {
    AcquireCommand {
        attempt: AttemptId::random(),
        ..call.clone()
    }
}

/// Returns the call as an add to `lease`.
pub fn add_to_lease(lease: &LeaseRef, call: AcquireCommand) -> AcquireCommand {
    AcquireCommand {
        lease_id: lease.lease_id,
        binding: LeaseBinding::Existing,
        ..call
    }
}

pub fn with_mode(call: AcquireCommand, mode: Mode) -> AcquireCommand {
    AcquireCommand { mode, ..call }
}

pub fn with_hold_and_delay(
    call: AcquireCommand,
    max_hold_ms: u64,
    lock_delay_ms: u64,
) -> AcquireCommand {
    let terms = LeaseOptions {
        max_hold_ms: (max_hold_ms > 0).then_some(max_hold_ms),
        lock_delay_ms,
        ..call.options
    };
    AcquireCommand {
        options: terms,
        ..call
    }
}

pub fn with_ttl(call: AcquireCommand, ttl_ms: u64) -> AcquireCommand {
    AcquireCommand {
        ttl: Ttl::from_stored(ttl_ms),
        ..call
    }
}
