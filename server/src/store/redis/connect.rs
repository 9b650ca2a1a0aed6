//! Opening of a node: three or four connections to one verified process, with era, scripts and
//! subscription.

use std::sync::Arc;

use fred::{
    clients::Client,
    interfaces::{ClientLike as _, EventInterface as _, PubsubInterface as _},
    types::{InfoKind, Message},
};
use futures::future::try_join_all;
use tokio::{sync::broadcast, time::sleep, try_join};

use super::{
    clock::ClockSample,
    cluster::{
        sharded_subscriptions::ShardedSubscriptions,
        slot::tag_of,
        slot_era_sync::{SlotContext, SlotEraSync},
    },
    connection::{Connection, Endpoint, NodeError, RedisConfig},
    era::ServerIdentity,
    era_decision::KnownState,
    era_sync::sync_era,
    former_master::{ConfirmationPause, ServerProcesses},
    largest_token::LargestToken,
    location::{Address, SentinelView},
    node::{Node, NodeEras, VerifiedParts},
    replication,
    replication_barrier::{BarrierTask, MarkerSource, ReplicationBarrier},
    script::Script,
    silence::{LastReply, PROBATION, boot_ms},
    span_keeper::SpanUse,
    supervisor::Channel,
    verify::{Findings, ServerInfo},
};

/// The parts from which every node of a store is opened.
#[derive(Clone)]
pub(super) struct NodePlan {
    pub(super) config: RedisConfig,
    pub(super) scripts: Arc<[Script]>,
    /// The processes of earlier nodes of this store.
    pub(super) processes: Arc<ServerProcesses>,
    /// The channels to which a node subscribes.
    pub(super) channel: Channel,
    /// The slots of a cluster.
    pub(super) slots: Option<SlotContext>,
    /// The spans in use by this broker.
    pub(super) span_use: Arc<SpanUse>,
    /// The largest token of a store with one era. In a cluster each slot has its own.
    pub(super) largest_token: Arc<LargestToken>,
}

/// The connections of a node. Dropping them fails every call in flight.
pub(super) struct NodeConnections {
    pub(super) command: Connection,
    pub(super) probe: Connection,
    pub(super) subscriber: Subscriber,
    pub(super) era_sync: Option<SlotEraSync>,
    pub(super) barrier: Option<(Connection, BarrierTask)>,
}

/// A connection that is subscribed to the broker's channels.
pub(super) struct Subscriber {
    pub(super) connection: Connection,
    pub(super) messages: broadcast::Receiver<Message>,
}

/// A node that may serve.
pub(super) struct OpenedNode {
    pub(super) endpoint: Endpoint,
    pub(super) node: Arc<Node>,
    pub(super) links: NodeConnections,
    pub(super) warnings: Vec<String>,
}

/// A server process that may keep locks.
#[derive(Clone)]
pub(super) struct VerifiedServer {
    pub(super) endpoint: Endpoint,
    pub(super) client: Client,
    pub(super) identity: ServerIdentity,
}

/// A connection to a server that may keep locks.
pub(super) struct VerifiedConnection {
    pub(super) connection: Connection,
    pub(super) server: VerifiedServer,
    pub(super) warnings: Vec<String>,
    pub(super) may_be_replaced: bool,
}

/// Connects to a server, and checks all properties that can be read.
pub(super) async fn connect(
    endpoint: Endpoint,
    view: Option<SentinelView>,
) -> Result<VerifiedConnection, NodeError> {
    let connection = Connection::open(&endpoint).await?;
    let text = connection.info(&endpoint, None).await?;
    let info = ServerInfo::parse(&text);
    let findings = check(&endpoint, connection.client(), &info, view).await;
    let findings = findings.map_err(|e| endpoint.unreachable(&e))?;
    match info.identity() {
        Some(identity) if findings.problems.is_empty() => Ok(VerifiedConnection {
            may_be_replaced: info.has_replacement(&endpoint.config),
            server: VerifiedServer {
                endpoint,
                client: connection.client().clone(),
                identity,
            },
            connection,
            warnings: findings.warnings,
        }),
        _ if findings.is_transient && findings.problems.len() == 1 => {
            Err(NodeError::Unreachable(findings.problems.join(" ")))
        }
        _ => Err(NodeError::Unfit(findings.problems)),
    }
}

/// Checks the INFO reply of a server, and its settings if INFO shows no problem.
pub(super) async fn check(
    endpoint: &Endpoint,
    client: &Client,
    info: &ServerInfo<'_>,
    view: Option<SentinelView>,
) -> Result<Findings, fred::error::Error> {
    let mut findings = info.check(endpoint);
    if findings.problems.is_empty() {
        replication::check(endpoint, client, info, view, &mut findings).await?;
    }
    Ok(findings)
}

/// Opens a node on the server at `address`. Writes the era if necessary.
pub(super) async fn open(
    plan: &NodePlan,
    address: Address,
    view: Option<SentinelView>,
    known_state: &mut KnownState,
) -> Result<OpenedNode, NodeError> {
    let last_reply = LastReply::now();
    let checked = connect(Endpoint::new(address, plan.config.clone()), view).await?;
    let (endpoint, client) = (&checked.server.endpoint, &checked.server.client);
    let run_id = checked.server.identity.run_id.as_str();
    ensure_not_silent(&last_reply, endpoint).await?;
    let (probe, subscriber) = try_join!(
        open_same_process(Connection::open(endpoint), endpoint, run_id),
        open_subscriber(endpoint, run_id, &plan.channel)
    )?;
    ensure_not_silent(&last_reply, endpoint).await?;
    let failed = |error: fred::error::Error| endpoint.unreachable(&error);
    let loaded = try_join_all(plan.scripts.iter().map(|script| script.load(client)));
    loaded.await.map_err(failed)?;
    ensure_not_silent(&last_reply, endpoint).await?;
    let (eras, key, era_sync) = match &plan.slots {
        None => {
            known_state.record_token(plan.largest_token.get());
            let settled = sync_era(&checked.server, known_state).await?;
            (NodeEras::One(Box::new(settled.era)), settled.key, None)
        }
        Some(slots) => {
            let mut era_sync = SlotEraSync::new(slots.clone(), checked.server.clone());
            era_sync.sync_first().await?;
            let eras = NodeEras::Slots(Arc::clone(&era_sync.eras));
            (eras, plan.config.cluster_key()?, Some(era_sync))
        }
    };
    ensure_not_silent(&last_reply, endpoint).await?;
    let (barrier, waiting) = open_barrier(endpoint, run_id, &eras).await?.unzip();
    ensure_not_silent(&last_reply, endpoint).await?;
    let shards = open_sharded_subscriptions(plan, endpoint, &subscriber).await?;
    let time = ClockSample::best_of_several(client).await.map_err(failed)?;
    ensure_not_silent(&last_reply, endpoint).await?;
    let pause = match &eras {
        NodeEras::One(era) => ConfirmationPause::required_by(era, time.now_ms),
        NodeEras::Slots(_) => None,
    };
    let verified = VerifiedParts {
        endpoint: endpoint.clone(),
        client: client.clone(),
        inspect_client: probe.client().clone(),
        scripts: Arc::clone(&plan.scripts),
        server: checked.server.identity,
        eras,
        key,
        time,
        pause,
        may_be_replaced: checked.may_be_replaced,
        barrier,
        shards,
    };
    let node = Arc::new(Node::new(verified, last_reply));
    Ok(OpenedNode {
        endpoint: checked.server.endpoint,
        node,
        links: NodeConnections {
            command: checked.connection,
            probe,
            subscriber,
            era_sync,
            barrier: waiting,
        },
        warnings: checked.warnings,
    })
}

/// Checks that the server was not silent for too long while it was opened, because it may have been
/// replaced.
async fn ensure_not_silent(last_reply: &LastReply, endpoint: &Endpoint) -> Result<(), NodeError> {
    match last_reply.record(boot_ms()) {
        None => Ok(()),
        Some(silent) => {
            sleep(PROBATION).await;
            Err(NodeError::Unreachable(format!(
                "{} took {} ms to answer: it may have been replaced in that time.",
                endpoint.name(),
                silent.as_millis()
            )))
        }
    }
}

/// Opens a connection to the process `run_id` that is subscribed to the channels.
async fn open_subscriber(
    endpoint: &Endpoint,
    run_id: &str,
    channel: &Channel,
) -> Result<Subscriber, NodeError> {
    let opening = Connection::open_for_messages(endpoint, channel.messages_max);
    let connection = open_same_process(opening, endpoint, run_id).await?;
    let failed = |error: fred::error::Error| endpoint.unreachable(&error);
    let client = connection.client();
    let messages = client.message_rx();
    client
        .subscribe(vec![channel.name.as_str(), channel.shared_name.as_str()])
        .await
        .map_err(failed)?;
    // The subscription is confirmed only by the reply to a later command on the same connection.
    client.ping::<()>(None).await.map_err(failed)?;
    Ok(Subscriber {
        connection,
        messages,
    })
}

/// Creates the sharded subscriptions of a cluster's node, if the brokers use sharded channels.
async fn open_sharded_subscriptions(
    plan: &NodePlan,
    endpoint: &Endpoint,
    subscriber: &Subscriber,
) -> Result<Option<ShardedSubscriptions>, NodeError> {
    let (true, Some(slots)) = (plan.config.sharded_pubsub, &plan.slots) else {
        return Ok(None);
    };
    let client = subscriber.connection.client().clone();
    let shards = ShardedSubscriptions::new(client, plan.channel.name.clone());
    if let Some(slot) = slots.first_slot_of(&endpoint.address) {
        shards.check(endpoint, slot).await?;
    }
    Ok(Some(shards))
}

/// Creates the replication barrier and its connection, if the broker waits for replicas.
async fn open_barrier(
    endpoint: &Endpoint,
    run_id: &str,
    eras: &NodeEras,
) -> Result<Option<(ReplicationBarrier, (Connection, BarrierTask))>, NodeError> {
    let config = &endpoint.config;
    if config.wait_replicas == 0 {
        return Ok(None);
    }
    let connection = open_same_process(Connection::open(endpoint), endpoint, run_id).await?;
    let key = config.marker_key();
    let marker: MarkerSource = match eras {
        NodeEras::One(_) => Box::new(move |_| Some((key.clone(), 0))),
        NodeEras::Slots(eras) => {
            let eras = Arc::clone(eras);
            Box::new(move |from| {
                let slot = eras.any_synced(from)?;
                Some((format!("{key}{}", tag_of(slot)), slot))
            })
        }
    };
    let (barrier, waiting) = ReplicationBarrier::new(marker, config.wait_replicas);
    Ok(Some((barrier, (connection, waiting))))
}

/// Completes a connection and checks that it leads to the same process.
async fn open_same_process(
    opening: impl Future<Output = Result<Connection, NodeError>>,
    endpoint: &Endpoint,
    run_id: &str,
) -> Result<Connection, NodeError> {
    let connection = opening.await?;
    let text = connection.info(endpoint, Some(InfoKind::Server)).await?;
    if ServerInfo::parse(&text).run_id() == Some(run_id) {
        return Ok(connection);
    }
    Err(NodeError::Unreachable(format!(
        "{} leads to different servers. Configure the address of one server.",
        endpoint.name()
    )))
}
