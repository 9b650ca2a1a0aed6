//! Evaluation of the votes of all nodes on one proposal: the grant, or a token that a quorum
//! accepts.

use super::{
    merge::one_grant,
    quorum::{Collector, no_quorum, quorum},
    vote::{UNKNOWN_MS, Vote},
};
use crate::{
    lock::{Contention, FencingToken, Grant, Holder},
    store::{Acquired, MovedLease, Outcome, StoreError, VoteReply},
};

pub(super) struct Votes(Vec<Option<Vote>>);

/// Reason for which no quorum holds the lock for a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QuorumFailure {
    /// The lock is not available now.
    Contended(Contended),
    /// A quorum of nodes rejects the call.
    Rejected(Acquired),
}

/// Contention that prevents a quorum now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contended {
    /// Holder at a quorum, if there is one, and the lock delay.
    pub(super) contention: Contention,
    /// True if no call holds the lock at a quorum and no node reports a lock delay: several calls
    /// each hold the lock at some nodes.
    pub(super) is_split: bool,
    /// Time until a quorum of nodes may be free without a release.
    pub(super) free_in_ms: u64,
}

impl Votes {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| None).collect())
    }

    /// Returns the grant that a quorum made with the same token.
    pub(super) fn grant(&self) -> Option<(Grant, Vec<MovedLease>)> {
        let token = self.granted().map(|(grant, _)| grant.fencing_token);
        let token = token.max_by_key(|token| self.count(token.get()))?;
        let same = self
            .granted()
            .filter(|(grant, _)| grant.fencing_token == token);
        let grants: Vec<_> = same.clone().map(|(grant, _)| *grant).collect();
        let moved = same.filter_map(|(_, moved)| *moved).collect();
        let has_quorum = grants.len() >= quorum(self.0.len());
        Some((one_grant(&grants).filter(|_| has_quorum)?, moved))
    }

    /// Returns the lowest token that a quorum accepts, or `None` if no quorum accepts a token.
    pub(super) fn lowest_accepted_token(&self) -> Option<u64> {
        let mut tokens: Vec<_> = self
            .0
            .iter()
            .flatten()
            .filter_map(Vote::lowest_accepted_token)
            .collect();
        tokens.sort_unstable();
        tokens.get(quorum(self.0.len()) - 1).copied()
    }

    /// Returns the number of nodes that have not answered yet.
    pub(super) fn outstanding(&self) -> usize {
        self.0.iter().filter(|vote| vote.is_none()).count()
    }

    /// Returns the nodes that granted another token than `token`. Without a token, also returns
    /// nodes that failed to answer and may have granted one. Nodes with an outstanding reply are
    /// not included.
    pub(super) fn nodes_to_cancel(&self, token: Option<FencingToken>) -> Vec<usize> {
        let stays = |vote: &Option<Vote>| match vote {
            Some(Vote::Yes(grant, _)) => Some(grant.fencing_token) == token,
            Some(Vote::Failed(_)) => token.is_some(),
            Some(
                Vote::TokenTooLow(_) | Vote::Held(_) | Vote::Recovering(_) | Vote::Rejected(_),
            )
            | None => true,
        };
        let nodes = self.0.iter().enumerate();
        let holding = nodes.filter(|(_, vote)| !stays(vote));
        holding.map(|(node, _)| node).collect()
    }

    /// Returns the reason for which there is no quorum.
    pub(super) fn into_failure(self) -> Result<QuorumFailure, StoreError> {
        let nodes = self.0.len();
        let quorum = quorum(nodes);
        let count = |is: fn(&Vote) -> bool| self.0.iter().flatten().filter(|vote| is(vote)).count();
        let rejecting = count(|vote| matches!(vote, Vote::Rejected(_)));
        if rejecting >= quorum {
            let rejections = self
                .0
                .into_iter()
                .flatten()
                .filter_map(Vote::into_rejection);
            let strongest = rejections.max_by_key(strength).unwrap_or(Acquired::Ended);
            return Ok(QuorumFailure::Rejected(strongest));
        }
        let voting =
            count(|vote| vote.lowest_accepted_token().is_some() || matches!(vote, Vote::Held(_)));
        let recovering = count(|vote| matches!(vote, Vote::Recovering(_)));
        if voting < quorum && voting + recovering >= quorum {
            return Err(self.recovering(quorum - voting));
        }
        let contended = count(|vote| matches!(vote, Vote::TokenTooLow(_) | Vote::Held(_)));
        if voting + rejecting < quorum || contended == 0 {
            let open = self.outstanding();
            let silent = self.0.into_iter().flatten().filter_map(Vote::into_error);
            return Err(no_quorum(nodes, open, silent));
        }
        Ok(QuorumFailure::Contended(self.contended()))
    }

    fn contended(&self) -> Contended {
        let held: Vec<_> = self.0.iter().flatten().filter_map(Vote::held).collect();
        let holders = || {
            held.iter()
                .filter_map(|contention| contention.holders.first())
        };
        let same = |holder: &Holder| {
            let is_same = |other: &&Holder| other.lease_id == holder.lease_id;
            holders().filter(is_same).count()
        };
        let most_reported = holders().max_by_key(|holder| same(holder));
        let report_count = most_reported.map_or(0, same);
        let closed_ms = held
            .iter()
            .map(|contention| contention.lock_delay_remaining_ms)
            .max();
        let mut free: Vec<_> = self.0.iter().flatten().map(Vote::free_in_ms).collect();
        free.sort_unstable();
        let free_in_ms = free.get(quorum(self.0.len()) - 1).copied();
        let free_in_ms = free_in_ms.unwrap_or(UNKNOWN_MS);
        let is_split = report_count < quorum(self.0.len()) && closed_ms.unwrap_or(0) == 0;
        Contended {
            contention: Contention {
                holders: most_reported
                    .filter(|_| !is_split)
                    .cloned()
                    .into_iter()
                    .collect(),
                queue_length: 0,
                lock_delay_remaining_ms: closed_ms.unwrap_or(0),
            },
            is_split,
            free_in_ms,
        }
    }

    /// Returns the error with the time until `more` further nodes can vote.
    fn recovering(&self, more: usize) -> StoreError {
        let mut remaining: Vec<_> = self
            .0
            .iter()
            .flatten()
            .filter_map(Vote::recovers_in)
            .collect();
        remaining.sort_unstable();
        let retry_after_ms = remaining.get(more - 1).copied().unwrap_or(UNKNOWN_MS);
        StoreError::Recovering { retry_after_ms }
    }

    fn granted(&self) -> impl Iterator<Item = (&Grant, &Option<MovedLease>)> + Clone {
        self.0.iter().filter_map(|vote| {
            if let Some(Vote::Yes(grant, moved)) = vote {
                Some((grant, moved))
            } else {
                None
            }
        })
    }

    fn count(&self, token: u64) -> usize {
        let same = self
            .granted()
            .filter(|(grant, _)| grant.fencing_token.get() == token);
        same.count()
    }
}

impl Collector<VoteReply> for Votes {
    fn add(&mut self, node: usize, _is_sure: bool, result: Result<Outcome<VoteReply>, StoreError>) {
        self.0[node] = Some(Vote::from_reply(result));
    }

    fn is_decided(&self) -> bool {
        let open = self.outstanding();
        let tokens = self.granted().map(|(grant, _)| grant.fencing_token.get());
        let votes_max = tokens.map(|token| self.count(token)).max().unwrap_or(0);
        votes_max >= quorum(self.0.len()) || votes_max + open < quorum(self.0.len())
    }
}

/// Returns the rank of a rejection. Rejections that fewer nodes can report rank higher, and the
/// highest one is returned to the caller.
fn strength(rejection: &Acquired) -> u8 {
    match rejection {
        Acquired::Granted(_)
        | Acquired::Held(_)
        | Acquired::Queued { .. }
        | Acquired::QueueFull => 0,
        Acquired::NotFound => 1,
        Acquired::Cancelled => 2,
        Acquired::LimitMismatch { .. } => 3,
        Acquired::TooManyEntries | Acquired::TooManyAttempts => 4,
        Acquired::UpgradeDenied => 5,
        Acquired::StaleAttach => 6,
        Acquired::Ended => 7,
        Acquired::RequestIdReused => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{LeaseToken, Mode, Owner, Ttl};

    fn granted(token: u64) -> VoteReply {
        VoteReply::Acquired(Acquired::Granted(Grant {
            fencing_token: FencingToken::new(token).expect("a token"),
            mode: Mode::Exclusive,
            ttl: Ttl::from_stored(1_000 + token),
            acquired_ms: 0,
            hold_count: 1,
            queue_length: 0,
            disconnect_grace_ms: None,
        }))
    }

    fn held_by(lease: char, remaining_ms: u64) -> VoteReply {
        let holder = Holder {
            lease_id: LeaseToken::from_caller(lease.to_string()).lease_id(""),
            owner: Owner::default(),
            mode: Mode::Exclusive,
            fencing_token: FencingToken::new(7).expect("a token"),
            since_ms: 0,
            remaining_ms,
        };
        VoteReply::Acquired(Acquired::Held(Contention {
            holders: vec![holder],
            queue_length: 0,
            lock_delay_remaining_ms: 0,
        }))
    }

    /// Returns the votes described by `text`, one character per node. A digit is the token of a
    /// grant, and `<` a free node that accepts 8 or more. `a` and `b` are leases of other callers,
    /// and `!` is a lease that has ended. `?` is a node that is recovering, `-` a node that fails
    /// to answer, and `.` an outstanding reply.
    fn votes(text: &str) -> Votes {
        let mut votes = Votes::new(text.len());
        for (node, vote) in text.chars().enumerate() {
            let reply = match vote {
                '.' => continue,
                '<' => Ok(VoteReply::Behind { min_token: 8 }),
                '!' => Ok(VoteReply::Acquired(Acquired::Ended)),
                '?' => {
                    let retry_after_ms = 100 * (node as u64 + 1);
                    Err(StoreError::Recovering { retry_after_ms })
                }
                '-' => Err(StoreError::Unavailable("gone".to_owned())),
                'a' | 'b' => Ok(held_by(vote, 100 * (node as u64 + 1))),
                token => Ok(granted(u64::from(token as u32 - '0' as u32))),
            };
            votes.add(node, true, reply.map(Outcome::reply_only));
        }
        votes
    }

    fn token(text: &str) -> Option<u64> {
        votes(text)
            .grant()
            .map(|(grant, _)| grant.fencing_token.get())
    }

    #[test]
    fn only_a_quorum_with_one_token_is_a_grant() {
        for text in ["555--", "5-5.5", "55555", "5a5b5", "53535"] {
            assert_eq!(token(text), Some(5), "{text}");
            assert!(votes(text).is_decided(), "{text}");
        }
        for text in ["55---", "55337", "55<<<", "5.5..", "....."] {
            assert_eq!(token(text), None, "{text}");
        }
        for text in ["55...", "5.a.b", "....."] {
            assert!(!votes(text).is_decided(), "{text}");
        }
        assert!(!votes("55a-.").is_decided() && votes("5a-b.").is_decided());
    }

    #[test]
    fn the_lowest_accepted_token_is_that_of_a_quorum() {
        for (text, expected) in [
            ("55<<<", Some(8)),
            ("5533-", Some(5)),
            ("553<-", Some(5)),
            ("33<<-", Some(8)),
            ("55a--", None),
            ("5?!a-", None),
        ] {
            assert_eq!(votes(text).lowest_accepted_token(), expected, "{text}");
        }
    }

    #[test]
    fn only_nodes_that_may_hold_the_lock_are_cancelled() {
        assert_eq!(votes("5<a-.").nodes_to_cancel(None), [0, 3]);
        assert_eq!(votes("5!?--").nodes_to_cancel(None), [0, 3, 4]);
        let five = FencingToken::new(5);
        assert_eq!(votes("55735.").nodes_to_cancel(five), [2, 3]);
    }

    #[test]
    fn a_lost_election_has_the_result_of_a_quorum() {
        let busy = |text: &str| match votes(text).into_failure() {
            Ok(QuorumFailure::Contended(busy)) => busy,
            other => panic!("{text}: {other:?}"),
        };
        assert!(!busy("aaa5-").is_split);
        assert_eq!(busy("aaa5-").free_in_ms, 200);
        assert!(busy("aabb5").is_split && busy("aa<<-").is_split);
        assert!(busy("aabb5").contention.holders.is_empty());
        for text in ["55---", "5a---", "55!!-", "-----"] {
            let lost = votes(text).into_failure();
            let unavailable = matches!(lost, Err(StoreError::Unavailable(_)));
            assert!(unavailable, "{text}: {lost:?}");
        }
        for (text, retry_after_ms) in [("5a???", 300), ("?????", 300), ("55?a-", 0)] {
            let lost = votes(text).into_failure();
            if retry_after_ms == 0 {
                assert!(
                    matches!(lost, Ok(QuorumFailure::Contended(_))),
                    "{text}: {lost:?}"
                );
            } else {
                assert_eq!(
                    lost,
                    Err(StoreError::Recovering { retry_after_ms }),
                    "{text}"
                );
            }
        }
        assert_eq!(
            votes("!!!55").into_failure(),
            Ok(QuorumFailure::Rejected(Acquired::Ended))
        );
        assert!(matches!(
            votes("!!a5-").into_failure(),
            Ok(QuorumFailure::Contended(_))
        ));
    }
}
