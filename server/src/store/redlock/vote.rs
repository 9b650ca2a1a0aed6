//! Vote of one node on a proposed grant.

use crate::{
    lock::{Contention, Grant},
    store::{Acquired, MovedLease, Outcome, StoreError, VoteReply},
};

/// Assumed time until a node is free that does not report a time.
pub(super) const UNKNOWN_MS: u64 = 1_000;

pub(super) enum Vote {
    /// The node granted the lock, now or to an earlier attempt.
    Yes(Grant, Option<MovedLease>),
    /// The lock is free at the node, but the proposed token is too low. Contains the lowest token
    /// that the node accepts.
    TokenTooLow(u64),
    /// Another lease holds the lock at the node.
    Held(Contention),
    /// The node does not vote for this time, in milliseconds.
    Recovering(u64),
    /// The node rejects the call, independently of other votes.
    Rejected(Acquired),
    /// The node did not answer, or its reply cannot be used.
    Failed(StoreError),
}

impl Vote {
    pub(super) fn from_reply(result: Result<Outcome<VoteReply>, StoreError>) -> Self {
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(StoreError::Recovering { retry_after_ms }) => {
                return Self::Recovering(retry_after_ms);
            }
            Err(error) => return Self::Failed(error),
        };
        let acquired = match outcome.reply {
            VoteReply::Behind { min_token } => return Self::TokenTooLow(min_token),
            VoteReply::Ahead => {
                let message = "the clock of a node is far behind those of the others";
                return Self::Failed(StoreError::Unavailable(message.to_owned()));
            }
            VoteReply::Acquired(acquired) => acquired,
        };
        match acquired {
            Acquired::Granted(grant) => Self::Yes(grant, outcome.moved),
            Acquired::Held(contention) => Self::Held(contention),
            Acquired::Queued { .. } => {
                Self::Failed(StoreError::Corrupt("a node has a queue".to_owned()))
            }
            rejection @ (Acquired::LimitMismatch { .. }
            | Acquired::StaleAttach
            | Acquired::UpgradeDenied
            | Acquired::TooManyEntries
            | Acquired::TooManyAttempts
            | Acquired::NotFound
            | Acquired::QueueFull
            | Acquired::RequestIdReused
            | Acquired::Ended
            | Acquired::Cancelled) => Self::Rejected(rejection),
        }
    }

    pub(super) fn lowest_accepted_token(&self) -> Option<u64> {
        match self {
            Self::Yes(grant, _) => Some(grant.fencing_token.get()),
            Self::TokenTooLow(min_token) => Some(*min_token),
            Self::Held(_) | Self::Recovering(_) | Self::Rejected(_) | Self::Failed(_) => None,
        }
    }

    pub(super) fn held(&self) -> Option<&Contention> {
        if let Self::Held(contention) = self {
            Some(contention)
        } else {
            None
        }
    }

    pub(super) fn into_rejection(self) -> Option<Acquired> {
        if let Self::Rejected(rejection) = self {
            Some(rejection)
        } else {
            None
        }
    }

    pub(super) fn into_error(self) -> Option<StoreError> {
        if let Self::Failed(error) = self {
            Some(error)
        } else {
            None
        }
    }

    pub(super) fn recovers_in(&self) -> Option<u64> {
        if let Self::Recovering(remaining_ms) = self {
            Some(*remaining_ms)
        } else {
            None
        }
    }

    pub(super) fn free_in_ms(&self) -> u64 {
        match self {
            Self::Yes(..) | Self::TokenTooLow(_) => 0,
            Self::Held(contention) => {
                let remaining = contention.holders.iter().map(|holder| holder.remaining_ms);
                remaining
                    .max()
                    .unwrap_or(0)
                    .max(contention.lock_delay_remaining_ms)
            }
            Self::Recovering(remaining_ms) => *remaining_ms,
            Self::Rejected(_) | Self::Failed(_) => UNKNOWN_MS,
        }
    }
}
