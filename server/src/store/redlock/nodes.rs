//! All nodes of a store: sends commands to them in parallel, and waits only for the replies that a
//! decision needs.

use std::{collections::HashSet, ops::Range, sync::Arc};

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_util::task::TaskTracker;

use super::{
    REPLY_TIMEOUT,
    node_client::{NodeClient, NodeReply},
    quorum::{Collector, no_quorum, quorum},
};
use crate::{
    lock::FencingToken,
    store::{StoreError, redis::scripts::ScriptCall},
    trace::Span,
};

/// Replies in the order of their arrival.
pub(super) struct ReplyStream<T> {
    receiver: mpsc::UnboundedReceiver<(usize, NodeReply<T>)>,
    seen_run_ids: HashSet<String>,
}

#[derive(Clone)]
pub(super) struct Nodes {
    /// All nodes in the configured order.
    pub(super) clients: Arc<[NodeClient]>,
    pub(super) tasks: TaskTracker,
    pub(super) max_clock_skew_ms: u64,
}

impl Nodes {
    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Returns the indexes of all nodes.
    pub(super) fn all(&self) -> Range<usize> {
        0..self.count()
    }

    /// Waits until a quorum of nodes is connected.
    pub(super) async fn wait_for_quorum(&self, until: Instant) -> Result<(), StoreError> {
        let all = self.clients.iter().map(|member| member.node(until));
        let mut pending: FuturesUnordered<_> = all.collect();
        let (mut present, mut errors) = (0, Vec::new());
        while let Some(node) = pending.next().await {
            match node {
                Ok(_) => present += 1,
                Err(error) => errors.push(error),
            }
            if present == quorum(self.count()) {
                return Ok(());
            }
        }
        Err(no_quorum(self.count(), 0, errors))
    }

    /// Sends a command to these nodes. Each request is completed even if the caller stops waiting.
    pub(super) fn send<T: Send + 'static>(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        call: ScriptCall<T>,
    ) -> ReplyStream<T> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let call = Arc::new(call);
        for index in nodes {
            let (sender, call) = (sender.clone(), Arc::clone(&call));
            let members = Arc::clone(&self.clients);
            let task = async move {
                let reply = members[index].send(&call).await;
                // The receiver may have been dropped.
                let _ = sender.send((index, reply));
            };
            self.tasks.spawn(Span::current().run(task));
        }
        ReplyStream {
            receiver,
            seen_run_ids: HashSet::new(),
        }
    }

    /// Sends a command to every node and collects replies until they decide the result.
    pub(super) async fn collect<T: Send + 'static, C: Collector<T>>(
        &self,
        call: ScriptCall<T>,
        mut collector: C,
    ) -> C {
        let end = Instant::now() + REPLY_TIMEOUT;
        let mut replies = self.send(self.all(), call);
        replies.collect_until(&mut collector, end).await;
        collector
    }

    /// Returns the token for a grant now: the median of the nodes' clocks. `None` if no node is
    /// connected.
    pub(super) async fn next_token(&self) -> Option<FencingToken> {
        let mut clocks = Vec::new();
        for member in &*self.clients {
            clocks.extend(member.connected_node().await.map(|node| node.now_us()));
        }
        clocks.sort_unstable();
        FencingToken::new(*clocks.get(clocks.len() / 2)?)
    }
}

impl<T> ReplyStream<T> {
    /// Returns the next reply with the index of its node. A process that answers at two addresses
    /// has one vote; its second reply is replaced by an error.
    pub(super) async fn next(&mut self) -> Option<(usize, NodeReply<T>)> {
        let (node, mut reply) = self.receiver.recv().await?;
        if let Some(run_id) = &reply.run_id
            && !self.seen_run_ids.insert(run_id.clone())
        {
            let message = "it is also another node of this store".to_owned();
            reply.outcome = Err(StoreError::Unavailable(message));
        }
        Some((node, reply))
    }

    /// Collects replies until they decide the result, or until `until`.
    pub(super) async fn collect_until(&mut self, into: &mut impl Collector<T>, until: Instant) {
        while !into.is_decided() {
            match timeout_at(until, self.next()).await {
                Ok(Some((node, reply))) => into.add(node, reply.is_reliable, reply.outcome),
                Ok(None) | Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Outcome;

    #[tokio::test]
    async fn one_process_at_two_addresses_has_one_vote() {
        let (sender, receiver) = mpsc::unbounded_channel();
        for (node, run_id) in ["one", "two", "one"].into_iter().enumerate() {
            let reply = NodeReply {
                run_id: Some(run_id.to_owned()),
                is_reliable: true,
                outcome: Ok(Outcome::reply_only('y')),
            };
            assert!(sender.send((node, reply)).is_ok());
        }
        drop(sender);
        let mut replies = ReplyStream {
            receiver,
            seen_run_ids: HashSet::new(),
        };
        let mut votes = 0;
        while let Some((_, reply)) = replies.next().await {
            votes += usize::from(reply.outcome.is_ok());
        }
        assert_eq!(votes, 2);
    }
}
