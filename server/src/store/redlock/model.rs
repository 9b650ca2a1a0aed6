//! The decisions of a quorum as functions of the replies, for the model of the tests. Compiled only
//! with the feature `model`.

use super::{
    merge,
    quorum::{Collector, QuorumCounter, QuorumResult, Replies},
    votes::{QuorumFailure, Votes},
};
use crate::{
    lock::{FencingToken, Grant},
    store::{Acquired, Cancelled, LeaseReply, Outcome, Released, StoreError, VoteReply},
};

/// Reply of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReply<T> {
    pub node: usize,
    /// False if the node came back so recently that it may have lost data.
    pub is_reliable: bool,
    pub outcome: Result<Outcome<T>, StoreError>,
}

/// Result of the replies that have arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumReply<T> {
    /// True if outstanding replies cannot change the result.
    pub is_decided: bool,
    pub result: Result<T, StoreError>,
}

/// Reason for which no quorum granted the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostVote {
    Contended {
        /// True if several calls each hold the lock at some nodes.
        is_split: bool,
    },
    Rejected(Acquired),
}

/// Result of the votes of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteResult {
    /// True if outstanding votes cannot change the grant.
    pub is_decided: bool,
    /// Grant that a quorum made with the same token.
    pub grant: Option<Grant>,
    /// Lowest token that a quorum accepts.
    pub lowest_accepted_token: Option<u64>,
    /// Reason for which there is no grant.
    pub failure: Result<LostVote, StoreError>,
}

/// Evaluates the votes of one round.
pub fn count_votes(nodes: usize, replies: &[NodeReply<VoteReply>]) -> VoteResult {
    let votes = collect(Votes::new(nodes), replies);
    VoteResult {
        is_decided: votes.is_decided(),
        grant: votes.grant().map(|(grant, _)| grant),
        lowest_accepted_token: votes.lowest_accepted_token(),
        failure: votes.into_failure().map(|failure| match failure {
            QuorumFailure::Contended(contended) => LostVote::Contended {
                is_split: contended.is_split,
            },
            QuorumFailure::Rejected(rejection) => LostVote::Rejected(rejection),
        }),
    }
}

/// Returns the nodes at which the attempt must be cancelled after a round, when a quorum granted
/// the lock with `token`, or no quorum did.
pub fn nodes_to_cancel(
    nodes: usize,
    replies: &[NodeReply<VoteReply>],
    token: Option<FencingToken>,
) -> Vec<usize> {
    collect(Votes::new(nodes), replies).nodes_to_cancel(token)
}

/// Evaluates the replies to a renewal or an attachment.
pub fn renewed_or_attached(
    nodes: usize,
    replies: &[NodeReply<LeaseReply<Grant>>],
) -> QuorumReply<LeaseReply<Grant>> {
    evaluate(merge::renewals(nodes), replies, |result| {
        merge::renewed_or_attached(result).map(|(grant, _)| grant)
    })
}

/// Evaluates the replies to a release.
pub fn released(
    nodes: usize,
    replies: &[NodeReply<LeaseReply<Released>>],
) -> QuorumReply<LeaseReply<Released>> {
    let counter = QuorumCounter::new(nodes, |outcome| outcome.reply);
    evaluate(counter, replies, merge::released)
}

/// Evaluates the replies to a cancel.
pub fn cancelled(nodes: usize, replies: &[NodeReply<Cancelled>]) -> QuorumReply<Cancelled> {
    let replies = collect(Replies::new(nodes, merge::is_cancel_decided), replies);
    QuorumReply {
        is_decided: replies.is_decided(),
        result: merge::cancelled(replies),
    }
}

fn evaluate<T: Clone, Y, N, R>(
    counter: QuorumCounter<T, Y, N>,
    replies: &[NodeReply<T>],
    merge: impl FnOnce(QuorumResult<Y, N>) -> R,
) -> QuorumReply<R> {
    let counter = collect(counter, replies);
    QuorumReply {
        is_decided: counter.is_decided(),
        result: counter.result().map(merge),
    }
}

/// Adds replies to a collector until they are decided.
fn collect<T: Clone, C: Collector<T>>(mut collector: C, replies: &[NodeReply<T>]) -> C {
    for reply in replies {
        if !collector.is_decided() {
            collector.add(reply.node, reply.is_reliable, reply.outcome.clone());
        }
    }
    collector
}
