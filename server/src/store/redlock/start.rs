//! Connects to all nodes, and says in plain sentences why a store cannot be made of them.

use std::sync::{Arc, OnceLock};

use futures::future::join_all;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::{
    RedlockStore, Shared, after_release, endings::Endings, lines::Lines, member::Member,
    nodes::Nodes, tally::quorum,
};
use crate::{
    lock::{BrokerId, DeploymentKey},
    store::{
        Event, Listener,
        redis::{
            changes,
            connection::{NodeError, RedisConfig},
            place::{Address, Place},
            scripts::Scripts,
            supervisor::{Channel, NodeEvent, Subscription},
            told::told,
        },
    },
};

const NODES_MIN: usize = 3;
/// Of one node. Messages are hints that several nodes give, and one that is lost costs a second.
const MESSAGES_MAX: usize = 1_024;
/// The farthest that a token may be from a node's clock.
const APART_MAX_MS: u64 = 10_000;

/// Whether so many different servers can be the nodes of a store.
///
/// # Errors
/// Why not, as the rest of a sentence about their list.
pub fn check_addresses(addresses: &[Address]) -> Result<(), String> {
    let count = addresses.len();
    if count < NODES_MIN || count.is_multiple_of(2) {
        return Err(format!(
            "redlock:// needs an odd number of servers, {NODES_MIN} or more, and has {count}"
        ));
    }
    let is_twice = |(at, one): (usize, &Address)| addresses[..at].contains(one);
    if addresses.iter().enumerate().any(is_twice) {
        return Err("redlock:// has one of its servers twice".to_owned());
    }
    Ok(())
}

/// The nodes at these addresses. Their key is that of this list of servers: brokers with other lists
/// could have quorums without a common node, and are refused by every node that knows the key.
pub fn nodes(common: &RedisConfig, addresses: &[Address]) -> Vec<RedisConfig> {
    let names = || addresses.iter().map(Address::to_string);
    let key = common.deployment_key.as_ref();
    let deployment_key = key.map(|key| key.bound_to(names()));
    let node = |address: &Address| RedisConfig {
        place: Place::Server(address.clone()),
        deployment_key: deployment_key.clone(),
        ..common.clone()
    };
    addresses.iter().map(node).collect()
}

impl RedlockStore {
    /// Connects to every node and verifies it. Starts when a quorum is there, and goes on trying to
    /// reach the others.
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
        let (deployment_key, apart_max_ms) = fit(&configs)?;
        let waits = configs.iter().all(|config| config.wait_for_store);
        let lines = Arc::<Lines>::default();
        let listener = Arc::new(OnceLock::new());
        let stop = stop.child_token();
        let give_up = stop.clone().drop_guard();
        let key_prefix = configs.first().map(|config| config.key_prefix.clone());
        let told_by = (configs.len(), key_prefix.unwrap_or_default());
        let endings = Arc::new(Endings::new(told_by.0, told_by.1, Arc::clone(&listener)));
        let members = configs.into_iter().map(|config| {
            let (lines, listener) = (Arc::clone(&lines), Arc::clone(&listener));
            let subscription = subscription(&config, broker, lines, listener);
            let (place, told) = ((tasks, stop.clone()), (broker, Arc::clone(&endings)));
            Member::start(config, told, scripts.clone(), subscription, place)
        });
        let mut started = Vec::new();
        for member in join_all(members).await {
            started.push(member?);
        }
        let nodes = Nodes::new(started, tasks.clone(), apart_max_ms);
        check(&nodes, waits).await?;
        give_up.disarm();
        Ok(Self(Arc::new(Shared {
            broker,
            nodes,
            lines,
            deployment_key,
            listener,
            stop,
        })))
    }
}

/// The deployment's key, and how far tokens may be from a node's clock, ahead or behind: a node that
/// has lost its newest token is silent for longer than both together.
fn fit(configs: &[RedisConfig]) -> Result<(DeploymentKey, u64), NodeError> {
    let unfit = |problem: String| Err(NodeError::Unfit(vec![problem]));
    let count = configs.len();
    if count < NODES_MIN || count.is_multiple_of(2) {
        return unfit(format!(
            "A redlock store needs an odd number of nodes, {NODES_MIN} or more, and has {count}. Give \
             the addresses of {} independent Redis masters.",
            count.max(NODES_MIN - 1) + 1
        ));
    }
    let keys = configs.iter().map(|config| config.deployment_key.clone());
    let keys: Option<Vec<_>> = keys.collect();
    let Some(key) = keys.and_then(|keys| keys.into_iter().next()) else {
        return unfit(
            "A redlock store needs the deployment key in a file: no single node could keep it. Give \
             every broker the same deployment key file."
                .to_owned(),
        );
    };
    let quarantines = configs.iter().map(|config| config.bounds.quarantine_ms());
    let least_ms = quarantines.min().unwrap_or(0).saturating_sub(1_000);
    Ok((key, APART_MAX_MS.min(least_ms / 2)))
}

async fn check(nodes: &Nodes, waits: bool) -> Result<(), NodeError> {
    let (missing, twice) = nodes.missing().await;
    if !twice.is_empty() {
        return Err(NodeError::Unfit(vec![format!(
            "{} and another node of this store are one process, which would have two votes. Give \
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
        "Only {present} of {count} nodes can be reached, and {needed} are needed; missing: \
         {missing}. Start them, or use --wait-for-store."
    );
    if waits {
        warn!("{problem}");
        return Ok(());
    }
    Err(NodeError::Unreachable(problem))
}

/// What one node tells.
fn subscription(
    config: &RedisConfig,
    broker: BrokerId,
    lines: Arc<Lines>,
    listener: Arc<OnceLock<Listener>>,
) -> Subscription {
    let key_prefix = config.key_prefix.clone();
    let channel = Channel {
        name: format!("{key_prefix}b:{broker}"),
        of_all: changes::channel(&key_prefix),
        messages_max: MESSAGES_MAX,
    };
    let tell = Box::new(move |event| match event {
        NodeEvent::Ready => lines.wake_all(),
        NodeEvent::Replaced => {
            if let Some(listener) = listener.get() {
                listener(Event::Replaced);
            }
        }
        NodeEvent::Broken(assumption) => {
            if let Some(listener) = listener.get() {
                listener(Event::Broken(assumption));
            }
        }
        NodeEvent::Message(payload) => {
            for event in told(&payload, &key_prefix, broker).into_iter().flatten() {
                match event {
                    // Its node knows of no places in line: the lock is free there.
                    Event::Rejoin(lock) => lines.wake(&lock, after_release()),
                    event @ (Event::Moved(..) | Event::Revoked(..)) => {
                        if let Some(listener) = listener.get() {
                            listener(event);
                        }
                    }
                    // Nobody watches: it is not among what this store can do. Ends are in answers.
                    Event::HandOff(..)
                    | Event::Ended(..)
                    | Event::Changed(..)
                    | Event::Replaced
                    | Event::Broken(_)
                    | Event::Resync => {}
                }
            }
        }
    });
    Subscription { channel, tell }
}
