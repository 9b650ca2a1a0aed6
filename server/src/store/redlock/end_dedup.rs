//! Deduplication of lease ends: an end is reported once, when a quorum of nodes has reported it.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use super::quorum::quorum;
use crate::{
    lock::{LeaseId, LockKey},
    store::{Event, LeaseEndEvent, Listener},
};

/// Maximum number of ends for which reports are counted, the newest first.
const REPORTED_MAX: usize = 4_096;

/// Counter of the lease ends that this broker's commands found at the nodes. An end found by a
/// minority is not reported: the nodes may be the only ones with the lease, or may have missed a
/// renewal or a release.
pub(super) struct EndDeduplicator {
    nodes: usize,
    listener: Arc<OnceLock<Listener>>,
    reported: Mutex<VecDeque<ReportedEnd>>,
}

struct ReportedEnd {
    lease_id: LeaseId,
    fencing_token: u64,
    /// Number of nodes that have reported the end.
    report_count: usize,
}

impl EndDeduplicator {
    pub(super) fn new(nodes: usize, listener: Arc<OnceLock<Listener>>) -> Self {
        Self {
            nodes,
            listener,
            reported: Mutex::default(),
        }
    }

    /// Counts the ends that a node has found in the record of the lock, and sends those that reach a
    /// quorum to the listener.
    pub(super) fn report(&self, lock: &LockKey, endings: Vec<LeaseEndEvent>) {
        let Some(listener) = self.listener.get() else {
            return;
        };
        for ending in endings {
            if self.count_report(&ending) == quorum(self.nodes) {
                listener(Event::Ended(lock.clone(), ending));
            }
        }
    }

    /// Counts a report, and returns the number of nodes that have reported the end.
    fn count_report(&self, ending: &LeaseEndEvent) -> usize {
        let mut reported = self.reported.lock();
        let identity = (ending.lease_id, ending.fencing_token);
        let is_same = |end: &&mut ReportedEnd| (end.lease_id, end.fencing_token) == identity;
        if let Some(end) = reported.iter_mut().find(is_same) {
            end.report_count += 1;
            return end.report_count;
        }
        reported.truncate(REPORTED_MAX - 1);
        reported.push_front(ReportedEnd {
            lease_id: ending.lease_id,
            fencing_token: ending.fencing_token,
            report_count: 1,
        });
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::{LockName, Namespace, Owner},
        store::LeaseEndCause,
    };

    fn ending(fencing_token: u64) -> LeaseEndEvent {
        LeaseEndEvent {
            lease_id: LeaseId::parse("aaaaaaaaaaaaaaaaaaaaaaaaaa").expect("a lease"),
            owner: Owner::default(),
            fencing_token,
            held_ms: 1_000,
            kind: LeaseEndCause::Expired,
            reason: String::new(),
        }
    }

    #[test]
    fn an_end_is_reported_once_when_a_quorum_has_reported_it() {
        let (name, namespace) = (LockName::parse("a"), Namespace::parse(""));
        let lock = LockKey::new(namespace.expect("a namespace"), name.expect("a name"));
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let listener: Listener = Arc::new(move |event| {
            sink.lock().push(event);
        });
        let listener = Arc::new(OnceLock::from(listener));
        let endings = EndDeduplicator::new(3, listener);
        // The first end is reported by a single node, the second one by all nodes.
        endings.report(&lock, vec![ending(1)]);
        for expected in [0, 1, 1] {
            endings.report(&lock, vec![ending(2)]);
            let events = events.lock();
            let all: Vec<_> = events.iter().collect();
            assert_eq!(all.len(), expected, "{all:?}");
        }
        let events = events.lock();
        assert_eq!(*events, [Event::Ended(lock, ending(2))]);
    }
}
