//! The acquisition of the lock at a quorum, in one or two rounds of votes. The same steps as those of
//! `redlock::quorum_acquire` in the server.

use std::collections::BTreeMap;

use leasehold_server::{
    lock::{AcquireCommand, AttemptId, FencingToken},
    store::{
        Acquired, NotifyMode, StoreError, Vote, VoteReply,
        redlock::model::{LostVote, NodeReply, VoteResult, count_votes, nodes_to_cancel},
    },
};

use super::{
    NODES,
    broker::{NodeAnswer, Received},
    node::MAX_CLOCK_SKEW_MS,
    operations::granted_lock,
    world::RedlockWorld,
};
use crate::{
    differential::steps::{StoreCommand, StoreReply},
    model::{
        broker::GrantedLock,
        keys::{MessageKey, TaskKey},
    },
};

/// Longest time for the votes of both rounds.
const REPLY_TIMEOUT_US: u64 = 900_000;
/// Divisor of the validity, within which a quorum must answer.
const MAX_VALIDITY_FRACTION: u64 = 4;

/// Longest time by which the estimate of a node's clock lags.
const CLOCK_LAG_MAX_US: u64 = 300_000;

/// An acquisition for one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Election {
    /// The attempt, which never waits at a node.
    pub acquire: AcquireCommand,
    /// Number of restarts of nodes before the first command.
    restarts: u32,
    allows_new_grant: bool,
    vote: Vote,
    soon_us: u64,
    end_us: u64,
    round: Round,
    is_second_round: bool,
}

/// The votes of one round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Round {
    /// Nodes without a reply, by the numbers of the commands.
    outstanding: BTreeMap<u16, u8>,
    votes: Vec<NodeReply<VoteReply>>,
}

/// Result of an acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elected {
    Granted(GrantedLock),
    Lost(LostVote),
    Failed(StoreError),
}

/// Effect of the time on a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RoundTimeout {
    NotDue,
    NextRound,
    Elected(Elected),
}

/// A vote that was outstanding at the end of its round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateVote {
    pub node: u8,
    /// The token that a quorum granted.
    pub token: Option<FencingToken>,
    pub acquire: AcquireCommand,
}

impl Election {
    /// Returns the numbers of the commands without a reply.
    pub fn outstanding(&self) -> impl Iterator<Item = u16> {
        self.round.outstanding.keys().copied()
    }

    fn result(&self) -> VoteResult {
        count_votes(NODES, &self.round.votes)
    }
}

impl Round {
    /// Returns true if a quorum of nodes granted the same token. Counted apart from the product.
    fn has_quorum_of_one_token(&self) -> bool {
        let tokens = self.votes.iter().filter_map(|vote| match &vote.outcome {
            Ok(outcome) => match &outcome.reply {
                VoteReply::Acquired(Acquired::Granted(grant)) => Some(grant.fencing_token),
                VoteReply::Acquired(_) | VoteReply::Behind { .. } | VoteReply::Ahead => None,
            },
            Err(_) => None,
        });
        let tokens: Vec<_> = tokens.collect();
        let count = |token| tokens.iter().filter(|other| *other == token).count();
        tokens.iter().any(|token| count(token) > NODES / 2)
    }
}

impl RedlockWorld {
    /// Starts an acquisition in the name of a task.
    pub(super) fn start_election(
        &mut self,
        broker: usize,
        key: TaskKey,
        acquire: AcquireCommand,
        allows_new_grant: bool,
    ) -> Election {
        let validity_ms = acquire.options.effective_ttl(acquire.ttl).as_millis();
        let budget_us = (validity_ms * 1_000 / MAX_VALIDITY_FRACTION).min(REPLY_TIMEOUT_US);
        let end_us = self.now_us + budget_us;
        let token = self.proposed_token(broker, acquire.attempt);
        let mut election = Election {
            acquire: AcquireCommand {
                wait_ms: 0,
                rejoin: false,
                ..acquire
            },
            restarts: self.restarts,
            allows_new_grant,
            vote: Vote {
                token: token.filter(|_| allows_new_grant),
                max_clock_skew_ms: MAX_CLOCK_SKEW_MS,
                raises: false,
                notify: NotifyMode::Never,
            },
            soon_us: match allows_new_grant {
                true => self.now_us + budget_us / 2,
                false => end_us,
            },
            end_us,
            round: Round::default(),
            is_second_round: false,
        };
        self.start_round(broker, key, &mut election);
        election
    }

    /// Handles the vote of a node, or its absence (`None`). Returns the result when there is one.
    pub(super) fn on_vote(
        &mut self,
        broker: usize,
        key: TaskKey,
        election: &mut Election,
        received: Received<'_>,
    ) -> Option<Elected> {
        let node = election.round.outstanding.remove(&received.command)?;
        election.round.votes.push(vote_of(node, received.answer));
        if !election.result().is_decided {
            return None;
        }
        self.end_round(broker, key, election)
    }

    /// Ends the wait for votes if the time of the round is up.
    pub(super) fn time_out_round(
        &mut self,
        broker: usize,
        key: TaskKey,
        election: &mut Election,
    ) -> RoundTimeout {
        let is_soon = !election.is_second_round
            && self.now_us >= election.soon_us
            && election.result().lowest_accepted_token.is_some();
        if !is_soon && self.now_us < election.end_us {
            return RoundTimeout::NotDue;
        }
        match self.end_round(broker, key, election) {
            Some(elected) => RoundTimeout::Elected(elected),
            None => RoundTimeout::NextRound,
        }
    }

    /// Handles a vote that arrives after the end of its round.
    pub(super) fn on_late_vote(
        &mut self,
        broker: usize,
        key: TaskKey,
        late: &LateVote,
        answer: Option<&NodeAnswer>,
    ) {
        let vote = vote_of(late.node, answer);
        for node in nodes_to_cancel(NODES, &[vote], late.token) {
            self.cancel_at(broker, key, node, &late.acquire);
        }
    }

    /// Cancels the attempt of an acquisition at a node.
    pub(super) fn cancel_at(
        &mut self,
        broker: usize,
        key: TaskKey,
        node: usize,
        acquire: &AcquireCommand,
    ) {
        let cancel = StoreCommand::Cancel(acquire.request, acquire.attempt);
        self.send_to_node(broker, key, node, cancel);
    }

    fn start_round(&mut self, broker: usize, key: TaskKey, election: &mut Election) {
        election.round = Round::default();
        for node in 0..NODES {
            let acquire = Box::new(election.acquire.clone());
            let vote = StoreCommand::Vote(acquire, election.vote);
            let number = self.send_to_node(broker, key, node, vote);
            let node = u8::try_from(node).expect("few nodes");
            election.round.outstanding.insert(number, node);
        }
    }

    fn end_round(
        &mut self,
        broker: usize,
        key: TaskKey,
        election: &mut Election,
    ) -> Option<Elected> {
        let result = election.result();
        if !election.is_second_round && election.allows_new_grant && result.grant.is_none() {
            let token = result.lowest_accepted_token.and_then(FencingToken::new);
            if let Some(token) = token {
                election.vote.token = Some(token);
                election.vote.raises = true;
                election.is_second_round = true;
                if !election.round.has_quorum_of_one_token() {
                    self.observations.observe_raise(election.acquire.lease_id);
                }
                self.start_round(broker, key, election);
                return None;
            }
        }
        Some(self.finish_election(broker, key, election, result))
    }

    fn finish_election(
        &mut self,
        broker: usize,
        key: TaskKey,
        election: &mut Election,
        result: VoteResult,
    ) -> Elected {
        let is_late = self.now_us > election.end_us;
        let token = result.grant.filter(|_| !is_late);
        let token = token.map(|grant| grant.fencing_token);
        for node in nodes_to_cancel(NODES, &election.round.votes, token) {
            self.cancel_at(broker, key, node, &election.acquire);
        }
        for (number, node) in std::mem::take(&mut election.round.outstanding) {
            let late = LateVote {
                node,
                token,
                acquire: election.acquire.clone(),
            };
            let message = MessageKey { task: key, number };
            self.brokers[broker].late_votes.insert(message, late);
        }
        let elected = match (result.grant, result.failure) {
            (Some(grant), _) if !is_late => {
                Elected::Granted(granted_lock(&grant, election.restarts))
            }
            (Some(_), _) => Elected::Failed(StoreError::Unavailable("late".to_owned())),
            (None, Ok(lost)) => Elected::Lost(lost),
            (None, Err(error)) => Elected::Failed(error),
        };
        self.observations.count(match &elected {
            Elected::Granted(_) if election.is_second_round => "granted in the second round",
            Elected::Granted(_) => "granted in the first round",
            Elected::Lost(LostVote::Contended { is_split: true }) => "split votes",
            Elected::Lost(LostVote::Contended { is_split: false }) => "held",
            Elected::Lost(LostVote::Rejected(_)) => "rejected",
            Elected::Failed(StoreError::Recovering { .. }) => "recovering",
            Elected::Failed(_) if is_late => "late",
            Elected::Failed(_) => "no quorum",
        });
        elected
    }

    /// Returns the median of the clocks of the nodes to which the broker has a connection, as the
    /// broker estimates them.
    fn proposed_token(&self, broker: usize, attempt: AttemptId) -> Option<FencingToken> {
        let connected = self.nodes.iter().zip(&self.brokers[broker].eras);
        let connected = connected.filter(|(node, verified)| node.era() == **verified);
        let clocks = connected.map(|(node, _)| node.clock_us(self.now_us));
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        let median = clocks.get(clocks.len() / 2)?;
        FencingToken::new(median - clock_lag_us(attempt))
    }
}

/// Returns the time by which the estimate of a clock lags when an attempt begins. It differs between
/// attempts, and seldom is long.
fn clock_lag_us(attempt: AttemptId) -> u64 {
    let letters = attempt.as_str().bytes().map(u64::from);
    let mixed = letters.fold(0, |mixed, letter| (mixed * 31 + letter) % 1_000);
    match mixed % 8 {
        0 => CLOCK_LAG_MAX_US,
        _ => mixed,
    }
}

fn vote_of(node: u8, answer: Option<&NodeAnswer>) -> NodeReply<VoteReply> {
    NodeAnswer::read(answer, node, |reply| {
        if let StoreReply::Vote(voted) = reply {
            Some(voted.clone())
        } else {
            None
        }
    })
}
