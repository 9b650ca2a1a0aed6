//! How a call gets the lock from a quorum: in one round, or in two with a token that a quorum takes.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    WITHIN,
    member::Question,
    nodes::{Answers, Nodes},
    tally::Gather as _,
    votes::{Lost, Votes},
};
use crate::{
    lock::{Acquire, AttemptId, FencingToken, Grant, LockKey, RequestHash},
    store::{
        Acquired, Moved, StoreError,
        redis::{
            decode::{self, Voted},
            scripts::{Tells, Verb, Vote},
        },
    },
};

/// The part of a validity that may pass before a quorum has answered.
const PART: u32 = 4;

/// What is asked of the nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wants {
    /// A new grant; else only what the request has.
    pub(super) new: bool,
    /// When nodes tell this broker that the lock is free.
    pub(super) tells: Tells,
}

/// The end of an election.
pub(super) enum Elected {
    /// A quorum holds the lock for the call with one token.
    Granted(Grant, Option<Moved>),
    /// None does, and what single nodes granted is taken back.
    Lost(Lost),
}

struct Round {
    votes: Votes,
    answers: Answers<Voted>,
}

impl Nodes {
    /// Has a quorum grant the lock with one and the same token, within a quarter of its validity.
    pub(super) async fn elect(
        &self,
        acquire: &Acquire,
        wants: Wants,
    ) -> Result<Elected, StoreError> {
        let start = Instant::now();
        let validity = acquire.terms.cut(acquire.ttl).as_millis();
        let budget = (Duration::from_millis(validity) / PART).min(WITHIN);
        let end = start + budget;
        self.ready(end).await?;
        let mut vote = Vote {
            token: match wants.new {
                true => self.token().await,
                false => None,
            },
            apart_max_ms: self.apart_max_ms,
            raises: false,
            tells: wants.tells,
        };
        let soon = match wants.new {
            true => start + budget / 2,
            false => end,
        };
        let mut rounds = vec![self.round(acquire, vote, (soon, end)).await];
        let first = &rounds[0].votes;
        let least = first
            .least()
            .filter(|_| wants.new && first.grant().is_none());
        if let Some(token) = least.and_then(FencingToken::new) {
            vote.token = Some(token);
            vote.raises = true;
            rounds.push(self.round(acquire, vote, (end, end)).await);
        }
        let is_late = Instant::now() > end;
        let grant = rounds.iter().rev().find_map(|round| round.votes.grant());
        let token = grant.as_ref().filter(|_| !is_late);
        let token = token.map(|(grant, _)| grant.fencing_token);
        let last = rounds.pop().map(|round| self.finish(acquire, token, round));
        match (grant, last) {
            (Some((grant, moved)), _) if !is_late => {
                Ok(Elected::Granted(grant, moved.into_iter().next()))
            }
            (None, Some(lost)) => lost.map(Elected::Lost),
            (Some(_), _) | (None, None) => {
                let why = "a quorum took longer than a quarter of the validity";
                Err(StoreError::Unavailable(why.to_owned()))
            }
        }
    }

    /// Takes an attempt back at these nodes, whatever becomes of the caller.
    pub(super) fn take_back(
        &self,
        nodes: Vec<usize>,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) {
        if nodes.is_empty() {
            return;
        }
        let lock = lock.clone();
        let cancel = Question::new(Verb::Cancel, decode::cancelled, move |preamble| {
            preamble.cancel(&lock, request, attempt)
        });
        drop(self.ask_some(nodes, &cancel));
    }

    /// The same at all.
    pub(super) fn take_back_everywhere(
        &self,
        lock: &LockKey,
        request: RequestHash,
        attempt: AttemptId,
    ) {
        self.take_back((0..self.count()).collect(), lock, request, attempt);
    }

    /// Asks all nodes for one vote. As soon as it is known that another token would do it waits for
    /// a quorum of this one only until `soon`.
    async fn round(&self, acquire: &Acquire, vote: Vote, (soon, end): (Instant, Instant)) -> Round {
        // Nodes have no lines.
        let asked = Acquire {
            wait_ms: 0,
            rejoin: false,
            ..acquire.clone()
        };
        let question = Question::new(Verb::Acquire, decode::voted, move |preamble| {
            preamble.vote(&asked, &vote)
        });
        let mut answers = self.ask(&question);
        let mut votes = Votes::new(self.count());
        self.gather(&mut answers, &mut votes, soon).await;
        if votes.least().is_none() && !votes.is_decided() {
            self.gather(&mut answers, &mut votes, end).await;
        }
        Round { votes, answers }
    }

    /// Takes the attempt back at nodes that granted it another token than this one, now or when they
    /// answer; where there was none, also at those that do not answer. Says why there was none.
    fn finish(
        &self,
        acquire: &Acquire,
        token: Option<FencingToken>,
        Round { votes, answers }: Round,
    ) -> Result<Lost, StoreError> {
        let nodes = self.clone();
        let (lock, request, attempt) = (acquire.lock.clone(), acquire.request, acquire.attempt);
        let open = votes.open();
        nodes.take_back(votes.holding_but(token), &lock, request, attempt);
        if open > 0 {
            self.tasks().spawn(async move {
                let mut answers = answers;
                while let Some((node, said)) = answers.next().await {
                    let mut late = Votes::new(nodes.count());
                    late.add(node, said.is_sure, said.answer);
                    nodes.take_back(late.holding_but(token), &lock, request, attempt);
                }
            });
        }
        votes.lost()
    }
}

impl Elected {
    /// Nobody has the lock: calls of several brokers have parts of it.
    pub(super) fn is_split(&self) -> bool {
        match self {
            Self::Lost(Lost::Busy(busy)) => busy.is_split,
            Self::Lost(Lost::Refused(_)) | Self::Granted(..) => false,
        }
    }

    /// What a caller is told that does not wait.
    pub(super) fn told(self, queue_length: u32) -> Acquired {
        match self {
            Self::Granted(grant, _) => Acquired::Granted(Grant {
                queue_length,
                ..grant
            }),
            Self::Lost(Lost::Refused(refused)) => refused,
            Self::Lost(Lost::Busy(mut busy)) => {
                busy.contention.queue_length = queue_length;
                Acquired::Held(busy.contention)
            }
        }
    }
}
