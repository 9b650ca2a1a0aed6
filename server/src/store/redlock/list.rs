//! Lists locks: the keys of one node after the other, each lock as most nodes show it.

use std::collections::HashSet;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Duration, Instant, timeout_at};

use super::{
    RedlockStore, WITHIN,
    member::Member,
    tally::{Gather as _, quorum},
    verdicts::Seen,
};
use crate::{
    lock::{Filter, LockKey, LockState},
    store::{Cursor, Listed, Outcome, Scan, StoreError, redis::slice::Slice},
};

/// How long the last nodes are waited for once most have answered.
const GRACE: Duration = Duration::from_millis(250);

/// What the nodes that answered, by their numbers, show of the same locks.
struct Shown {
    by_node: Vec<(usize, Vec<Option<LockState>>)>,
    silent: Vec<StoreError>,
}

impl RedlockStore {
    /// See [`Store::list`](crate::store::Store::list).
    pub(super) async fn step(
        &self,
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
        self.0.nodes.ready(until).await?;
        let late = |_| StoreError::Unavailable("no answer in time".to_owned());
        let listed = timeout_at(until, self.step_at(filter, scan, most)).await;
        listed.map_err(late)?
    }

    async fn step_at(
        &self,
        filter: &Filter,
        scan: Scan,
        most: usize,
    ) -> Result<Listed, StoreError> {
        let members = self.0.nodes.members();
        let begun = (!scan.run_id.is_empty()).then_some(scan.server);
        let mut turns = members.iter().zip(0..).skip(scan.server.into());
        // A node that is not there is passed over, unless its scan has begun.
        let (member, node, server) = loop {
            match turns.next() {
                None if begun.is_none() => return Ok(Listed::nothing()),
                None => return Ok(Listed::Stale),
                Some((member, server)) => match member.present().await {
                    Some(node) => break (member, node, server),
                    None if begun == Some(server) => return Ok(Listed::Stale),
                    None => {}
                },
            }
        };
        let Some(scan) = scan.on(server, node.run_id()) else {
            return Ok(Listed::Stale);
        };
        let found = member.looks(filter).found(&node, scan.at).await?;
        let done = scan.done.clone();
        let mut slice = Slice::new(scan, found, most);
        while let locks @ [_, ..] = slice.next() {
            let states = self.states(filter, locks, &done).await?;
            slice.add(states, filter);
        }
        let (locks, next) = slice.end();
        let next = next.or_else(|| {
            let server = server + 1;
            let is_there = usize::from(server) < members.len();
            is_there.then(|| Scan {
                server,
                done: [done, vec![server - 1]].concat(),
                ..Scan::default()
            })
        });
        let next = next.map(Cursor::Scan);
        Ok(Listed::Step { locks, next })
    }

    /// Locks as most nodes show them; nothing of those that a node has of which all were listed.
    async fn states(
        &self,
        filter: &Filter,
        locks: &[LockKey],
        done: &[u16],
    ) -> Result<Vec<Option<LockState>>, StoreError> {
        let nodes = self.0.nodes.count();
        let shown = ask(self.0.nodes.members(), filter, locks).await;
        let one = |(index, lock): (usize, &LockKey)| {
            let mut seen = Seen::new(nodes);
            let mut is_listed = false;
            for (node, states) in &shown.by_node {
                let state = states[index].clone();
                is_listed |= state.is_some() && done.iter().any(|done| usize::from(*done) == *node);
                seen.add(*node, true, Ok(Outcome::silent(state)));
            }
            for error in &shown.silent {
                seen.add(nodes, true, Err(error.clone()));
            }
            let state = seen.together()?.filter(|_| !is_listed);
            Ok(state.map(|state| self.with_waiters(lock, state)))
        };
        locks.iter().enumerate().map(one).collect()
    }
}

async fn ask(members: &[Member], filter: &Filter, locks: &[LockKey]) -> Shown {
    let asked = members.iter().enumerate().map(async |(index, member)| {
        let until = Instant::now() + WITHIN;
        let node = member.present().await;
        let node = node.ok_or_else(|| StoreError::NotNow("no verified connection".to_owned()))?;
        let looks = member.looks(filter);
        let late = |_| StoreError::Unavailable(format!("{} does not answer", member.address()));
        let states = timeout_at(until, looks.states(&node, locks)).await;
        Ok((index, node.run_id().to_owned(), states.map_err(late)??))
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let (mut by_node, mut silent, mut heard) = (Vec::new(), Vec::new(), HashSet::new());
    let mut until = Instant::now() + WITHIN;
    while let Ok(Some(answer)) = timeout_at(until, asked.next()).await {
        match answer {
            Ok((index, run_id, states)) => {
                // A process at two addresses counts once.
                if heard.insert(run_id) {
                    by_node.push((index, states));
                }
            }
            Err(error) => silent.push(error),
        }
        if by_node.len() == quorum(members.len()) {
            until = until.min(Instant::now() + GRACE);
        }
    }
    Shown { by_node, silent }
}
