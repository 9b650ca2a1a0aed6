//! Lists the locks of a node in small steps on its second connection: SCAN, then a look at each key.

use std::sync::Arc;

use fred::{error::Error, types::Value};
use tokio::time::{Instant, timeout_at};

use super::{
    RedisStore, WITHIN, answers,
    cluster::slot::{slot_of, tag_of},
    connection::plain,
    node::Node,
    nodes::Nodes,
    refusal::{Refusal, Then, Told},
    scripts::{Command, Preamble, Scripts, Verb},
    slice::Slice,
};
use crate::{
    lock::{BrokerId, Filter, LockKey, LockState, encode},
    store::{Cursor, Listed, Scan, StoreError},
};

/// Keys that one SCAN looks at.
const STEP: u32 = 64;

/// Who looks at which locks.
pub(in crate::store) struct Looks<'a> {
    pub(in crate::store) key_prefix: &'a str,
    pub(in crate::store) broker: BrokerId,
    pub(in crate::store) scripts: &'a Scripts,
    pub(in crate::store) filter: &'a Filter,
}

/// The server whose turn it is.
pub(super) struct Turn {
    /// Its place; where the next server is, if there is one.
    pub(super) server: u16,
    pub(super) next: Option<u16>,
    /// What it is called where there are others.
    pub(super) name: Option<String>,
    pub(super) node: Result<Arc<Node>, StoreError>,
}

/// See [`Store::list`](crate::store::Store::list).
pub(super) async fn step(
    store: &RedisStore,
    filter: &Filter,
    from: Option<&Cursor>,
    most: usize,
) -> Result<Listed, StoreError> {
    let scan = match from {
        None => Scan::default(),
        Some(Cursor::Scan(scan)) => scan.clone(),
        Some(Cursor::After(_)) => return Ok(Listed::Stale),
    };
    let until = Instant::now() + WITHIN;
    let turn = match &store.nodes {
        Nodes::One(supervisor) => Turn {
            server: 0,
            next: None,
            name: None,
            node: supervisor.node(WITHIN).await,
        },
        Nodes::Cluster(router) => match router.turn(scan.server, until).await? {
            Some(turn) => turn,
            None if scan.run_id.is_empty() => return Ok(Listed::nothing()),
            None => return Ok(Listed::Stale),
        },
    };
    let looks = Looks {
        key_prefix: &store.key_prefix,
        broker: store.broker,
        scripts: &store.scripts,
        filter,
    };
    let late = |_| StoreError::Unavailable("no answer in time".to_owned());
    let listed = timeout_at(until, step_at(&looks, scan, &turn, most)).await;
    match (listed.map_err(late).and_then(|listed| listed), turn.name) {
        (Err(StoreError::Unavailable(_) | StoreError::NotNow(_)), Some(server)) => {
            Ok(Listed::Missing { server })
        }
        (listed, _) => listed,
    }
}

async fn step_at(
    looks: &Looks<'_>,
    scan: Scan,
    turn: &Turn,
    most: usize,
) -> Result<Listed, StoreError> {
    let node = turn.node.as_ref().map_err(StoreError::clone)?;
    let Some(scan) = scan.on(turn.server, node.run_id()) else {
        return Ok(Listed::Stale);
    };
    let found = looks.found(node, scan.at).await?;
    let mut slice = Slice::new(scan, found, most);
    while let locks @ [_, ..] = slice.next() {
        let states = looks.states(node, locks).await?;
        slice.add(states, looks.filter);
    }
    let (locks, next) = slice.end();
    let next = next.or_else(|| {
        let server = turn.next?;
        Some(Scan {
            server,
            ..Scan::default()
        })
    });
    let next = next.map(Cursor::Scan);
    Ok(Listed::Step { locks, next })
}

impl Looks<'_> {
    /// One step of a scan: where to go on, and locks of the names that are asked for.
    pub(in crate::store) async fn found(
        &self,
        node: &Node,
        at: u64,
    ) -> Result<(u64, Vec<LockKey>), StoreError> {
        let pattern = self.pattern();
        let (next, keys) = node.in_turn(node.scan(at, &pattern, STEP)).await?;
        let locks = keys.into_iter().filter_map(|key| self.lock(key));
        Ok((next, locks.collect()))
    }

    /// What the node knows of the locks: nothing of those that it does not know, or has given to
    /// another server, or cannot read.
    pub(in crate::store) async fn states(
        &self,
        node: &Node,
        locks: &[LockKey],
    ) -> Result<Vec<Option<LockState>>, StoreError> {
        let commands: Vec<_> = locks.iter().map(|lock| self.get(node, lock)).collect();
        let results = node.run_all(self.scripts.get(Verb::Get), &commands);
        let results = node.in_turn(results).await?;
        if results.len() < locks.len() {
            return Err(StoreError::Unavailable("the connection broke".to_owned()));
        }
        let seen = results.into_iter().zip(&commands);
        seen.map(|(result, command)| self.seen(node, result, command))
            .collect()
    }

    fn seen(
        &self,
        node: &Node,
        result: Result<Value, Error>,
        command: &Command,
    ) -> Result<Option<LockState>, StoreError> {
        let answer = match result {
            Ok(value) => answers::state(value, self.broker).map_err(|error| {
                node.complain(Refusal::ODD_REPLY, &error.to_string(), &|| command.clone());
            }),
            Err(error) => {
                let refusal = Refusal::of(&error);
                match (refusal.then, refusal.told) {
                    (Then::Elsewhere, _) if node.slot_eras().is_some() => {}
                    (Then::Keep, Told::Corrupt) => {
                        let text = format!("get: {}", plain(&error));
                        node.complain(refusal, &text, &|| command.clone());
                    }
                    _ => return Err(node.failed("get", &error)),
                }
                Err(())
            }
        };
        let Ok(answer) = answer else { return Ok(None) };
        node.saw_time(answer.now_ms);
        Ok(answer.outcome?.reply)
    }

    fn get(&self, node: &Node, lock: &LockKey) -> Command {
        let preamble = Preamble {
            key_prefix: self.key_prefix,
            broker: self.broker,
            not_after_ms: node.not_after_ms(),
            era_id: node.era_id(),
            era_tag: node.slot_eras().map(|_| tag_of(slot_of(lock))),
            is_sharded: false,
            is_watched: false,
        };
        preamble.get(lock, self.filter.waiters())
    }

    /// Of which keys a lock of such a name may have one. More fit where no namespace is named.
    fn pattern(&self) -> String {
        let namespace = self.filter.namespace.as_ref();
        let namespace = namespace.map_or("*", |namespace| namespace.as_str());
        let mut prefix = String::new();
        encode(&self.filter.name_prefix, &mut prefix);
        let (key_prefix, prefix) = (escaped(self.key_prefix), escaped(&prefix));
        format!("{key_prefix}{{{namespace}:{prefix}*")
    }

    /// The lock that has this key, if brokers write it so.
    fn lock(&self, key: Value) -> Option<LockKey> {
        let key = key.into_string()?;
        let key = key.strip_prefix(self.key_prefix)?;
        let lock = LockKey::decode(key).filter(|lock| lock.encoded() == key)?;
        self.filter.names(&lock).then_some(lock)
    }
}

/// A text as a part of a pattern that means this text.
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
