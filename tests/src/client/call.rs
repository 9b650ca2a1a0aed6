//! What a client asks for.

use std::time::Duration;

use leasehold_proto::v1::LockMode;
use uuid::Uuid;

/// What to acquire.
#[derive(Debug, Clone)]
pub struct AcquireCall {
    /// The lock's name.
    pub lock: String,
    /// The same in every repeat.
    pub request_id: String,
    /// Wished validity.
    pub ttl: Duration,
    /// How long to wait in line; zero does not wait.
    pub wait: Duration,
    /// How to hold it.
    pub mode: LockMode,
    /// Semaphores: permits and limit.
    pub permits: (i32, i32),
    /// The longest time to hold it; zero is any.
    pub max_hold: Duration,
    /// How long after a break of its stream it ends.
    pub disconnect_grace: Option<Duration>,
}

impl AcquireCall {
    /// With a fresh request id.
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

    /// As a reader.
    #[must_use]
    pub fn shared(self) -> Self {
        let mode = LockMode::Shared;
        Self { mode, ..self }
    }

    /// Ending so many milliseconds after a break of its stream.
    #[must_use]
    pub fn with_grace(self, grace_ms: u64) -> Self {
        let disconnect_grace = Some(Duration::from_millis(grace_ms));
        Self {
            disconnect_grace,
            ..self
        }
    }

    /// For so long at most.
    #[must_use]
    pub fn held_at_most(self, max_hold: Duration) -> Self {
        Self { max_hold, ..self }
    }

    /// With so many permits of a semaphore.
    #[must_use]
    pub fn taking(self, permits: i32, limit: i32) -> Self {
        Self {
            mode: LockMode::Semaphore,
            permits: (permits, limit),
            ..self
        }
    }
}
