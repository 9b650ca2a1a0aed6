//! Client of one node: runs the script of a command if the node is connected.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{REPLY_TIMEOUT, end_dedup::EndDeduplicator};
use crate::{
    lock::{BrokerId, Filter},
    store::{
        Outcome, Rejected, StoreError,
        redis::{
            connection::{NodeError, RedisConfig},
            era::Era,
            listing::ListQuery,
            location::StoreLocation,
            node::Node,
            scripts::{Preamble, ScriptCall, Scripts},
            supervisor::{Subscription, Supervisor},
        },
    },
};

/// Reply of one node.
pub(super) struct NodeReply<T> {
    /// Id of the server process; `None` if there was no connection.
    pub(super) run_id: Option<String>,
    /// False if the node came back so recently that it may have lost data.
    pub(super) is_reliable: bool,
    pub(super) outcome: Result<Outcome<T>, StoreError>,
}

/// One node of the store, whose server process may change.
pub(super) struct NodeClient {
    address: String,
    key_prefix: String,
    broker: BrokerId,
    scripts: Scripts,
    end_dedup: Arc<EndDeduplicator>,
    supervisor: Supervisor,
}

impl NodeClient {
    /// Connects to the node. Keeps trying in the background if the node is unreachable.
    pub(super) async fn start(
        mut config: RedisConfig,
        broker: BrokerId,
        end_dedup: Arc<EndDeduplicator>,
        scripts: Scripts,
        subscription: Subscription,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, NodeError> {
        config.wait_for_store = true;
        let StoreLocation::Server(address) = &config.location else {
            let message = "A node of a redlock store must be a single server with its own address.";
            return Err(NodeError::Unfit(vec![message.to_owned()]));
        };
        let (address, key_prefix) = (address.to_string(), config.key_prefix.clone());
        let supervisor =
            Supervisor::start(config, scripts.all(), subscription, tasks, stop).await?;
        Ok(Self {
            address,
            key_prefix,
            broker,
            scripts,
            end_dedup,
            supervisor,
        })
    }

    /// Returns the address, which identifies the node in messages.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the verified connection, if there is one.
    pub(super) async fn connected_node(&self) -> Option<Arc<Node>> {
        self.supervisor.node(Duration::ZERO).await.ok()
    }

    /// Returns the verified connection, waiting for it until `until`.
    pub(super) async fn node(&self, until: Instant) -> Result<Arc<Node>, StoreError> {
        let within = until.saturating_duration_since(Instant::now());
        self.supervisor.node(within).await
    }

    /// Returns the parameters for listing the locks of the node.
    pub(super) fn list_query<'a>(&'a self, filter: &'a Filter) -> ListQuery<'a> {
        ListQuery {
            key_prefix: &self.key_prefix,
            broker: self.broker,
            scripts: &self.scripts,
            filter,
        }
    }

    /// Sends the command once.
    pub(super) async fn send<T>(&self, call: &ScriptCall<T>) -> NodeReply<T> {
        let end = Instant::now() + REPLY_TIMEOUT;
        let node = match self.node(end).await {
            Ok(node) => node,
            Err(error) => {
                return NodeReply {
                    run_id: None,
                    is_reliable: false,
                    outcome: Err(error),
                };
            }
        };
        let outcome = self.wait_until(end, self.run(&node, call)).await;
        let now_ms = node.now_us() / 1_000;
        let is_open = |era: &Era| now_ms >= era.no_grants_before_ms;
        NodeReply {
            run_id: Some(node.run_id().to_owned()),
            is_reliable: node.era().is_some_and(is_open),
            outcome,
        }
    }

    /// Waits for the reply to a command until `end`.
    pub(super) async fn wait_until<T>(
        &self,
        end: Instant,
        reply: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let timeout_error =
            |_| StoreError::Unavailable(format!("{} does not answer", self.address));
        timeout_at(end, reply).await.map_err(timeout_error)?
    }

    async fn run<T>(&self, node: &Node, call: &ScriptCall<T>) -> Result<Outcome<T>, StoreError> {
        let preamble = Preamble {
            key_prefix: &self.key_prefix,
            broker: self.broker,
            not_after_ms: node.not_after_ms(),
            era_id: node.era_id(),
            era_tag: None,
            is_sharded: false,
            is_watched: false,
        };
        let script = self.scripts.get(call.verb());
        let value = node.eval(script, call.command(&preamble)).await?;
        let reply = node.decode_reply(call, value, &preamble)?;
        self.end_dedup.report(call.lock(), reply.ended);
        reply.outcome.map_err(|rejected| {
            if rejected == Rejected::NoEra {
                node.fail(&rejected.to_string());
            }
            rejected.into()
        })
    }
}
