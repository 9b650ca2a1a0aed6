//! What nodes say together of a call that is taken back.

use super::{
    tally::{Gather, no_quorum, quorum},
    verdicts::strongest,
};
use crate::store::{Cancelled, Outcome, StoreError};

/// What nodes say of a call that is taken back. Each is asked to the end, and each may yet have to hear
/// another broker that makes or takes back another attempt: what a quorum says counts.
pub(super) struct TakenBack {
    nodes: usize,
    said: Vec<Cancelled>,
    silent: Vec<StoreError>,
}

impl TakenBack {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            said: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// The verdict, as if nobody else answered.
    pub(super) fn together(mut self) -> Result<Cancelled, StoreError> {
        let quorum = quorum(self.nodes);
        if self.said.len() < quorum {
            let open = self.nodes - self.said.len() - self.silent.len();
            return Err(no_quorum(self.nodes, open, self.silent.into_iter()));
        }
        if self.kept() < quorum && self.said.contains(&Cancelled::Freed) {
            self.said.retain(|one| *one != Cancelled::Kept);
        }
        Ok(strongest(self.said, Cancelled::Unknown, |one| match one {
            Cancelled::Unknown => 0,
            Cancelled::Dequeued => 1,
            Cancelled::Freed => 2,
            Cancelled::Kept => 3,
        }))
    }

    fn kept(&self) -> usize {
        let kept = self.said.iter().filter(|one| **one == Cancelled::Kept);
        kept.count()
    }
}

impl Gather<Cancelled> for TakenBack {
    fn add(
        &mut self,
        _node: usize,
        _is_sure: bool,
        answer: Result<Outcome<Cancelled>, StoreError>,
    ) {
        match answer {
            Ok(outcome) => self.said.push(outcome.reply),
            Err(error) => self.silent.push(error),
        }
    }

    fn is_decided(&self) -> bool {
        let (quorum, kept) = (quorum(self.nodes), self.kept());
        let is_all = self.said.len() + self.silent.len() == self.nodes;
        is_all || kept >= quorum || self.said.len() - kept >= quorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_taken_back_as_a_quorum_says_whoever_is_late() {
        use Cancelled::{Freed, Kept, Unknown};
        for (all, needed, together) in [
            (&[Kept, Freed, Freed, Freed, Kept][..], 4, Freed),
            (&[Freed, Kept, Kept, Freed, Freed], 5, Freed),
            (&[Kept, Kept, Kept, Freed, Freed], 3, Kept),
            (&[Kept, Freed, Freed, Kept, Kept], 5, Kept),
            (&[Kept, Freed, Unknown, Kept], 4, Freed),
            (&[Kept, Unknown, Kept], 3, Kept),
            (&[Unknown, Freed, Unknown, Kept, Kept], 3, Freed),
            (&[Unknown, Unknown, Unknown], 3, Unknown),
        ] {
            let mut taken_back = TakenBack::new(5);
            let mut said = 0;
            for one in all {
                if !taken_back.is_decided() {
                    taken_back.add(said, true, Ok(Outcome::silent(*one)));
                    said += 1;
                }
            }
            assert_eq!(
                (said, taken_back.together()),
                (needed, Ok(together)),
                "{all:?}"
            );
        }
    }

    #[test]
    fn two_of_five_take_nothing_back() {
        let mut taken_back = TakenBack::new(5);
        for node in 0..5 {
            let answer = match node {
                0 | 1 => Ok(Outcome::silent(Cancelled::Freed)),
                _ => Err(StoreError::Unavailable("gone".to_owned())),
            };
            assert!(!taken_back.is_decided());
            taken_back.add(node, true, answer);
        }
        assert!(taken_back.is_decided());
        let together = taken_back.together();
        assert!(
            matches!(together, Err(StoreError::Unavailable(_))),
            "{together:?}"
        );
    }
}
