//! The keys of one SCAN step, from which a page of a listing is filled.
//!
//! A page may fill up in the middle of a SCAN step. The step is then repeated and may return
//! different keys, so the cursor records which keys were listed rather than how many.

use crate::{
    lock::{ArgumentsHash, Filter, LockKey, LockState},
    store::Scan,
};

/// Number of locks that are read together.
const READ_TOGETHER: usize = 32;
/// Maximum number of listed keys that a cursor records. More keys occur only if listed keys
/// disappear.
const RECORDED_KEYS_MAX: usize = 128;

/// The keys of one step of a scan.
pub(in crate::store) struct ScanBatch {
    scan: Scan,
    next_at: u64,
    /// Keys that have not been read yet.
    remaining: Vec<LockKey>,
    /// Keys of this step that an earlier page listed.
    already_listed: Vec<ArgumentsHash>,
    locks: Vec<(LockKey, LockState)>,
    page_max: usize,
}

impl ScanBatch {
    /// Creates a slice from the reply of a step at `scan.at`: the next cursor and keys, some of
    /// which may be duplicates.
    pub(in crate::store) fn new(
        scan: Scan,
        next_at: u64,
        mut keys: Vec<LockKey>,
        page_max: usize,
    ) -> Self {
        keys.sort_unstable();
        keys.dedup();
        let (met, remaining): (Vec<_>, _) = keys
            .into_iter()
            .partition(|lock| scan.listed.contains(&key_hash(lock)));
        Self {
            already_listed: met.iter().map(key_hash).collect(),
            scan,
            next_at,
            remaining,
            locks: Vec::new(),
            page_max,
        }
    }

    /// Returns the next locks to read. Empty if the page is full or the step is complete.
    pub(in crate::store) fn next_locks(&self) -> &[LockKey] {
        match self.locks.len() < self.page_max {
            true => &self.remaining[..self.remaining.len().min(READ_TOGETHER)],
            false => &[],
        }
    }

    /// Adds the states of these locks to the page.
    pub(in crate::store) fn add(&mut self, states: Vec<Option<LockState>>, filter: &Filter) {
        let mut count = 0;
        for (lock, state) in self.remaining.iter().zip(states) {
            if self.locks.len() == self.page_max {
                break;
            }
            let state = state.filter(|state| filter.matches_state(state));
            self.locks.extend(state.map(|state| (lock.clone(), state)));
            count += 1;
        }
        self.remaining.drain(..count);
    }

    /// Returns the listed locks and the next cursor, which is `None` if the server was scanned
    /// completely.
    pub(in crate::store) fn finish(self) -> (Vec<(LockKey, LockState)>, Option<Scan>) {
        let Self {
            mut scan, next_at, ..
        } = self;
        if self.remaining.is_empty() {
            scan.listed
                .retain(|listed| !self.already_listed.contains(listed));
            scan.server_cursor = next_at;
        } else {
            scan.listed
                .extend(self.locks.iter().map(|(lock, _)| key_hash(lock)));
            let old = scan.listed.len().saturating_sub(RECORDED_KEYS_MAX);
            scan.listed.drain(..old);
        }
        let is_finished = self.remaining.is_empty() && next_at == 0;
        (self.locks, (!is_finished).then_some(scan))
    }
}

/// Returns the hash of a lock, which is the same at every broker.
fn key_hash(lock: &LockKey) -> ArgumentsHash {
    ArgumentsHash::of(&[lock.namespace().as_bytes(), lock.name().as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{LockName, Namespace};

    /// Returns locks whose names are the letters of `names`.
    fn locks(names: &str) -> Vec<LockKey> {
        let namespace = Namespace::parse("").expect("the default");
        let name = |name: char| LockName::parse(&name.to_string()).expect("a legal name");
        let lock = |letter| LockKey::new(namespace.clone(), name(letter));
        names.chars().map(lock).collect()
    }

    /// Runs a step that returns `keys`, all held. Returns the listed names and the next cursor.
    fn step(scan: Scan, keys: &str, next_at: u64, page_max: usize) -> (String, Option<Scan>) {
        let mut slice = ScanBatch::new(scan, next_at, locks(keys), page_max);
        loop {
            let count = slice.next_locks().len();
            if count == 0 {
                break;
            }
            let held = LockState {
                holders: Vec::new(),
                holder_count: 1,
                waiters: Vec::new(),
                queue_length: 0,
                lock_delay_remaining_ms: 0,
                last_fencing_token: 1,
            };
            slice.add(vec![Some(held); count], &Filter::default());
        }
        let (listed, next) = slice.finish();
        (listed.iter().map(|(lock, _)| lock.name()).collect(), next)
    }

    #[test]
    fn locks_beyond_a_full_page_are_listed_by_the_next_step() {
        let (listed, next) = step(Scan::default(), "dacbb", 9, 2);
        assert_eq!(listed, "ab");
        let next = next.expect("more");
        assert_eq!((next.server_cursor, next.listed.len()), (0, 2));
        let (listed, next) = step(next, "abcd", 9, 5);
        let next = next.expect("more");
        assert_eq!((listed.as_str(), next.server_cursor), ("cd", 9));
        assert_eq!(next.listed, []);
        assert_eq!(step(next, "e", 0, 1), ("e".to_owned(), None));
    }

    #[test]
    fn a_step_with_changed_keys_skips_and_repeats_none() {
        let (_, next) = step(Scan::default(), "mnop", 9, 2);
        // A repeated step that covers more keys, including one before the listed keys.
        let (listed, far) = step(next.clone().expect("more"), "anoxz", 9, 5);
        assert_eq!((listed.as_str(), far.is_some()), ("aoxz", true));
        // A repeated step that covers fewer keys: a listed key is returned by the next step.
        let (listed, near) = step(next.expect("more"), "m", 4, 5);
        assert_eq!(listed, "");
        assert_eq!(step(near.expect("more"), "nopq", 0, 5).0, "opq");
    }
}
