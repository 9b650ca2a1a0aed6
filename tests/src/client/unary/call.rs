//! Parameters of an acquire call.

use std::time::Duration;

use leasehold_proto::v1::{LockMode, LockTarget};
use uuid::Uuid;

#[derive(Debug, Clone)]
pub struct AcquireCall {
    pub lock: String,
    /// Id of the request, equal in all repeats.
    pub request_id: String,
    pub ttl: Duration,
    /// Time to wait in the queue. With zero, the call does not wait.
    pub wait: Duration,
    pub mode: LockMode,
    /// Permits and limit of a semaphore.
    pub permits: (i32, i32),
    /// Max hold, or zero for no limit.
    pub max_hold: Duration,
    /// Time after a break of its stream at which the lease is released.
    pub disconnect_grace: Option<Duration>,
}

impl AcquireCall {
    /// Creates an exclusive call with a new request id.
    #[must_use]
    pub fn new(lock: &str, ttl: Duration, wait: Duration) -> Self {
        Self {
            lock: lock.to_owned(),
            request_id: Uuid::new_v4().to_string(),
            ttl,
            wait,
            mode: LockMode::Exclusive,
            permits: (0, 0),
            max_hold: Duration::ZERO,
            disconnect_grace: None,
        }
    }

    /// Makes the call shared.
    #[must_use]
    pub fn shared(self) -> Self {
        let mode = LockMode::Shared;
        Self { mode, ..self }
    }

    /// Sets the disconnect grace, in milliseconds.
    #[must_use]
    pub fn with_disconnect_grace(self, grace_ms: u64) -> Self {
        let disconnect_grace = Some(Duration::from_millis(grace_ms));
        Self {
            disconnect_grace,
            ..self
        }
    }

    /// Sets the max hold.
    #[must_use]
    pub fn with_max_hold(self, max_hold: Duration) -> Self {
        Self { max_hold, ..self }
    }

    /// Returns the lock of the call, with its mode and permits.
    #[must_use]
    pub fn target(&self) -> LockTarget {
        LockTarget {
            name: self.lock.clone(),
            mode: self.mode.into(),
            permits: self.permits.0,
            limit: self.permits.1,
            ..LockTarget::default()
        }
    }

    /// Makes the call acquire permits of a semaphore.
    #[must_use]
    pub fn with_permits(self, permits: i32, limit: i32) -> Self {
        Self {
            mode: LockMode::Semaphore,
            permits: (permits, limit),
            ..self
        }
    }
}
