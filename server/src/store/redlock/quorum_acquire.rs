//! Acquisition of a lock at a quorum: in one round, or in a second round with a token that a quorum
//! accepts.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    REPLY_TIMEOUT,
    nodes::{Nodes, ReplyStream},
    quorum::Collector as _,
    votes::{QuorumFailure, Votes},
};
use crate::{
    lock::{AcquireCommand, AttemptId, FencingToken, Grant, LockKey, RequestHash},
    store::{Acquired, MovedLease, NotifyMode, StoreError, Vote, VoteReply, redis::scripts::calls},
};

/// Divisor of the validity. A quorum must answer within this fraction of the validity.
const MAX_VALIDITY_FRACTION: u32 = 4;

/// Result of an election.
pub(super) enum QuorumOutcome {
    /// A quorum holds the lock for the call with the same token.
    Granted(Grant, Option<MovedLease>),
    /// No quorum holds the lock, and the grants of single nodes are cancelled.
    Failed(QuorumFailure),
}

struct VoteRound {
    votes: Votes,
    replies: ReplyStream<VoteReply>,
}

impl Nodes {
    /// Requests a grant with the same token from a quorum, within a quarter of the validity. Without
    /// `allows_new_grant` the nodes only return an existing grant. `notify` is the condition for
    /// nodes to notify this broker when the lock is free.
    pub(super) async fn acquire_on_quorum(
        &self,
        acquire: &AcquireCommand,
        allows_new_grant: bool,
        notify: NotifyMode,
    ) -> Result<QuorumOutcome, StoreError> {
        let start = Instant::now();
        let validity = acquire.options.effective_ttl(acquire.ttl).as_millis();
        let budget = (Duration::from_millis(validity) / MAX_VALIDITY_FRACTION).min(REPLY_TIMEOUT);
        let end = start + budget;
        self.wait_for_quorum(end).await?;
        let (token, soon) = match allows_new_grant {
            true => (self.next_token().await, start + budget / 2),
            false => (None, end),
        };
        let mut vote = Vote {
            token,
            max_clock_skew_ms: self.max_clock_skew_ms,
            raises: false,
            notify,
        };
        let mut round = self.run_round(acquire, vote, soon, end).await;
        let min_token = round.votes.lowest_accepted_token();
        if allows_new_grant
            && round.votes.grant().is_none()
            && let Some(token) = min_token.and_then(FencingToken::new)
        {
            vote.token = Some(token);
            vote.raises = true;
            round = self.run_round(acquire, vote, end, end).await;
        }
        let is_late = Instant::now() > end;
        let grant = round.votes.grant();
        let token = grant.as_ref().filter(|_| !is_late);
        let token = token.map(|(grant, _)| grant.fencing_token);
        let failure = self.finish(acquire, token, round);
        match grant {
            Some((grant, moved)) if !is_late => Ok(QuorumOutcome::Granted(grant, moved)),
            Some(_) => {
                let message = "a quorum took longer than a quarter of the validity";
                Err(StoreError::Unavailable(message.to_owned()))
            }
            None => failure.map(QuorumOutcome::Failed),
        }
    }

    /// Cancels an attempt at these nodes, even if the caller stops waiting.
    pub(super) fn cancel(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) {
        drop(self.send(nodes, calls::cancel(lock, request, attempt)));
    }

    /// Requests a vote from every node and collects the votes until `soon`. If there is neither a
    /// decision nor a token that a quorum accepts by then, collects votes until `end`.
    async fn run_round(
        &self,
        acquire: &AcquireCommand,
        vote: Vote,
        soon: Instant,
        end: Instant,
    ) -> VoteRound {
        // Nodes have no queues.
        let acquire = AcquireCommand {
            wait_ms: 0,
            rejoin: false,
            ..acquire.clone()
        };
        let mut replies = self.send(self.all(), calls::vote(&acquire, &vote));
        let mut votes = Votes::new(self.count());
        replies.collect_until(&mut votes, soon).await;
        if votes.lowest_accepted_token().is_none() && !votes.is_decided() {
            replies.collect_until(&mut votes, end).await;
        }
        VoteRound { votes, replies }
    }

    /// Cancels the attempt at nodes that granted another token than `token`, including nodes that
    /// answer later. Without a token, also cancels the attempt at nodes that do not answer. Returns
    /// the reason for which no quorum was reached.
    fn finish(
        &self,
        acquire: &AcquireCommand,
        token: Option<FencingToken>,
        VoteRound { votes, mut replies }: VoteRound,
    ) -> Result<QuorumFailure, StoreError> {
        let nodes = self.clone();
        let (lock, request, attempt) = (acquire.lock.clone(), acquire.request, acquire.attempt);
        nodes.cancel(votes.nodes_to_cancel(token), &lock, request, attempt);
        if votes.outstanding() > 0 {
            self.tasks.spawn(async move {
                while let Some((node, reply)) = replies.next().await {
                    let mut late_votes = Votes::new(nodes.count());
                    late_votes.add(node, reply.is_reliable, reply.outcome);
                    nodes.cancel(late_votes.nodes_to_cancel(token), &lock, request, attempt);
                }
            });
        }
        votes.into_failure()
    }
}

impl QuorumOutcome {
    /// Returns true if no call holds the lock at a quorum, because calls of several brokers each
    /// hold it at some nodes.
    pub(super) fn is_split(&self) -> bool {
        matches!(self, Self::Failed(QuorumFailure::Contended(busy)) if busy.is_split)
    }

    /// Returns the reply to a caller that does not wait.
    pub(super) fn into_reply(self, queue_length: u32) -> Acquired {
        match self {
            Self::Granted(grant, _) => Acquired::Granted(Grant {
                queue_length,
                ..grant
            }),
            Self::Failed(QuorumFailure::Rejected(rejection)) => rejection,
            Self::Failed(QuorumFailure::Contended(mut busy)) => {
                busy.contention.queue_length = queue_length;
                Acquired::Held(busy.contention)
            }
        }
    }
}
