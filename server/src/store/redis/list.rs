//! Listing of the locks of a node, in small steps on its second connection: SCAN, then a read of
//! each lock.

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
    scan_batch::ScanBatch,
    scripts::{Command, Preamble, ScriptCall, Scripts, Verb, calls},
};
use crate::{
    lock::{BrokerId, Filter, LockKey, LockState, encode},
    store::{Cursor, Listed, Scan, StoreError},
};

/// Number of keys that one SCAN examines.
const SCAN_COUNT: u32 = 64;

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

/// Returns one page of a listing: see [`Store::list`](crate::store::Store::list).
pub(super) async fn list_step(
    store: &RedisStore,
    filter: &Filter,
    from: Option<&Cursor>,
    page_max: usize,
) -> Result<Listed, StoreError> {
    let scan = match from {
        None => Scan::default(),
        Some(Cursor::Scan(scan)) => scan.clone(),
        Some(Cursor::After(_)) => return Ok(Listed::Stale),
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
        (Err(StoreError::Unavailable(_) | StoreError::NotExecuted(_)), Some(server)) => {
            Ok(Listed::Missing { server })
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
        let commands = calls.iter().map(|call| self.command(node, call));
        let commands: Vec<_> = commands.collect();
        let results = node.run_all(self.scripts.get(Verb::Get), &commands);
        let results = node.throttled(results).await?;
        if results.len() < locks.len() {
            return Err(StoreError::Unavailable("the connection broke".to_owned()));
        }
        let seen = results.into_iter().zip(calls.iter().zip(&commands));
        seen.map(|(result, (call, command))| self.decode_state(node, result, call, command))
            .collect()
    }

    fn decode_state(
        &self,
        node: &Node,
        result: Result<Value, Error>,
        call: &ScriptCall<Option<LockState>>,
        command: &Command,
    ) -> Result<Option<LockState>, StoreError> {
        let key = command.keys.first().map_or("", |key| key);
        let reply = match result {
            Ok(value) => call.decode(value, self.broker).map_err(|error| {
                node.log_error(ErrorClass::UNEXPECTED_REPLY, &error.to_string(), key);
            }),
            Err(error) => {
                let class = ErrorClass::classify(&error);
                match (class.action, class.caller_error) {
                    (NodeAction::Redirect, _) if node.slot_eras().is_some() => {}
                    (NodeAction::Keep, CallerError::Corrupt) => {
                        let text = format!("get: {}", plain_message(&error));
                        node.log_error(class, &text, key);
                    }
                    _ => return Err(node.handle_error("get", &error)),
                }
                Err(())
            }
        };
        let Ok(reply) = reply else { return Ok(None) };
        node.observe_time(reply.now_ms);
        Ok(reply.outcome?.reply)
    }

    fn command(&self, node: &Node, call: &ScriptCall<Option<LockState>>) -> Command {
        call.command(&Preamble {
            key_prefix: self.key_prefix,
            broker: self.broker,
            not_after_ms: node.not_after_ms(),
            era_id: node.era_id(),
            era_tag: node.slot_eras().map(|_| tag_of(slot_of(call.lock()))),
            is_sharded: false,
            is_watched: false,
        })
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
