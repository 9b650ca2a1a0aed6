//! Votes of the nodes of a RedLock store, each of which must grant the lock with the same token.

use super::Acquired;
use crate::lock::FencingToken;

/// The additional arguments that make an acquire a vote: a RedLock store requests the same grant
/// from all of its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The token to grant with. `None` requests no new grant, only the current grant of the
    /// request.
    pub token: Option<FencingToken>,
    /// Largest allowed distance of the token from a node's clock.
    pub max_clock_skew_ms: u64,
    /// True if a holder with the same request gets the token if it is higher.
    pub raises: bool,
    /// Condition under which the node notifies this broker that the lock is free.
    pub notify: NotifyMode,
}

/// Condition under which a node notifies a broker that a lock is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotifyMode {
    Never = 0,
    /// If the lock is not granted to the broker's call now.
    IfHeld = 1,
    /// In any case, because other calls of the broker wait.
    Always = 2,
}

/// Reply of one node of a RedLock store to a vote.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VoteReply {
    /// The reply of an acquire without a proposed token.
    Acquired(Acquired),
    /// The lock is free, but the node accepts no token below `min_token`.
    Behind {
        /// The lowest token that the node accepts.
        min_token: u64,
    },
    /// The token is too far ahead of the node's clock.
    Ahead,
}
