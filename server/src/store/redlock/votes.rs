//! Evaluation of the votes of all nodes on one proposal: the grant, or a token that a quorum
//! accepts.

use std::iter::repeat_n;

use super::{
    merge::{closure, merge_grants},
    quorum::{Collector, largest_group, no_quorum, nth_smallest, quorum},
};
use crate::{
    lock::{Contention, FencingToken, Grant},
    store::{Acquired, MovedLease, Outcome, StoreError, VoteReply},
};

/// Assumed time until a node is free that does not report a time.
const UNKNOWN_MS: u64 = 1_000;

/// Votes of the nodes that have answered.
#[derive(Default)]
pub(super) struct Votes {
    nodes: usize,
    granted: Vec<NodeGrant>,
    /// Lowest tokens accepted by nodes at which the lock is free, but the proposed token is too low.
    min_tokens: Vec<u64>,
    /// Contention at nodes at which another lease holds the lock.
    held: Vec<Contention>,
    /// Times for which nodes do not vote, in milliseconds.
    recovering_ms: Vec<u64>,
    /// Replies of nodes that reject the call, independently of other votes.
    rejections: Vec<Acquired>,
    failed: Vec<NodeFailure>,
}

/// Grant of a node, made now or to an earlier attempt.
struct NodeGrant {
    node: usize,
    grant: Grant,
    moved: Option<MovedLease>,
}

/// Error of a node that did not answer, or whose reply cannot be used.
struct NodeFailure {
    node: usize,
    error: StoreError,
}

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
    /// Holder that most nodes report, unless the votes are split, and the closure of a quorum.
    pub(super) contention: Contention,
    /// True if the nodes at which the lock is closed, and those that report one holder, are fewer
    /// than a quorum: several calls each hold the lock at some nodes.
    pub(super) is_split: bool,
    /// Time until a quorum of nodes may be free without a release.
    pub(super) free_in_ms: u64,
}

impl Votes {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            ..Self::default()
        }
    }

    /// Returns the grant that a quorum made with the same token, and the stream that the lease left.
    pub(super) fn grant(&self) -> Option<(Grant, Option<MovedLease>)> {
        let same = self.most_granted();
        let has_quorum = same.len() >= quorum(self.nodes);
        let grants = same.iter().map(|granted| (granted.grant, granted.moved));
        merge_grants(grants.collect()).filter(|_| has_quorum)
    }

    /// Returns the lowest token that a quorum accepts, or `None` if no quorum accepts a token.
    pub(super) fn lowest_accepted_token(&self) -> Option<u64> {
        let granted = self.granted.iter().map(|granted| granted.token().get());
        let accepted = granted.chain(self.min_tokens.iter().copied());
        nth_smallest(accepted, quorum(self.nodes))
    }

    /// Returns the number of nodes that have not answered yet.
    pub(super) fn outstanding(&self) -> usize {
        self.nodes
            - self.voting()
            - self.recovering_ms.len()
            - self.rejections.len()
            - self.failed.len()
    }

    /// Returns the nodes that granted another token than `token`. Without a token, also returns
    /// nodes that failed to answer and may have granted one. Nodes with an outstanding reply are
    /// not included.
    pub(super) fn nodes_to_cancel(&self, token: Option<FencingToken>) -> Vec<usize> {
        let granted = self.granted.iter();
        let other = granted.filter(|granted| Some(granted.token()) != token);
        let failed = self.failed.iter().filter(|_| token.is_none());
        let nodes = other.map(|granted| granted.node);
        let mut nodes: Vec<_> = nodes.chain(failed.map(|failure| failure.node)).collect();
        nodes.sort_unstable();
        nodes
    }

    /// Returns the reason for which there is no quorum.
    pub(super) fn into_failure(self) -> Result<QuorumFailure, StoreError> {
        let quorum = quorum(self.nodes);
        if self.rejections.len() >= quorum {
            let strongest = self.rejections.into_iter().max_by_key(strength);
            return Ok(QuorumFailure::Rejected(
                strongest.unwrap_or(Acquired::Ended),
            ));
        }
        let voting = self.voting();
        if voting < quorum && voting + self.recovering_ms.len() >= quorum {
            let more = nth_smallest(self.recovering_ms.into_iter(), quorum - voting);
            return Err(StoreError::Recovering {
                retry_after_ms: more.unwrap_or(UNKNOWN_MS),
                recovery: None,
            });
        }
        let is_contended = !self.min_tokens.is_empty() || !self.held.is_empty();
        if voting + self.rejections.len() < quorum || !is_contended {
            let open = self.outstanding();
            let errors = self.failed.into_iter().map(|failure| failure.error);
            return Err(no_quorum(self.nodes, open, errors));
        }
        Ok(QuorumFailure::Contended(self.contended()))
    }

    fn contended(&self) -> Contended {
        let holders = self.held.iter().filter_map(|held| held.holders.first());
        let most_reported = largest_group(holders, |holder| holder.lease_id);
        let closed = self.held.iter().filter(|held| held.is_closed());
        let is_split = most_reported.len() + closed.count() < quorum(self.nodes);
        let closures = self.held.iter().filter_map(|held| held.closure.as_deref());
        let closure = closure(closures, quorum(self.nodes)).cloned();
        let holder = most_reported.into_iter().next().filter(|_| !is_split);
        Contended {
            contention: Contention {
                holders: holder.cloned().into_iter().collect(),
                queue_length: 0,
                closure: closure.map(Box::new),
            },
            is_split,
            free_in_ms: self.free_in_ms(),
        }
    }

    /// Returns the time until a quorum of nodes may be free without a release.
    fn free_in_ms(&self) -> u64 {
        let free = repeat_n(0, self.granted.len() + self.min_tokens.len());
        let held = self.held.iter().map(|held| {
            let remaining = held.holders.iter().map(|holder| holder.remaining_ms);
            remaining.fold(held.closed_ms(), u64::max)
        });
        let recovering = self.recovering_ms.iter().copied();
        let unknown = repeat_n(UNKNOWN_MS, self.rejections.len() + self.failed.len());
        let all = free.chain(held).chain(recovering).chain(unknown);
        nth_smallest(all, quorum(self.nodes)).unwrap_or(UNKNOWN_MS)
    }

    /// Returns the number of nodes that grant the lock, or report why they do not.
    fn voting(&self) -> usize {
        self.granted.len() + self.min_tokens.len() + self.held.len()
    }

    /// Returns the grants with the token that most nodes granted.
    fn most_granted(&self) -> Vec<&NodeGrant> {
        largest_group(self.granted.iter(), |granted| granted.token())
    }
}

impl NodeGrant {
    fn token(&self) -> FencingToken {
        self.grant.fencing_token
    }
}

impl Collector<VoteReply> for Votes {
    fn add(
        &mut self,
        node: usize,
        _is_reliable: bool,
        result: Result<Outcome<VoteReply>, StoreError>,
    ) {
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(StoreError::Recovering { retry_after_ms, .. }) => {
                return self.recovering_ms.push(retry_after_ms);
            }
            Err(error) => return self.failed.push(NodeFailure { node, error }),
        };
        match outcome.reply {
            VoteReply::Behind { min_token } => self.min_tokens.push(min_token),
            VoteReply::Ahead => {
                let message = "the clock of a node is far behind those of the others";
                let error = StoreError::Unavailable(message.to_owned());
                self.failed.push(NodeFailure { node, error });
            }
            VoteReply::Acquired(Acquired::Granted(grant)) => self.granted.push(NodeGrant {
                node,
                grant,
                moved: outcome.moved,
            }),
            VoteReply::Acquired(Acquired::Held(contention)) => self.held.push(contention),
            VoteReply::Acquired(Acquired::Queued { .. }) => {
                let error = StoreError::Corrupt("a node has a queue".to_owned());
                self.failed.push(NodeFailure { node, error });
            }
            VoteReply::Acquired(rejection) => self.rejections.push(rejection),
        }
    }

    fn is_decided(&self) -> bool {
        let quorum = quorum(self.nodes);
        let votes_max = self.most_granted().len();
        votes_max >= quorum || votes_max + self.outstanding() < quorum
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
    use crate::lock::{Closure, ClosureCause, Holder, LeaseToken, Mode, Owner, Ttl};

    fn granted(token: u64) -> VoteReply {
        VoteReply::Acquired(Acquired::Granted(Grant {
            fencing_token: FencingToken::new(token).expect("a token"),
            mode: Mode::Exclusive,
            ttl: Ttl::from_stored(1_000 + token),
            acquired_ms: 0,
            hold_count: 1,
            queue_length: 0,
            disconnect_grace_ms: None,
            span_ms: 0,
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
            closure: None,
        }))
    }

    fn closed_for(remaining_ms: u64) -> VoteReply {
        let closure = Closure {
            cause: ClosureCause::AtLeast,
            until_ms: remaining_ms,
            owner: Owner::default(),
        };
        VoteReply::Acquired(Acquired::Held(Contention {
            closure: closure.active_at(0).map(Box::new),
            ..Contention::default()
        }))
    }

    /// Returns the votes described by `text`, one character per node. A digit is the token of a
    /// grant, and `<` a free node that accepts 8 or more. `a` and `b` are leases of other callers,
    /// and `!` is a lease that has ended. `c` is a node at which the lock is closed. `?` is a node
    /// that is recovering, `-` a node that fails to answer, and `.` an outstanding reply.
    fn votes(text: &str) -> Votes {
        let mut votes = Votes::new(text.len());
        for (node, vote) in text.chars().enumerate() {
            let reply = match vote {
                '.' => continue,
                '<' => Ok(VoteReply::Behind { min_token: 8 }),
                '!' => Ok(VoteReply::Acquired(Acquired::Ended)),
                '?' => {
                    let retry_after_ms = 100 * (node as u64 + 1);
                    Err(StoreError::Recovering {
                        retry_after_ms,
                        recovery: None,
                    })
                }
                '-' => Err(StoreError::Unavailable("gone".to_owned())),
                'a' | 'b' => Ok(held_by(vote, 100 * (node as u64 + 1))),
                'c' => Ok(closed_for(100 * (node as u64 + 1))),
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
        assert!(busy("cab5-").is_split && busy("ca<<-").is_split);
        assert!(!busy("ccaaa").is_split && !busy("cac<a").is_split && !busy("ccc55").is_split);
        assert_eq!(busy("ccaaa").contention.closed_ms(), 0);
        assert_eq!(busy("ccc55").contention.closed_ms(), 100);
        assert_eq!(busy("ccccc").contention.closed_ms(), 300);
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
                    Err(StoreError::Recovering {
                        retry_after_ms,
                        recovery: None
                    }),
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
