//! The answers of several nodes to one proposal: who holds the lock, or which token would do.

use super::{
    tally::{Gather, no_quorum, quorum},
    verdicts::one_grant,
    vote::{UNKNOWN_MS, Vote},
};
use crate::{
    lock::{Contention, FencingToken, Grant, Holder},
    store::{Acquired, Moved, Outcome, StoreError, redis::decode::Voted},
};

/// The votes of all nodes.
pub(super) struct Votes(Vec<Option<Vote>>);

/// Why no quorum holds the lock for a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Not now.
    Busy(Busy),
    /// Not at all: so many nodes refuse it.
    Refused(Acquired),
}

/// A lock that is not to be had now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy {
    /// Who has it.
    pub(super) contention: Contention,
    /// Nobody has a quorum: several calls have parts of it.
    pub(super) is_split: bool,
    /// When a quorum may be free by itself.
    pub(super) free_in_ms: u64,
}

impl Votes {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| None).collect())
    }

    /// What a quorum granted with one and the same token.
    pub(super) fn grant(&self) -> Option<(Grant, Vec<Moved>)> {
        let token = self.yes().map(|(grant, _)| grant.fencing_token);
        let token = token.max_by_key(|token| self.count(token.get()))?;
        let same = self.yes().filter(|(grant, _)| grant.fencing_token == token);
        let grants: Vec<_> = same.clone().map(|(grant, _)| *grant).collect();
        let moved = same.filter_map(|(_, moved)| *moved).collect();
        let has_quorum = grants.len() >= quorum(self.0.len());
        Some((one_grant(&grants).filter(|_| has_quorum)?, moved))
    }

    /// The least token that a quorum would take; `None`: there is none.
    pub(super) fn least(&self) -> Option<u64> {
        let mut least: Vec<_> = self.0.iter().flatten().filter_map(Vote::least).collect();
        least.sort_unstable();
        least.get(quorum(self.0.len()) - 1).copied()
    }

    /// How many have not answered yet.
    pub(super) fn open(&self) -> usize {
        self.0.iter().filter(|vote| vote.is_none()).count()
    }

    /// Nodes that granted another token than this one; without one, also those that may have granted
    /// any. Those that have not answered yet are not among them.
    pub(super) fn holding_but(&self, token: Option<FencingToken>) -> Vec<usize> {
        let stays = |vote: &Option<Vote>| match vote {
            Some(Vote::Yes(grant, _)) => Some(grant.fencing_token) == token,
            Some(Vote::Silent(_)) => token.is_some(),
            Some(Vote::Behind(_) | Vote::Held(_) | Vote::Recovering(_) | Vote::Refused(_))
            | None => true,
        };
        let nodes = self.0.iter().enumerate();
        let holding = nodes.filter(|(_, vote)| !stays(vote));
        holding.map(|(node, _)| node).collect()
    }

    /// Why there is no quorum.
    pub(super) fn lost(self) -> Result<Lost, StoreError> {
        let nodes = self.0.len();
        let quorum = quorum(nodes);
        let count = |is: fn(&Vote) -> bool| self.0.iter().flatten().filter(|vote| is(vote)).count();
        let refused = count(|vote| matches!(vote, Vote::Refused(_)));
        if refused >= quorum {
            let refusals = self.0.into_iter().flatten().filter_map(Vote::refusal);
            let strongest = refusals.max_by_key(strength).unwrap_or(Acquired::Ended);
            return Ok(Lost::Refused(strongest));
        }
        let voting = count(|vote| vote.least().is_some() || matches!(vote, Vote::Held(_)));
        let recovering = count(|vote| matches!(vote, Vote::Recovering(_)));
        if voting < quorum && voting + recovering >= quorum {
            return Err(self.recovering(quorum - voting));
        }
        let contended = count(|vote| matches!(vote, Vote::Behind(_) | Vote::Held(_)));
        if voting + refused < quorum || contended == 0 {
            let open = self.open();
            let silent = self.0.into_iter().flatten().filter_map(Vote::silence);
            return Err(no_quorum(nodes, open, silent));
        }
        Ok(Lost::Busy(self.busy()))
    }

    fn busy(&self) -> Busy {
        let held: Vec<_> = self.0.iter().flatten().filter_map(Vote::held).collect();
        let holders = || {
            held.iter()
                .filter_map(|contention| contention.holders.first())
        };
        let same = |one: &Holder| {
            let is_same = |other: &&Holder| other.lease_id == one.lease_id;
            holders().filter(is_same).count()
        };
        let most = holders().max_by_key(|holder| same(holder));
        let most_nodes = most.map_or(0, same);
        let closed_ms = held.iter().map(|contention| contention.closed_ms).max();
        let mut free: Vec<_> = self.0.iter().flatten().map(Vote::free_in_ms).collect();
        free.sort_unstable();
        let free_in_ms = free.get(quorum(self.0.len()) - 1).copied();
        let free_in_ms = free_in_ms.unwrap_or(UNKNOWN_MS);
        let is_split = most_nodes < quorum(self.0.len()) && closed_ms.unwrap_or(0) == 0;
        Busy {
            contention: Contention {
                holders: most.filter(|_| !is_split).cloned().into_iter().collect(),
                queue_length: 0,
                closed_ms: closed_ms.unwrap_or(0),
            },
            is_split,
            free_in_ms,
        }
    }

    /// Until so many more nodes may vote.
    fn recovering(&self, more: usize) -> StoreError {
        let mut left: Vec<_> = self
            .0
            .iter()
            .flatten()
            .filter_map(Vote::recovers_in)
            .collect();
        left.sort_unstable();
        let retry_after_ms = left.get(more - 1).copied().unwrap_or(UNKNOWN_MS);
        StoreError::Recovering { retry_after_ms }
    }

    fn yes(&self) -> impl Iterator<Item = (&Grant, &Option<Moved>)> + Clone {
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
            .yes()
            .filter(|(grant, _)| grant.fencing_token.get() == token);
        same.count()
    }
}

impl Gather<Voted> for Votes {
    fn add(&mut self, node: usize, _is_sure: bool, answer: Result<Outcome<Voted>, StoreError>) {
        self.0[node] = Some(Vote::of(answer));
    }

    fn is_decided(&self) -> bool {
        let open = self.open();
        let tokens = self.yes().map(|(grant, _)| grant.fencing_token.get());
        let most = tokens.map(|token| self.count(token)).max().unwrap_or(0);
        most >= quorum(self.0.len()) || most + open < quorum(self.0.len())
    }
}

/// Which of several refusals is told: the one that the fewest nodes can know of.
fn strength(refused: &Acquired) -> u8 {
    match refused {
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

    fn granted(token: u64) -> Voted {
        Voted::Acquired(Acquired::Granted(Grant {
            fencing_token: FencingToken::new(token).expect("a token"),
            mode: Mode::Exclusive,
            ttl: Ttl::from_stored(1_000 + token),
            acquired_ms: 0,
            hold_count: 1,
            queue_length: 0,
            disconnect_grace_ms: None,
        }))
    }

    fn held_by(lease: char, remaining_ms: u64) -> Voted {
        let holder = Holder {
            lease_id: LeaseToken::from_caller(lease.to_string()).lease_id(""),
            owner: Owner::default(),
            mode: Mode::Exclusive,
            fencing_token: FencingToken::new(7).expect("a token"),
            since_ms: 0,
            remaining_ms,
        };
        Voted::Acquired(Acquired::Held(Contention {
            holders: vec![holder],
            queue_length: 0,
            closed_ms: 0,
        }))
    }

    /// A digit is the token of a grant, `<` a free node that takes 8 or more, `a` and `b` are others'
    /// leases, `!` a lease that is over, `?` a node that recovers, `-` one without an answer, `.` one
    /// whose answer is still to come.
    fn votes(text: &str) -> Votes {
        let mut votes = Votes::new(text.len());
        for (node, vote) in text.chars().enumerate() {
            let answer = match vote {
                '.' => continue,
                '<' => Ok(Voted::Behind { least: 8 }),
                '!' => Ok(Voted::Acquired(Acquired::Ended)),
                '?' => {
                    let retry_after_ms = 100 * (node as u64 + 1);
                    Err(StoreError::Recovering { retry_after_ms })
                }
                '-' => Err(StoreError::Unavailable("gone".to_owned())),
                'a' | 'b' => Ok(held_by(vote, 100 * (node as u64 + 1))),
                token => Ok(granted(u64::from(token as u32 - '0' as u32))),
            };
            votes.add(node, true, answer.map(Outcome::silent));
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
    fn the_least_token_for_a_second_round_is_that_of_a_quorum() {
        for (text, least) in [
            ("55<<<", Some(8)),
            ("5533-", Some(5)),
            ("553<-", Some(5)),
            ("33<<-", Some(8)),
            ("55a--", None),
            ("5?!a-", None),
        ] {
            assert_eq!(votes(text).least(), least, "{text}");
        }
    }

    #[test]
    fn what_may_hold_the_lock_is_taken_back_and_nothing_else() {
        assert_eq!(votes("5<a-.").holding_but(None), [0, 3]);
        assert_eq!(votes("5!?--").holding_but(None), [0, 3, 4]);
        let five = FencingToken::new(5);
        assert_eq!(votes("55735.").holding_but(five), [2, 3]);
    }

    #[test]
    fn a_lost_election_says_what_a_quorum_can_say() {
        let busy = |text: &str| match votes(text).lost() {
            Ok(Lost::Busy(busy)) => busy,
            other => panic!("{text}: {other:?}"),
        };
        assert!(!busy("aaa5-").is_split);
        assert_eq!(busy("aaa5-").free_in_ms, 200);
        assert!(busy("aabb5").is_split && busy("aa<<-").is_split);
        assert!(busy("aabb5").contention.holders.is_empty());
        for text in ["55---", "5a---", "55!!-", "-----"] {
            let lost = votes(text).lost();
            let unavailable = matches!(lost, Err(StoreError::Unavailable(_)));
            assert!(unavailable, "{text}: {lost:?}");
        }
        for (text, retry_after_ms) in [("5a???", 300), ("?????", 300), ("55?a-", 0)] {
            let lost = votes(text).lost();
            if retry_after_ms == 0 {
                assert!(matches!(lost, Ok(Lost::Busy(_))), "{text}: {lost:?}");
            } else {
                assert_eq!(
                    lost,
                    Err(StoreError::Recovering { retry_after_ms }),
                    "{text}"
                );
            }
        }
        assert_eq!(votes("!!!55").lost(), Ok(Lost::Refused(Acquired::Ended)));
        assert!(matches!(votes("!!a5-").lost(), Ok(Lost::Busy(_))));
    }
}
