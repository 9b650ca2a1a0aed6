//! Start of the store: connects to all nodes, and reports in plain sentences why they cannot form a
//! store.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use futures::future::join_all;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::{
    RedlockState, RedlockStore, end_dedup::EndDeduplicator, local_queues::LocalQueues,
    node_client::NodeClient, nodes::Nodes, quorum::quorum, release_delay, send_event,
};
use crate::{
    lock::{BrokerId, DeploymentKey},
    store::{
        Event, Listener,
        redis::{
            connection::{NodeError, RedisConfig},
            location::{Address, StoreLocation},
            pubsub::{decode_message, shared_channel},
            scripts::Scripts,
            supervisor::{Channel, NodeEvent, Subscription},
        },
    },
};

const NODES_MIN: usize = 3;
/// Maximum number of buffered messages of one node. Messages are hints that several nodes send, and
/// a lost message delays a call by at most a second.
const MESSAGES_MAX: usize = 1_024;
/// Upper bound of the difference between a token and the clock of a node.
const CLOCK_SKEW_MAX_MS: u64 = 10_000;

/// Checks that the servers at `addresses` can be the nodes of a store.
///
/// # Errors
/// Returns the reason, as the rest of a sentence about the list.
pub fn check_addresses(addresses: &[Address]) -> Result<(), String> {
    let count = addresses.len();
    if count < NODES_MIN || count.is_multiple_of(2) {
        return Err(format!(
            "redlock:// needs an odd number of servers, {NODES_MIN} or more, and has {count}"
        ));
    }
    let is_twice = |(at, address): (usize, &Address)| addresses[..at].contains(address);
    if addresses.iter().enumerate().any(is_twice) {
        return Err("redlock:// lists a server twice".to_owned());
    }
    Ok(())
}

/// Returns the configurations of the nodes at `addresses`. The deployment key is bound to this list
/// of servers. Brokers with other lists could have quorums without a common node, and are rejected
/// by every node that has the key.
pub fn nodes(common: &RedisConfig, addresses: &[Address]) -> Vec<RedisConfig> {
    let names = || addresses.iter().map(Address::to_string);
    let key = common.deployment_key.as_ref();
    let deployment_key = key.map(|key| key.bound_to(names()));
    let node = |address: &Address| RedisConfig {
        location: StoreLocation::Server(address.clone()),
        deployment_key: deployment_key.clone(),
        span_limit: None,
        ..common.clone()
    };
    addresses.iter().map(node).collect()
}

impl RedlockStore {
    /// Connects to every node and verifies it. Requires a quorum, unless the configuration allows
    /// waiting for the store. Keeps trying to reach missing nodes in the background.
    ///
    /// # Errors
    /// If the nodes cannot be a store, or too few of them can be reached.
    pub async fn start(
        configs: Vec<RedisConfig>,
        broker: BrokerId,
        scripts: Scripts,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, NodeError> {
        let (deployment_key, max_clock_skew_ms) = check_compatible(&configs)?;
        let waits = configs.iter().all(|config| config.wait_for_store);
        let queues = Arc::<LocalQueues>::default();
        let listener = Arc::new(OnceLock::new());
        let stop = stop.child_token();
        let stop_guard = stop.clone().drop_guard();
        let end_dedup = Arc::new(EndDeduplicator::new(configs.len(), Arc::clone(&listener)));
        let members = configs.into_iter().map(|config| {
            let (queues, listener) = (Arc::clone(&queues), Arc::clone(&listener));
            let subscription = subscription(&config, broker, queues, listener);
            NodeClient::start(
                config,
                broker,
                Arc::clone(&end_dedup),
                scripts.clone(),
                subscription,
                tasks,
                stop.clone(),
            )
        });
        let started = join_all(members).await.into_iter();
        let nodes = Nodes {
            clients: started.collect::<Result<_, _>>()?,
            tasks: tasks.clone(),
            max_clock_skew_ms,
        };
        check_connected(&nodes, waits).await?;
        stop_guard.disarm();
        Ok(Self(Arc::new(RedlockState {
            broker,
            nodes,
            queues,
            deployment_key,
            listener,
            stop,
        })))
    }
}

/// Returns the deployment key, and the maximum difference between a token and the clock of a node,
/// ahead or behind. A node that has lost its newest token does not vote for more than twice this
/// difference.
fn check_compatible(configs: &[RedisConfig]) -> Result<(DeploymentKey, u64), NodeError> {
    let unfit = |problem: String| Err(NodeError::Unfit(vec![problem]));
    let count = configs.len();
    if count < NODES_MIN || count.is_multiple_of(2) {
        return unfit(format!(
            "A redlock store needs an odd number of nodes, {NODES_MIN} or more, and has {count}. \
             Set the addresses of {} independent Redis masters.",
            count.max(NODES_MIN - 1) + 1
        ));
    }
    let keys = configs.iter().map(|config| config.deployment_key.clone());
    let keys: Option<Vec<_>> = keys.collect();
    let Some(key) = keys.and_then(|keys| keys.into_iter().next()) else {
        return unfit(
            "A redlock store needs the deployment key in a file: no single node could store it. \
             Configure every broker with the same deployment key file."
                .to_owned(),
        );
    };
    let quarantines = configs.iter().map(|config| config.bounds.quarantine_ms());
    let quarantine_min_ms = quarantines.min().unwrap_or(0).saturating_sub(1_000);
    Ok((key, CLOCK_SKEW_MAX_MS.min(quarantine_min_ms / 2)))
}

/// Checks that a quorum of nodes is connected, and that all nodes are different processes.
async fn check_connected(nodes: &Nodes, waits: bool) -> Result<(), NodeError> {
    let (mut missing, mut twice, mut run_ids) = (Vec::new(), Vec::new(), HashSet::new());
    for client in &*nodes.clients {
        match client.connected_node().await {
            Some(node) if run_ids.insert(node.run_id().to_owned()) => {}
            Some(_) => twice.push(client.address()),
            None => missing.push(client.address()),
        }
    }
    if !twice.is_empty() {
        return Err(NodeError::Unfit(vec![format!(
            "{} and another node of this store are one process, which would have two votes. List \
             the address of each node once.",
            twice.join(", ")
        )]));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let (count, needed) = (nodes.count(), quorum(nodes.count()));
    let present = count - missing.len();
    let missing = missing.join(", ");
    if present >= needed {
        warn!("{present} of {count} nodes serve; missing: {missing}");
        return Ok(());
    }
    let problem = format!(
        "Only {present} of {count} nodes can be reached, but {needed} are needed; missing: \
         {missing}. Start them, or use --wait-for-store."
    );
    if waits {
        warn!("{problem}");
        return Ok(());
    }
    Err(NodeError::Unreachable(problem))
}

/// Returns the subscription to the messages of one node.
fn subscription(
    config: &RedisConfig,
    broker: BrokerId,
    queues: Arc<LocalQueues>,
    listener: Arc<OnceLock<Listener>>,
) -> Subscription {
    let key_prefix = config.key_prefix.clone();
    let channel = Channel {
        name: format!("{key_prefix}b:{broker}"),
        shared_name: shared_channel(&key_prefix),
        messages_max: MESSAGES_MAX,
    };
    let on_event = Box::new(move |event| match event {
        NodeEvent::Ready => queues.wake_all(),
        NodeEvent::Replaced => send_event(&listener, Event::ServerReplaced),
        NodeEvent::AssumptionViolated(assumption) => {
            send_event(&listener, Event::AssumptionViolated(assumption));
        }
        NodeEvent::Message(payload) => {
            let events = decode_message(&payload, &key_prefix, broker).into_iter();
            for event in events.flatten() {
                match event {
                    // Nodes have no queues, so this message means that the lock is free at the
                    // node.
                    Event::Rejoin(lock) => queues.wake(&lock, release_delay()),
                    Event::Moved(..) | Event::Revoked(..) => send_event(&listener, event),
                    // The store does not support watches, and nodes have no queues. Ends of leases
                    // are part of the replies.
                    Event::HandOff(..)
                    | Event::Ended(..)
                    | Event::Changed(..)
                    | Event::ServerReplaced
                    | Event::AssumptionViolated(_)
                    | Event::Resync => {}
                }
            }
        }
    });
    Subscription { channel, on_event }
}
