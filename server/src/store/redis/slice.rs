//! The keys that one step of a scan has given, on their way into a list.
//!
//! A list may be full in the midst of them. The same step is then asked for again later, and may give
//! other keys by then: so it is noted which of them were listed, not how many.

use crate::{
    lock::{ArgumentsHash, Filter, LockKey, LockState},
    store::Scan,
};

/// Locks that are looked at together.
const AT_ONCE: usize = 32;
/// What was listed is noted of so many. More come only by keys that vanish.
const NOTED_MAX: usize = 128;

/// The keys of one step of a scan.
pub(in crate::store) struct Slice {
    scan: Scan,
    next_at: u64,
    /// Not looked at yet.
    left: Vec<LockKey>,
    /// Of these keys, what was listed before.
    met: Vec<ArgumentsHash>,
    locks: Vec<(LockKey, LockState)>,
    most: usize,
}

impl Slice {
    /// What a step from `scan.at` has given: keys, perhaps some twice, and where to go on.
    pub(in crate::store) fn new(
        scan: Scan,
        (next_at, mut keys): (u64, Vec<LockKey>),
        most: usize,
    ) -> Self {
        keys.sort_unstable();
        keys.dedup();
        let (met, left): (Vec<_>, _) = keys
            .into_iter()
            .partition(|lock| scan.listed.contains(&note(lock)));
        Self {
            met: met.iter().map(note).collect(),
            scan,
            next_at,
            left,
            locks: Vec::new(),
            most,
        }
    }

    /// The next locks to look at; none when the list is full or the step is done.
    pub(in crate::store) fn next(&self) -> &[LockKey] {
        match self.locks.len() < self.most {
            true => &self.left[..self.left.len().min(AT_ONCE)],
            false => &[],
        }
    }

    /// Takes in what was seen of them.
    pub(in crate::store) fn add(&mut self, states: Vec<Option<LockState>>, filter: &Filter) {
        let mut taken = 0;
        for (lock, state) in self.left.iter().zip(states) {
            if self.locks.len() == self.most {
                break;
            }
            let state = state.filter(|state| filter.shows(state));
            self.locks.extend(state.map(|state| (lock.clone(), state)));
            taken += 1;
        }
        self.left.drain(..taken);
    }

    /// What was listed, and where to go on; `None`: the server was scanned to its end.
    pub(in crate::store) fn end(self) -> (Vec<(LockKey, LockState)>, Option<Scan>) {
        let Self {
            mut scan, next_at, ..
        } = self;
        if self.left.is_empty() {
            scan.listed.retain(|listed| !self.met.contains(listed));
            scan.at = next_at;
        } else {
            scan.listed
                .extend(self.locks.iter().map(|(lock, _)| note(lock)));
            let old = scan.listed.len().saturating_sub(NOTED_MAX);
            scan.listed.drain(..old);
        }
        let is_over = self.left.is_empty() && next_at == 0;
        (self.locks, (!is_over).then_some(scan))
    }
}

/// The same at every broker.
fn note(lock: &LockKey) -> ArgumentsHash {
    ArgumentsHash::of(&[lock.namespace().as_bytes(), lock.name().as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{LockName, Namespace};

    /// Locks called by the letters.
    fn locks(names: &str) -> Vec<LockKey> {
        let namespace = Namespace::parse("").expect("the default");
        let name = |name: char| LockName::parse(&name.to_string()).expect("a legal name");
        let lock = |letter| LockKey::new(namespace.clone(), name(letter));
        names.chars().map(lock).collect()
    }

    /// A step that gives these keys, all held; the names that it lists, and where it goes on.
    fn step(scan: Scan, keys: &str, next_at: u64, most: usize) -> (String, Option<Scan>) {
        let mut slice = Slice::new(scan, (next_at, locks(keys)), most);
        loop {
            let count = slice.next().len();
            if count == 0 {
                break;
            }
            let held = LockState {
                holders: Vec::new(),
                holder_count: 1,
                waiters: Vec::new(),
                queue_length: 0,
                closed_ms: 0,
                last_fencing_token: 1,
            };
            slice.add(vec![Some(held); count], &Filter::default());
        }
        let (listed, next) = slice.end();
        (listed.iter().map(|(lock, _)| lock.name()).collect(), next)
    }

    #[test]
    fn what_a_full_list_leaves_comes_when_the_step_is_asked_again() {
        let (listed, next) = step(Scan::default(), "dacbb", 9, 2);
        assert_eq!(listed, "ab");
        let next = next.expect("more");
        assert_eq!((next.at, next.listed.len()), (0, 2));
        let (listed, next) = step(next, "abcd", 9, 5);
        let next = next.expect("more");
        assert_eq!((listed.as_str(), next.at), ("cd", 9));
        assert_eq!(next.listed, []);
        assert_eq!(step(next, "e", 0, 1), ("e".to_owned(), None));
    }

    #[test]
    fn a_step_that_gives_other_keys_by_then_loses_none_and_repeats_none() {
        let (_, next) = step(Scan::default(), "mnop", 9, 2);
        // It reaches farther, and gives a key in front of those that were listed.
        let (listed, far) = step(next.clone().expect("more"), "anoxz", 9, 5);
        assert_eq!((listed.as_str(), far.is_some()), ("aoxz", true));
        // It reaches less far: one that was listed comes with the next step.
        let (listed, near) = step(next.expect("more"), "m", 4, 5);
        assert_eq!(listed, "");
        assert_eq!(step(near.expect("more"), "nopq", 0, 5).0, "opq");
    }
}
