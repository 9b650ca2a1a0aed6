//! Ends of leases as several nodes tell them: told on once, when a quorum of nodes has ended the lease.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::tally::quorum;
use crate::{
    lock::{LeaseId, LockKey},
    store::{Ending, Event, Listener},
};

/// Ends of which some nodes have told, the newest first.
const KNOWN_MAX: usize = 4_096;

/// What this broker's commands have found at the nodes. A node that alone knows of a lease, or that
/// missed a renewal or a release, says nothing about it.
pub(super) struct Endings {
    nodes: usize,
    key_prefix: String,
    listener: Arc<OnceLock<Listener>>,
    known: Mutex<VecDeque<Known>>,
}

struct Known {
    lease_id: LeaseId,
    fencing_token: u64,
    /// By so many nodes.
    told: usize,
}

impl Endings {
    pub(super) fn new(nodes: usize, key_prefix: String, listener: Arc<OnceLock<Listener>>) -> Self {
        Self {
            nodes,
            key_prefix,
            listener,
            known: Mutex::default(),
        }
    }

    /// A node has ended these leases in the record under `key`.
    pub(super) fn told(&self, key: &str, endings: Vec<Ending>) {
        let lock = key.strip_prefix(&self.key_prefix).map(LockKey::decode);
        let (Some(Some(lock)), Some(listener)) = (lock, self.listener.get()) else {
            return;
        };
        for ending in endings {
            if self.count(&ending) == quorum(self.nodes) {
                listener(Event::Ended(lock.clone(), ending));
            }
        }
    }

    /// How many nodes have told of this one.
    fn count(&self, ending: &Ending) -> usize {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = (ending.lease_id, ending.fencing_token);
        let is_wanted = |known: &&mut Known| (known.lease_id, known.fencing_token) == wanted;
        if let Some(known) = known.iter_mut().find(is_wanted) {
            known.told += 1;
            return known.told;
        }
        known.truncate(KNOWN_MAX - 1);
        known.push_front(Known {
            lease_id: ending.lease_id,
            fencing_token: ending.fencing_token,
            told: 1,
        });
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::{LockName, Namespace, Owner},
        store::EndingKind,
    };

    fn ending(fencing_token: u64) -> Ending {
        Ending {
            lease_id: LeaseId::parse("aaaaaaaaaaaaaaaaaaaaaaaaaa").expect("a lease"),
            owner: Owner::default(),
            fencing_token,
            held_ms: 1_000,
            kind: EndingKind::Expired,
            reason: String::new(),
        }
    }

    #[test]
    fn an_end_is_told_once_when_most_nodes_have_told_of_it() {
        let (name, namespace) = (LockName::parse("a"), Namespace::parse(""));
        let lock = LockKey::new(namespace.expect("a namespace"), name.expect("a name"));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&heard);
        let listener: Listener = Arc::new(move |event| {
            ear.lock().expect("not poisoned").push(event);
        });
        let listener = Arc::new(OnceLock::from(listener));
        let endings = Endings::new(3, "lh:".to_owned(), listener);
        let key = format!("lh:{}", lock.encoded());
        // One that a single node knows of, and one that all do.
        endings.told(&key, vec![ending(1)]);
        for told in [0, 1, 1] {
            endings.told(&key, vec![ending(2)]);
            let heard = heard.lock().expect("not poisoned");
            let all: Vec<_> = heard.iter().collect();
            assert_eq!(all.len(), told, "{all:?}");
        }
        let heard = heard.lock().expect("not poisoned");
        assert_eq!(*heard, [Event::Ended(lock, ending(2))]);
    }
}
