//! The answer of one node to a proposal.

use crate::{
    lock::{Contention, Grant},
    store::{Acquired, Moved, Outcome, StoreError, redis::decode::Voted},
};

/// How long to wait for a node that does not say when it is free.
pub(super) const UNKNOWN_MS: u64 = 1_000;

/// One vote.
pub(super) enum Vote {
    /// The call holds the lock at this node.
    Yes(Grant, Option<Moved>),
    /// It is free, and takes no token below this one.
    Behind(u64),
    /// Somebody else has it.
    Held(Contention),
    /// It may not vote for so long.
    Recovering(u64),
    /// The call is refused, whatever the others say.
    Refused(Acquired),
    /// No answer.
    Silent(StoreError),
}

impl Vote {
    pub(super) fn of(answer: Result<Outcome<Voted>, StoreError>) -> Self {
        let outcome = match answer {
            Ok(outcome) => outcome,
            Err(StoreError::Recovering { retry_after_ms }) => {
                return Self::Recovering(retry_after_ms);
            }
            Err(error) => return Self::Silent(error),
        };
        let acquired = match outcome.reply {
            Voted::Behind { least } => return Self::Behind(least),
            Voted::Ahead => {
                let why = "the clock of a node is far behind those of the others";
                return Self::Silent(StoreError::Unavailable(why.to_owned()));
            }
            Voted::Acquired(acquired) => acquired,
        };
        match acquired {
            Acquired::Granted(grant) => Self::Yes(grant, outcome.moved),
            Acquired::Held(contention) => Self::Held(contention),
            Acquired::Queued { .. } => {
                Self::Silent(StoreError::Corrupt("a node has a line".to_owned()))
            }
            refused @ (Acquired::LimitMismatch { .. }
            | Acquired::StaleAttach
            | Acquired::UpgradeDenied
            | Acquired::TooManyEntries
            | Acquired::TooManyAttempts
            | Acquired::NotFound
            | Acquired::QueueFull
            | Acquired::RequestIdReused
            | Acquired::Ended
            | Acquired::Cancelled) => Self::Refused(refused),
        }
    }

    pub(super) fn least(&self) -> Option<u64> {
        match self {
            Self::Yes(grant, _) => Some(grant.fencing_token.get()),
            Self::Behind(least) => Some(*least),
            Self::Held(_) | Self::Recovering(_) | Self::Refused(_) | Self::Silent(_) => None,
        }
    }

    pub(super) fn held(&self) -> Option<&Contention> {
        if let Self::Held(contention) = self {
            Some(contention)
        } else {
            None
        }
    }

    pub(super) fn refusal(self) -> Option<Acquired> {
        if let Self::Refused(refused) = self {
            Some(refused)
        } else {
            None
        }
    }

    pub(super) fn silence(self) -> Option<StoreError> {
        if let Self::Silent(error) = self {
            Some(error)
        } else {
            None
        }
    }

    pub(super) fn recovers_in(&self) -> Option<u64> {
        if let Self::Recovering(left_ms) = self {
            Some(*left_ms)
        } else {
            None
        }
    }

    pub(super) fn free_in_ms(&self) -> u64 {
        match self {
            Self::Yes(..) | Self::Behind(_) => 0,
            Self::Held(contention) => {
                let left = contention.holders.iter().map(|holder| holder.remaining_ms);
                left.max().unwrap_or(0).max(contention.closed_ms)
            }
            Self::Recovering(left_ms) => *left_ms,
            Self::Refused(_) | Self::Silent(_) => UNKNOWN_MS,
        }
    }
}
