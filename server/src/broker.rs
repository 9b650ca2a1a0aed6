//! What the broker does for a call: acquire (now, or in line), renew, release, look.

use std::sync::Arc;

use crate::{
    lock::{AcquireCall, FencingToken, Grant, Lease, LeaseRef, LockError, LockKey, LockState, Ttl},
    store::Store,
};

/// The use cases. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    store: Arc<dyn Store>,
}

impl Broker {
    /// A broker on `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// Takes the lock for `caller`, waiting in line at most `call.wait_ms`.
    pub async fn acquire(&self, _caller: &str, _call: AcquireCall) -> Result<Lease, LockError> {
        Err(LockError::Internal)
    }

    /// Extends a lease.
    pub async fn renew(&self, _lease: &LeaseRef, _ttl: Option<Ttl>) -> Result<Grant, LockError> {
        Err(LockError::Internal)
    }

    /// Gives a lease back. True if an earlier release had ended it.
    pub async fn release(&self, _lease: &LeaseRef) -> Result<bool, LockError> {
        Err(LockError::Internal)
    }

    /// Time left, in milliseconds, on the live lease behind a token.
    pub async fn check_fencing_token(
        &self,
        _lock: &LockKey,
        _token: FencingToken,
    ) -> Result<u64, LockError> {
        Err(LockError::Internal)
    }

    /// The lock, if anybody holds it or waits for it.
    pub async fn get(&self, _lock: &LockKey) -> Result<Option<LockState>, LockError> {
        Err(LockError::Internal)
    }

    /// Answers every waiting call with `Draining` and leaves its place in line alone.
    pub fn drain(&self) {}

    /// Ends when no call and no undo is under way.
    pub async fn idle(&self) {}
}
