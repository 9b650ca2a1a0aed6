//! Listing of locks: scans the keys of one node after another, and returns the state that a quorum
//! has of each lock.

use std::collections::HashSet;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Duration, Instant, timeout_at};

use super::{
    REPLY_TIMEOUT, RedlockStore, merge,
    node_client::NodeClient,
    quorum::{Replies, quorum},
};
use crate::{
    lock::{Filter, LockKey, LockState},
    store::{Cursor, Listed, Scan, StoreError, redis::listing::ScanBatch},
};

/// Time to wait for the remaining nodes after a quorum has answered.
const STRAGGLER_GRACE: Duration = Duration::from_millis(250);

/// Reply of one node to a query of the states of several locks.
struct NodeStates {
    node: u16,
    run_id: String,
    states: Vec<Option<LockState>>,
}

impl RedlockStore {
    /// See [`Store::list`](crate::store::Store::list).
    pub(super) async fn step(
        &self,
        filter: &Filter,
        from: Option<&Cursor>,
        page_max: usize,
    ) -> Result<Listed, StoreError> {
        let Some(scan) = Scan::from_cursor(from) else {
            return Ok(Listed::Stale);
        };
        let until = Instant::now() + REPLY_TIMEOUT;
        self.0.nodes.wait_for_quorum(until).await?;
        let timeout_error = |_| StoreError::Unavailable("no answer in time".to_owned());
        let listed = timeout_at(until, self.step_at(filter, scan, page_max)).await;
        listed.map_err(timeout_error)?
    }

    async fn step_at(
        &self,
        filter: &Filter,
        scan: Scan,
        page_max: usize,
    ) -> Result<Listed, StoreError> {
        let members = &self.0.nodes.clients;
        let started_server = (!scan.run_id.is_empty()).then_some(scan.server);
        let mut servers = members.iter().zip(0..).skip(scan.server.into());
        // A node without a connection is skipped, unless its scan has begun.
        let (member, node, server) = loop {
            match servers.next() {
                None if started_server.is_none() => return Ok(Listed::empty()),
                None => return Ok(Listed::Stale),
                Some((member, server)) => match member.connected_node().await {
                    Some(node) => break (member, node, server),
                    None if started_server == Some(server) => return Ok(Listed::Stale),
                    None => {}
                },
            }
        };
        let Some(scan) = scan.bind_to(server, node.run_id()) else {
            return Ok(Listed::Stale);
        };
        let (next_at, keys) = member
            .list_query(filter)
            .scan(&node, scan.server_cursor)
            .await?;
        let done = scan.done.clone();
        let mut slice = ScanBatch::new(scan, next_at, keys, page_max);
        while let locks @ [_, ..] = slice.next_locks() {
            let states = self.states(filter, locks, &done).await?;
            slice.add(states, filter);
        }
        let (locks, next) = slice.finish();
        let next = next.or_else(|| {
            let server = server + 1;
            let has_next = usize::from(server) < members.len();
            has_next.then(|| Scan {
                server,
                done: [done, vec![server - 1]].concat(),
                ..Scan::default()
            })
        });
        let next = next.map(Cursor::Scan);
        Ok(Listed::Step { locks, next })
    }

    /// Returns the state that a quorum has of each lock. Locks that exist at a completely scanned
    /// node have been listed before, and are omitted.
    async fn states(
        &self,
        filter: &Filter,
        locks: &[LockKey],
        done: &[u16],
    ) -> Result<Vec<Option<LockState>>, StoreError> {
        let nodes = &self.0.nodes;
        let (answers, errors) = query_states(&nodes.clients, filter, locks).await;
        let state_of = |(index, lock): (usize, &LockKey)| {
            let mut replies = Replies::new(nodes.count(), merge::is_state_decided);
            let states = answers.iter().map(|answer| answer.states[index].clone());
            replies.received.extend(states);
            replies.errors.clone_from(&errors);
            let is_listed = answers
                .iter()
                .any(|answer| done.contains(&answer.node) && answer.states[index].is_some());
            let state = merge::lock_state(replies)?.filter(|_| !is_listed);
            Ok(state.map(|state| self.with_waiters(lock, state)))
        };
        locks.iter().enumerate().map(state_of).collect()
    }
}

/// Returns the replies of the nodes and their errors.
async fn query_states(
    members: &[NodeClient],
    filter: &Filter,
    locks: &[LockKey],
) -> (Vec<NodeStates>, Vec<StoreError>) {
    let end = Instant::now() + REPLY_TIMEOUT;
    let queries = members.iter().zip(0..).map(async |(member, index)| {
        let node = member.connected_node().await;
        let node =
            node.ok_or_else(|| StoreError::NotExecuted("no verified connection".to_owned()))?;
        let query = member.list_query(filter);
        Ok(NodeStates {
            node: index,
            run_id: node.run_id().to_owned(),
            states: member.wait_until(end, query.states(&node, locks)).await?,
        })
    });
    let mut queries: FuturesUnordered<_> = queries.collect();
    let mut until = end;
    let (mut answers, mut errors, mut seen_run_ids) = (Vec::new(), Vec::new(), HashSet::new());
    while let Ok(Some(result)) = timeout_at(until, queries.next()).await {
        match result {
            // A process at two addresses counts once.
            Ok(answer) if !seen_run_ids.insert(answer.run_id.clone()) => {}
            Ok(answer) => answers.push(answer),
            Err(error) => errors.push(error),
        }
        if answers.len() == quorum(members.len()) {
            until = until.min(Instant::now() + STRAGGLER_GRACE);
        }
    }
    (answers, errors)
}
