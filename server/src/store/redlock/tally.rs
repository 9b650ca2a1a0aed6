//! The one rule for the answers of several nodes: what a quorum says is so, and nothing else is.

use crate::store::{Outcome, StoreError};

/// How many of so many nodes decide.
pub(super) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Takes in the answers of nodes, one by one.
pub(super) trait Gather<T> {
    /// The answer of a node, or that it gave none; whether it has not come back a short while ago.
    fn add(&mut self, node: usize, is_sure: bool, answer: Result<Outcome<T>, StoreError>);

    /// Whether the answers that are still to come could change nothing.
    fn is_decided(&self) -> bool;
}

/// Answers to a question that has one wanted answer, `Y`. All others are refusals, `N`.
pub(super) struct Tally<T, Y, N> {
    nodes: usize,
    read: fn(Outcome<T>) -> Result<Y, N>,
    /// Tells who refuses because it knows that the lease is over; without it all nodes are sure.
    ends: Option<fn(&N) -> bool>,
    wanted: Vec<Y>,
    /// Answers of nodes that may have forgotten.
    unsure: usize,
    /// Those of them that are wanted.
    unsure_wanted: usize,
    refusals: Vec<N>,
    silent: Vec<StoreError>,
}

/// What the nodes say together.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Together<Y, N> {
    /// A quorum gave the wanted answer.
    Wanted(Vec<Y>),
    /// No quorum ever will: so many refuse.
    Refused(Vec<N>),
}

impl<T, Y, N> Tally<T, Y, N> {
    /// Of so many nodes; `read` tells the wanted answer from refusals.
    pub(super) fn new(nodes: usize, read: fn(Outcome<T>) -> Result<Y, N>) -> Self {
        Self {
            nodes,
            read,
            ends: None,
            wanted: Vec::new(),
            unsure: 0,
            unsure_wanted: 0,
            refusals: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// A node that came back a short while ago may have an old copy of a lease that was given back
    /// since, so that somebody else may hold the lock. With its yes a lease lives only if nobody knows
    /// better, and those who may be wrong or say nothing could not have granted it by themselves.
    pub(super) fn of_life(mut self, ends: fn(&N) -> bool) -> Self {
        self.ends = Some(ends);
        self
    }

    fn has_quorum(&self) -> bool {
        let quorum = quorum(self.nodes);
        let doubtful = self.unsure + self.silent.len() + self.open();
        self.wanted.len() - self.unsure_wanted >= quorum
            || self.wanted.len() >= quorum && doubtful < quorum && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| self.refusals.iter().any(ends))
    }

    fn open(&self) -> usize {
        self.nodes - self.wanted.len() - self.refusals.len() - self.silent.len()
    }

    /// The verdict, as if nobody else answered.
    pub(super) fn together(self) -> Result<Together<Y, N>, StoreError> {
        let quorum = quorum(self.nodes);
        if self.has_quorum() {
            return Ok(Together::Wanted(self.wanted));
        }
        if self.refusals.len() >= quorum || self.wanted.len() >= quorum && self.is_over() {
            return Ok(Together::Refused(self.refusals));
        }
        let open = self.open();
        Err(no_quorum(self.nodes, open, self.silent.into_iter()))
    }
}

impl<T, Y, N> Gather<T> for Tally<T, Y, N> {
    fn add(&mut self, _node: usize, is_sure: bool, answer: Result<Outcome<T>, StoreError>) {
        let is_unsure = self.ends.is_some() && !is_sure;
        let answer = answer.map(self.read);
        self.unsure += usize::from(is_unsure && answer.is_ok());
        match answer {
            Ok(Ok(wanted)) => {
                self.unsure_wanted += usize::from(is_unsure);
                self.wanted.push(wanted);
            }
            Ok(Err(refusal)) => self.refusals.push(refusal),
            Err(error) => self.silent.push(error),
        }
    }

    fn is_decided(&self) -> bool {
        let (wanted, refusals) = (self.wanted.len(), self.refusals.len());
        let open = self.open();
        let quorum = quorum(self.nodes);
        let can_be = |count: usize| count + open >= quorum;
        self.has_quorum() || refusals >= quorum || !can_be(wanted) && !can_be(refusals)
    }
}

/// Too few nodes answered to say anything; `open` of them not at all. What so many nodes say that no
/// quorum is left is the reason; else a repeat may find other nodes.
pub(super) fn no_quorum(
    nodes: usize,
    open: usize,
    silent: impl Iterator<Item = StoreError>,
) -> StoreError {
    let needed = quorum(nodes);
    let (mut full, mut corrupt, mut why) = (Vec::new(), Vec::new(), None);
    for error in silent {
        match error {
            StoreError::Full(text) => full.push(text),
            StoreError::Corrupt(text) => corrupt.push(text),
            StoreError::Unavailable(text) | StoreError::NotNow(text) => why = Some(text),
            StoreError::Garbled(_) | StoreError::Unsupported(_) => why = Some(error.to_string()),
            StoreError::Recovering { .. } => {}
        }
    }
    let is_left = |refusals: &Vec<String>| nodes - refusals.len() >= needed;
    if !is_left(&full) {
        return StoreError::Full(full.swap_remove(0));
    }
    if !is_left(&corrupt) {
        return StoreError::Corrupt(corrupt.swap_remove(0));
    }
    let why = why.or(full.pop()).or(corrupt.pop());
    let why = why.map_or(String::new(), |why| format!(" ({why})"));
    StoreError::Unavailable(format!(
        "fewer than {needed} of {nodes} nodes agree in time, {open} have not answered{why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What five nodes say: `y` the wanted answer, a digit a refusal, `-` nothing. What comes after
    /// the decision is not needed.
    fn said(answers: &str) -> (usize, Result<Together<char, char>, StoreError>) {
        let read = |outcome: Outcome<char>| match outcome.reply {
            'y' => Ok('y'),
            other => Err(other),
        };
        let mut tally = Tally::new(5, read);
        let mut needed = 0;
        for (node, answer) in answers.chars().enumerate() {
            if tally.is_decided() {
                break;
            }
            needed += 1;
            tally.add(
                node,
                true,
                match answer {
                    '-' => Err(StoreError::Unavailable("gone".to_owned())),
                    answer => Ok(Outcome::silent(answer)),
                },
            );
        }
        assert!(tally.is_decided(), "{answers} decides");
        (needed, tally.together())
    }

    #[test]
    fn a_quorum_decides_as_soon_as_it_is_there() {
        for (answers, needed) in [("yyy--", 3), ("y-y-y", 5), ("1y1yy", 5), ("--yyy", 5)] {
            let together = said(answers);
            let wanted = Ok(Together::Wanted(vec!['y'; 3]));
            assert_eq!(together, (needed, wanted), "{answers}");
        }
    }

    #[test]
    fn a_refusal_needs_so_many_that_no_quorum_is_left() {
        for (answers, needed) in [("121yy", 3), ("1-y21", 5), ("y1y12", 5)] {
            let (after, together) = said(answers);
            assert_eq!(after, needed, "{answers}");
            let refused = matches!(&together, Ok(Together::Refused(list)) if list.len() == 3);
            assert!(refused, "{answers}: {together:?}");
        }
    }

    #[test]
    fn nodes_that_say_nothing_leave_it_open_whatever_the_others_say() {
        for answers in ["---yy", "yy1--", "y1y1-", "y11--", "-----"] {
            let (_, together) = said(answers);
            let Err(StoreError::Unavailable(why)) = together else {
                panic!("{answers}: {together:?}");
            };
            assert!(why.contains("3 of 5") && why.contains("gone"), "{why}");
        }
    }

    /// As above, of a lease: `Y` is the yes of a node that may have forgotten, `r` knows that it is
    /// over, `1` has never heard of it, `.` has not answered yet.
    fn lives(answers: &str) -> Option<bool> {
        let read = |outcome: Outcome<char>| match outcome.reply {
            'y' | 'Y' => Ok(()),
            other => Err(other),
        };
        let mut tally = Tally::new(5, read).of_life(|refusal| *refusal == 'r');
        for (node, answer) in answers.chars().enumerate() {
            let said = match answer {
                '.' => continue,
                '-' => Err(StoreError::Unavailable("gone".to_owned())),
                answer => Ok(Outcome::silent(answer)),
            };
            tally.add(node, answer != 'Y', said);
        }
        match tally.together() {
            Ok(Together::Wanted(_)) => Some(true),
            Ok(Together::Refused(_)) => Some(false),
            Err(_) => None,
        }
    }

    #[test]
    fn a_node_that_may_have_forgotten_says_yes_only_where_nobody_knows_better() {
        for answers in [
            "yyy--", "yyyrr", "Yyyyr", "Yyy1-", "Yyy11", "YYy11", "YYy1y",
        ] {
            assert_eq!(lives(answers), Some(true), "{answers}");
        }
        for answers in ["Yyyr1", "Yyyr-", "YYYr-", "rrry-", "r11yy"] {
            assert_eq!(lives(answers), Some(false), "{answers}");
        }
        for answers in ["Yyy--", "Yyy..", "YYy1-", "YYY11", "YYYYY", "yyr--"] {
            assert_eq!(lives(answers), None, "{answers}");
        }
    }

    #[test]
    fn what_so_many_say_that_no_quorum_is_left_is_the_reason() {
        let full = || StoreError::Full("full".to_owned());
        let corrupt = || StoreError::Corrupt("odd".to_owned());
        let gone = || StoreError::NotNow("gone".to_owned());
        let reason = |silent: Vec<StoreError>| no_quorum(5, 0, silent.into_iter());
        assert_eq!(reason(vec![full(), gone(), full(), full()]), full());
        assert_eq!(reason(vec![corrupt(), corrupt(), corrupt()]), corrupt());
        for silent in [
            vec![full(), gone(), full()],
            vec![corrupt(), full(), gone()],
        ] {
            let error = reason(silent);
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        }
    }
}
