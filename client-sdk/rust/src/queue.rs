//! Queue position of a waiting call.

use crate::error::Holder;

/// Position in the queue of a lock. A hint, which the broker updates at most once a second.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// Position counted from 1, which is the next waiter.
    pub position: u32,
    /// Number of all waiters.
    pub queue_length: u32,
    /// Some holders of the lock; at most 5.
    pub holders: Vec<Holder>,
}
