//! Quorum counting: a result is valid only if a quorum of nodes has reported it.

use std::cmp::Reverse;

use crate::store::{Outcome, StoreError};

/// Returns the number of nodes that form a quorum.
pub(super) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns the largest group of items with the same key.
pub(super) fn largest_group<T, K: PartialEq>(
    items: impl Iterator<Item = T> + Clone,
    key: impl Fn(&T) -> K,
) -> Vec<T> {
    let groups = items.clone().map(|item| {
        let same = items.clone().filter(|other| key(other) == key(&item));
        same.collect::<Vec<_>>()
    });
    groups.max_by_key(Vec::len).unwrap_or_default()
}

/// Returns the value with this rank, counted from 1, in ascending order. Returns `None` if there are
/// fewer values.
pub(super) fn nth_smallest<T: Ord>(values: impl Iterator<Item = T>, rank: usize) -> Option<T> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values.into_iter().nth(rank - 1)
}

/// Returns the value with this rank in descending order.
pub(super) fn nth_largest(values: impl Iterator<Item = u64>, rank: usize) -> Option<u64> {
    nth_smallest(values.map(Reverse), rank).map(|Reverse(value)| value)
}

/// A collector of the replies of nodes.
pub(super) trait Collector<T> {
    /// Adds the reply of a node, or the error if there is none. `is_reliable` is false for a node
    /// that came back recently and may have lost data.
    fn add(&mut self, node: usize, is_reliable: bool, result: Result<Outcome<T>, StoreError>);

    /// Returns true if outstanding replies cannot change the result.
    fn is_decided(&self) -> bool;
}

/// All replies to a command. The rules for the command decide together which result they have.
pub(super) struct Replies<T> {
    nodes: usize,
    /// Rule by which outstanding replies cannot change the result.
    is_decided: fn(&Self) -> bool,
    pub(super) received: Vec<T>,
    pub(super) errors: Vec<StoreError>,
}

/// Counter of the replies to a command with one wanted reply, `Y`. All other replies are
/// rejections, `N`.
pub(super) struct QuorumCounter<T, Y, N> {
    nodes: usize,
    classify: fn(Outcome<T>) -> Result<Y, N>,
    /// Predicate for rejections which prove that the lease has ended. If `None`, all nodes count as
    /// reliable.
    proves_end: Option<fn(&N) -> bool>,
    wanted: Vec<Y>,
    /// Number of replies of nodes that may have lost data.
    unreliable: usize,
    /// Number of wanted replies among `unreliable`.
    unreliable_wanted: usize,
    rejections: Vec<N>,
    failed: Vec<StoreError>,
}

/// Result of the replies of several nodes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QuorumResult<Y, N> {
    /// A quorum gave the wanted reply.
    Wanted(Vec<Y>),
    /// A quorum cannot be reached: too many nodes rejected the command, or a rejection proves that
    /// the lease has ended.
    Rejected(Vec<N>),
}

impl<T> Replies<T> {
    pub(super) fn new(nodes: usize, is_decided: fn(&Self) -> bool) -> Self {
        Self {
            nodes,
            is_decided,
            received: Vec::new(),
            errors: Vec::new(),
        }
    }

    pub(super) fn quorum(&self) -> usize {
        quorum(self.nodes)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.nodes - self.received.len() - self.errors.len()
    }

    /// Returns the replies, or the error if they are fewer than a quorum.
    pub(super) fn require_quorum(self) -> Result<Vec<T>, StoreError> {
        if self.received.len() >= self.quorum() {
            return Ok(self.received);
        }
        let open = self.outstanding();
        Err(no_quorum(self.nodes, open, self.errors))
    }
}

impl<T> Collector<T> for Replies<T> {
    fn add(&mut self, _node: usize, _is_reliable: bool, result: Result<Outcome<T>, StoreError>) {
        match result {
            Ok(outcome) => self.received.push(outcome.reply),
            Err(error) => self.errors.push(error),
        }
    }

    fn is_decided(&self) -> bool {
        self.outstanding() == 0 || (self.is_decided)(self)
    }
}

impl<T, Y, N> QuorumCounter<T, Y, N> {
    /// Creates a counter for `nodes` nodes. `classify` separates the wanted reply from rejections.
    pub(super) fn new(nodes: usize, classify: fn(Outcome<T>) -> Result<Y, N>) -> Self {
        Self {
            nodes,
            classify,
            proves_end: None,
            wanted: Vec::new(),
            unreliable: 0,
            unreliable_wanted: 0,
            rejections: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Makes the counter decide whether a lease is live. A node that came back recently may have an
    /// outdated copy of a lease that was released since, so that another lease may hold the lock.
    ///
    /// Wanted replies of these nodes complete a quorum under two conditions. No rejection proves
    /// that the lease has ended, and the nodes that are unreliable or silent are too few to have
    /// granted the lock on their own.
    pub(super) fn for_liveness(mut self, ends: fn(&N) -> bool) -> Self {
        self.proves_end = Some(ends);
        self
    }

    fn has_quorum(&self) -> bool {
        let quorum = quorum(self.nodes);
        let doubtful = self.unreliable + self.failed.len() + self.outstanding();
        self.wanted.len() - self.unreliable_wanted >= quorum
            || self.wanted.len() >= quorum && doubtful < quorum && !self.has_proof_of_end()
    }

    fn has_proof_of_end(&self) -> bool {
        self.proves_end
            .is_some_and(|ends| self.rejections.iter().any(ends))
    }

    fn outstanding(&self) -> usize {
        self.nodes - self.wanted.len() - self.rejections.len() - self.failed.len()
    }

    /// Returns the result of the replies received so far.
    pub(super) fn result(self) -> Result<QuorumResult<Y, N>, StoreError> {
        let quorum = quorum(self.nodes);
        if self.has_quorum() {
            return Ok(QuorumResult::Wanted(self.wanted));
        }
        if self.rejections.len() >= quorum || self.wanted.len() >= quorum && self.has_proof_of_end()
        {
            return Ok(QuorumResult::Rejected(self.rejections));
        }
        let open = self.outstanding();
        Err(no_quorum(self.nodes, open, self.failed))
    }
}

impl<T, Y, N> Collector<T> for QuorumCounter<T, Y, N> {
    fn add(&mut self, _node: usize, is_reliable: bool, result: Result<Outcome<T>, StoreError>) {
        let is_unreliable = self.proves_end.is_some() && !is_reliable;
        let result = result.map(self.classify);
        self.unreliable += usize::from(is_unreliable && result.is_ok());
        match result {
            Ok(Ok(reply)) => {
                self.unreliable_wanted += usize::from(is_unreliable);
                self.wanted.push(reply);
            }
            Ok(Err(rejection)) => self.rejections.push(rejection),
            Err(error) => self.failed.push(error),
        }
    }

    fn is_decided(&self) -> bool {
        let (wanted_count, rejection_count) = (self.wanted.len(), self.rejections.len());
        let open = self.outstanding();
        let quorum = quorum(self.nodes);
        let can_be = |count: usize| count + open >= quorum;
        self.has_quorum()
            || rejection_count >= quorum
            || !can_be(wanted_count) && !can_be(rejection_count)
    }
}

/// Returns the error for a quorum that was not reached, with `open` outstanding replies. If too
/// many nodes failed for the same reason to leave a quorum, that reason is returned. Otherwise the
/// error is retryable, because a repeat may reach other nodes.
pub(super) fn no_quorum(
    nodes: usize,
    open: usize,
    errors: impl IntoIterator<Item = StoreError>,
) -> StoreError {
    let needed = quorum(nodes);
    let (mut full, mut corrupt, mut reason) = (Vec::new(), Vec::new(), None);
    for error in errors {
        match error {
            StoreError::Full(text) => full.push(text),
            StoreError::Corrupt(text) => corrupt.push(text),
            StoreError::Unavailable(text) | StoreError::NotExecuted(text) => reason = Some(text),
            StoreError::InvalidReply(_) | StoreError::Overloaded | StoreError::Unsupported(_) => {
                reason = Some(error.to_string())
            }
            StoreError::Recovering { .. } => {}
        }
    }
    let is_left = |rejections: &Vec<String>| nodes - rejections.len() >= needed;
    if !is_left(&full) {
        return StoreError::Full(full.swap_remove(0));
    }
    if !is_left(&corrupt) {
        return StoreError::Corrupt(corrupt.swap_remove(0));
    }
    let reason = reason.or(full.pop()).or(corrupt.pop());
    let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
    StoreError::Unavailable(format!(
        "fewer than {needed} of {nodes} nodes agreed in time, {open} did not answer{reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of replies that decide, and the result. Of five nodes, `y` is the wanted
    /// reply, a digit a rejection, and `-` an error. Replies after the decision are not needed.
    fn decide(votes: &str) -> (usize, Result<QuorumResult<char, char>, StoreError>) {
        let read = |outcome: Outcome<char>| match outcome.reply {
            'y' => Ok('y'),
            rejection => Err(rejection),
        };
        let mut counter = QuorumCounter::new(5, read);
        let mut needed = 0;
        for (node, vote) in votes.chars().enumerate() {
            if counter.is_decided() {
                break;
            }
            needed += 1;
            counter.add(
                node,
                true,
                match vote {
                    '-' => Err(StoreError::Unavailable("gone".to_owned())),
                    vote => Ok(Outcome::reply_only(vote)),
                },
            );
        }
        assert!(counter.is_decided(), "{votes} decides");
        (needed, counter.result())
    }

    #[test]
    fn a_quorum_decides_as_soon_as_it_exists() {
        for (votes, needed) in [("yyy--", 3), ("y-y-y", 5), ("1y1yy", 5), ("--yyy", 5)] {
            let result = decide(votes);
            let expected = Ok(QuorumResult::Wanted(vec!['y'; 3]));
            assert_eq!(result, (needed, expected), "{votes}");
        }
    }

    #[test]
    fn a_rejection_needs_a_blocking_minority() {
        for (votes, needed) in [("121yy", 3), ("1-y21", 5), ("y1y12", 5)] {
            let (after, result) = decide(votes);
            assert_eq!(after, needed, "{votes}");
            let is_rejected =
                matches!(&result, Ok(QuorumResult::Rejected(list)) if list.len() == 3);
            assert!(is_rejected, "{votes}: {result:?}");
        }
    }

    #[test]
    fn nodes_without_a_reply_leave_the_call_undecided() {
        for votes in ["---yy", "yy1--", "y1y1-", "y11--", "-----"] {
            let (_, result) = decide(votes);
            let Err(StoreError::Unavailable(message)) = result else {
                panic!("{votes}: {result:?}");
            };
            assert!(
                message.contains("3 of 5") && message.contains("gone"),
                "{message}"
            );
        }
    }

    /// Returns true if a lease is live, or `None` if undecided. In addition to the replies above,
    /// `Y` is the wanted reply of a node that may have lost data, and `r` a rejection which proves
    /// the end of the lease. `1` is a node without a record of the lease, and `.` an outstanding
    /// reply.
    fn is_live(votes: &str) -> Option<bool> {
        let read = |outcome: Outcome<char>| match outcome.reply {
            'y' | 'Y' => Ok(()),
            rejection => Err(rejection),
        };
        let mut counter = QuorumCounter::new(5, read).for_liveness(|rejection| *rejection == 'r');
        for (node, vote) in votes.chars().enumerate() {
            let result = match vote {
                '.' => continue,
                '-' => Err(StoreError::Unavailable("gone".to_owned())),
                vote => Ok(Outcome::reply_only(vote)),
            };
            counter.add(node, vote != 'Y', result);
        }
        match counter.result() {
            Ok(QuorumResult::Wanted(_)) => Some(true),
            Ok(QuorumResult::Rejected(_)) => Some(false),
            Err(_) => None,
        }
    }

    #[test]
    fn an_unreliable_node_counts_only_without_a_contradiction() {
        for votes in [
            "yyy--", "yyyrr", "Yyyyr", "Yyy1-", "Yyy11", "YYy11", "YYy1y",
        ] {
            assert_eq!(is_live(votes), Some(true), "{votes}");
        }
        for votes in ["Yyyr1", "Yyyr-", "YYYr-", "rrry-", "r11yy"] {
            assert_eq!(is_live(votes), Some(false), "{votes}");
        }
        for votes in ["Yyy--", "Yyy..", "YYy1-", "YYY11", "YYYYY", "yyr--"] {
            assert_eq!(is_live(votes), None, "{votes}");
        }
    }

    #[test]
    fn the_error_of_a_blocking_minority_is_the_reason() {
        let full = || StoreError::Full("full".to_owned());
        let corrupt = || StoreError::Corrupt("odd".to_owned());
        let unavailable = || StoreError::NotExecuted("gone".to_owned());
        let reason = |silent: Vec<StoreError>| no_quorum(5, 0, silent);
        assert_eq!(reason(vec![full(), unavailable(), full(), full()]), full());
        assert_eq!(reason(vec![corrupt(), corrupt(), corrupt()]), corrupt());
        for silent in [
            vec![full(), unavailable(), full()],
            vec![corrupt(), full(), unavailable()],
        ] {
            let error = reason(silent);
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        }
    }
}
