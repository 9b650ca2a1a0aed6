//! Quorum decision on the cancel of an attempt.

use super::{
    merge::most_decisive,
    quorum::{Collector, no_quorum, quorum},
};
use crate::store::{Cancelled, Outcome, StoreError};

/// Replies of the nodes to a cancel. Every node receives the cancel, but a node may not yet have
/// received another broker's attempt or cancel. The reply of a quorum therefore counts.
pub(super) struct CancelQuorum {
    nodes: usize,
    replies: Vec<Cancelled>,
    errors: Vec<StoreError>,
}

impl CancelQuorum {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            nodes,
            replies: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Returns the result of the replies received so far.
    pub(super) fn result(mut self) -> Result<Cancelled, StoreError> {
        let quorum = quorum(self.nodes);
        if self.replies.len() < quorum {
            let open = self.nodes - self.replies.len() - self.errors.len();
            return Err(no_quorum(self.nodes, open, self.errors.into_iter()));
        }
        if self.kept_count() < quorum && self.replies.contains(&Cancelled::Freed) {
            self.replies.retain(|reply| *reply != Cancelled::Kept);
        }
        Ok(most_decisive(
            self.replies,
            Cancelled::Unknown,
            |reply| match reply {
                Cancelled::Unknown => 0,
                Cancelled::Dequeued => 1,
                Cancelled::Freed => 2,
                Cancelled::Kept => 3,
            },
        ))
    }

    fn kept_count(&self) -> usize {
        let kept = self
            .replies
            .iter()
            .filter(|reply| **reply == Cancelled::Kept);
        kept.count()
    }
}

impl Collector<Cancelled> for CancelQuorum {
    fn add(
        &mut self,
        _node: usize,
        _is_sure: bool,
        result: Result<Outcome<Cancelled>, StoreError>,
    ) {
        match result {
            Ok(outcome) => self.replies.push(outcome.reply),
            Err(error) => self.errors.push(error),
        }
    }

    fn is_decided(&self) -> bool {
        let (quorum, kept_count) = (quorum(self.nodes), self.kept_count());
        let is_all = self.replies.len() + self.errors.len() == self.nodes;
        is_all || kept_count >= quorum || self.replies.len() - kept_count >= quorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_has_the_result_of_a_quorum() {
        use Cancelled::{Freed, Kept, Unknown};
        for (all, needed, expected) in [
            (&[Kept, Freed, Freed, Freed, Kept][..], 4, Freed),
            (&[Freed, Kept, Kept, Freed, Freed], 5, Freed),
            (&[Kept, Kept, Kept, Freed, Freed], 3, Kept),
            (&[Kept, Freed, Freed, Kept, Kept], 5, Kept),
            (&[Kept, Freed, Unknown, Kept], 4, Freed),
            (&[Kept, Unknown, Kept], 3, Kept),
            (&[Unknown, Freed, Unknown, Kept, Kept], 3, Freed),
            (&[Unknown, Unknown, Unknown], 3, Unknown),
        ] {
            let mut collector = CancelQuorum::new(5);
            let mut added = 0;
            for reply in all {
                if !collector.is_decided() {
                    collector.add(added, true, Ok(Outcome::reply_only(*reply)));
                    added += 1;
                }
            }
            assert_eq!(
                (added, collector.result()),
                (needed, Ok(expected)),
                "{all:?}"
            );
        }
    }

    #[test]
    fn two_of_five_nodes_cannot_cancel() {
        let mut collector = CancelQuorum::new(5);
        for node in 0..5 {
            let result = match node {
                0 | 1 => Ok(Outcome::reply_only(Cancelled::Freed)),
                _ => Err(StoreError::Unavailable("gone".to_owned())),
            };
            assert!(!collector.is_decided());
            collector.add(node, true, result);
        }
        assert!(collector.is_decided());
        let result = collector.result();
        assert!(
            matches!(result, Err(StoreError::Unavailable(_))),
            "{result:?}"
        );
    }
}
