//! Listing of the locks of a node, in small steps on its second connection: SCAN, then a read of
//! each lock.
//!
//! A page may fill up in the middle of a SCAN step. The step is then repeated and may return
//! different keys, so the cursor records which keys were listed rather than how many.

use std::sync::Arc;

use fred::{error::Error, types::Value};
use tokio::time::{Instant, timeout_at};

use super::{
    CALL_TIMEOUT, RedisStore,
    cluster::slot::{slot_of, tag_of},
    connection::plain_message,
    error_table::{CallerError, ErrorClass, NodeAction},
    node::Node,
    routing::Topology,
    scripts::{Preamble, ScriptCall, Scripts, Verb, calls},
};
use crate::{
    lock::{ArgumentsHash, BrokerId, Filter, LockKey, LockState, encode},
    store::{Cursor, Listed, Scan, StoreError},
};

/// Number of keys that one SCAN examines.
const SCAN_COUNT: u32 = 64;
/// Number of locks that are read together.
const READ_TOGETHER: usize = 32;
/// Maximum number of listed keys that a cursor records. More keys occur only if listed keys
/// disappear.
const RECORDED_KEYS_MAX: usize = 128;

/// Parameters of a listing.
pub(in crate::store) struct ListQuery<'a> {
    pub(in crate::store) key_prefix: &'a str,
    pub(in crate::store) broker: BrokerId,
    pub(in crate::store) scripts: &'a Scripts,
    pub(in crate::store) filter: &'a Filter,
}

/// The server that is listed next.
pub(super) struct ListedServer {
    /// Position of the server, and that of the next server if there is one.
    pub(super) server: u16,
    pub(super) next: Option<u16>,
    /// Name of the server, if there are several.
    pub(super) name: Option<String>,
    pub(super) node: Result<Arc<Node>, StoreError>,
}

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

/// Returns one page of a listing: see [`Store::list`](crate::store::Store::list).
pub(super) async fn list_step(
    store: &RedisStore,
    filter: &Filter,
    from: Option<&Cursor>,
    page_max: usize,
) -> Result<Listed, StoreError> {
    let Some(scan) = Scan::from_cursor(from) else {
        return Ok(Listed::Stale);
    };
    let until = Instant::now() + CALL_TIMEOUT;
    let server = match &store.topology {
        Topology::Single(supervisor) => ListedServer {
            server: 0,
            next: None,
            name: None,
            node: supervisor.node(CALL_TIMEOUT).await,
        },
        Topology::Cluster(router) => match router.listed_server(scan.server, until).await? {
            Some(server) => server,
            None if scan.run_id.is_empty() => return Ok(Listed::empty()),
            None => return Ok(Listed::Stale),
        },
    };
    let query = ListQuery {
        key_prefix: &store.key_prefix,
        broker: store.broker,
        scripts: &store.scripts,
        filter,
    };
    let timeout_error = |_| StoreError::Unavailable("no answer in time".to_owned());
    let listed = timeout_at(until, list_step_on(&query, scan, &server, page_max)).await;
    match (
        listed.map_err(timeout_error).and_then(|listed| listed),
        server.name,
    ) {
        (Err(StoreError::Unavailable(reason) | StoreError::NotExecuted(reason)), Some(server)) => {
            Ok(Listed::Missing { server, reason })
        }
        (listed, _) => listed,
    }
}

async fn list_step_on(
    query: &ListQuery<'_>,
    scan: Scan,
    server: &ListedServer,
    page_max: usize,
) -> Result<Listed, StoreError> {
    let node = server.node.as_ref().map_err(StoreError::clone)?;
    let Some(scan) = scan.bind_to(server.server, node.run_id()) else {
        return Ok(Listed::Stale);
    };
    let (next_at, keys) = query.scan(node, scan.server_cursor).await?;
    let mut batch = ScanBatch::new(scan, next_at, keys, page_max);
    while let locks @ [_, ..] = batch.next_locks() {
        let states = query.states(node, locks).await?;
        batch.add(states, query.filter);
    }
    let (locks, next) = batch.finish();
    let next = next.or_else(|| {
        let server = server.next?;
        Some(Scan {
            server,
            ..Scan::default()
        })
    });
    let next = next.map(Cursor::Scan);
    Ok(Listed::Step { locks, next })
}

impl ListQuery<'_> {
    /// Runs one step of a scan. Returns the next cursor, and locks that match the filter's
    /// namespace and name prefix.
    pub(in crate::store) async fn scan(
        &self,
        node: &Node,
        at: u64,
    ) -> Result<(u64, Vec<LockKey>), StoreError> {
        let pattern = self.pattern();
        let (next, keys) = node.throttled(node.scan(at, &pattern, SCAN_COUNT)).await?;
        let locks = keys.into_iter().filter_map(|key| self.parse_key(key));
        Ok((next, locks.collect()))
    }

    /// Returns the states of the locks. A state is `None` if the node has no record of the lock,
    /// cannot read it, or has moved it to another server.
    pub(in crate::store) async fn states(
        &self,
        node: &Node,
        locks: &[LockKey],
    ) -> Result<Vec<Option<LockState>>, StoreError> {
        let get = |lock| calls::get(lock, self.filter.waiters());
        let calls: Vec<_> = locks.iter().map(get).collect();
        let commands = calls
            .iter()
            .map(|call| call.command(&self.preamble(node, call.lock())));
        let commands: Vec<_> = commands.collect();
        let results = node.run_all(self.scripts.get(Verb::Get), &commands);
        let results = node.throttled(results).await?;
        if results.len() < locks.len() {
            return Err(StoreError::Unavailable("the connection broke".to_owned()));
        }
        let seen = results.into_iter().zip(&calls);
        seen.map(|(result, call)| self.decode_state(node, result, call))
            .collect()
    }

    fn decode_state(
        &self,
        node: &Node,
        result: Result<Value, Error>,
        call: &ScriptCall<Option<LockState>>,
    ) -> Result<Option<LockState>, StoreError> {
        let preamble = self.preamble(node, call.lock());
        let error = match result {
            Ok(value) => match node.decode_reply(call, value, &preamble) {
                Ok(reply) => return Ok(reply.outcome?.reply),
                Err(_) => return Ok(None),
            },
            Err(error) => error,
        };
        let class = ErrorClass::classify(&error);
        match (class.action, class.caller_error) {
            (NodeAction::Redirect, _) if node.slot_eras().is_some() => Ok(None),
            (NodeAction::Keep, CallerError::Corrupt) => {
                let text = format!("get: {}", plain_message(&error));
                node.log_error(class, &text, &preamble.key(call.lock()));
                Ok(None)
            }
            _ => Err(node.handle_error("get", &error)),
        }
    }

    fn preamble<'a>(&'a self, node: &'a Node, lock: &LockKey) -> Preamble<'a> {
        Preamble {
            key_prefix: self.key_prefix,
            broker: self.broker,
            not_after_ms: node.not_after_ms(),
            era_id: node.era_id(),
            era_tag: node.slot_eras().map(|_| tag_of(slot_of(lock))),
            is_sharded: false,
            is_watched: false,
        }
    }

    /// Returns the pattern of the keys of matching locks. Without a namespace it matches other keys
    /// as well.
    fn pattern(&self) -> String {
        let namespace = self.filter.namespace.as_ref();
        let namespace = namespace.map_or("*", |namespace| namespace.as_str());
        let mut prefix = String::new();
        encode(&self.filter.name_prefix, &mut prefix);
        let (key_prefix, prefix) = (escaped(self.key_prefix), escaped(&prefix));
        format!("{key_prefix}{{{namespace}:{prefix}*")
    }

    /// Returns the lock with this key, if brokers encode the lock this way.
    fn parse_key(&self, key: Value) -> Option<LockKey> {
        let key = key.into_string()?;
        let key = key.strip_prefix(self.key_prefix)?;
        let lock = LockKey::decode(key).filter(|lock| lock.encoded() == key)?;
        self.filter.matches_name(&lock).then_some(lock)
    }
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

/// Escapes a text for use in a pattern.
pub(super) fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\*?[]".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
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
                closure: None,
                permit_usage: None,
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
