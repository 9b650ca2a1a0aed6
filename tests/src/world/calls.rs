//! Calls, and what may differ between them.

use leasehold_server::lock::{
    Acquire, ArgumentsHash, AttemptId, FencingToken, LeaseRef, LeaseToken, LockKey, Mode, Owner,
    RequestId, Terms, Ttl, Under,
};

use super::TTL_MS;

/// A new call for a lock, which does not wait.
pub fn new_call(lock: &LockKey) -> Acquire {
    let token = LeaseToken::from_caller(AttemptId::random().to_string());
    Acquire {
        lock: lock.clone(),
        mode: Mode::Exclusive,
        lease_id: token.lease_id(""),
        under: Under::NewLease,
        stream: None,
        request: RequestId::random().hash(),
        arguments: ArgumentsHash::of(&[b"arguments"]),
        attempt: AttemptId::random(),
        ttl: Ttl::from_stored(TTL_MS),
        terms: Terms::default(),
        wait_ms: 0,
        owner: Owner::default(),
        rejoin: false,
    }
}

/// The lease that a grant of this token made of the call.
pub fn lease(call: &Acquire, fencing_token: FencingToken) -> LeaseRef {
    LeaseRef {
        lock: call.lock.clone(),
        lease_id: call.lease_id,
        fencing_token,
    }
}

/// Another attempt of the same call.
pub fn again(call: &Acquire) -> Acquire {
    Acquire {
        attempt: AttemptId::random(),
        ..call.clone()
    }
}

/// The call as one that adds to that lease.
pub fn added_to(lease: &LeaseRef, call: Acquire) -> Acquire {
    Acquire {
        lease_id: lease.lease_id,
        under: Under::Lease,
        ..call
    }
}

/// The call in another mode.
pub fn with_mode(call: Acquire, mode: Mode) -> Acquire {
    Acquire { mode, ..call }
}

/// The call with these terms.
pub fn with_terms(call: Acquire, max_hold_ms: u64, lock_delay_ms: u64) -> Acquire {
    let terms = Terms {
        disconnect_grace_ms: call.terms.disconnect_grace_ms,
        max_hold_ms,
        lock_delay_ms,
    };
    Acquire { terms, ..call }
}

/// The call with another ttl.
pub fn with_ttl(call: Acquire, ttl_ms: u64) -> Acquire {
    Acquire {
        ttl: Ttl::from_stored(ttl_ms),
        ..call
    }
}
