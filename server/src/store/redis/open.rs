//! Builds a node: three connections or four to one process, verified, with era, scripts and subscription.

use std::sync::Arc;

use fred::{
    clients::Client,
    interfaces::{ClientLike as _, EventInterface as _, PubsubInterface as _},
    types::{CustomCommand, InfoKind, Message, Value},
};
use tokio::{sync::broadcast, try_join};

use super::{
    connection::{Connection, Endpoint, NodeError, RedisConfig},
    decide::Known,
    era::ServerIdentity,
    gate::{Gate, Waiting},
    node::{Node, Verified},
    place::Address,
    script::Script,
    settle::settle,
    verify::ServerInfo,
};

/// What every node of a store is built from.
pub(super) struct Plan {
    pub(super) config: RedisConfig,
    pub(super) scripts: Arc<[Script]>,
    pub(super) channel: String,
    pub(super) messages_max: usize,
}

/// The connections of a node. Dropping them ends every call that is under way.
pub(super) struct Links {
    pub(super) command: Connection,
    pub(super) probe: Connection,
    pub(super) subscriber: Connection,
    pub(super) messages: broadcast::Receiver<Message>,
    pub(super) gate: Option<(Connection, Waiting)>,
}

/// A node that may serve.
pub(super) struct Opened {
    pub(super) endpoint: Endpoint,
    pub(super) node: Arc<Node>,
    pub(super) links: Links,
    pub(super) warnings: Vec<String>,
}

/// A connection to a server that may keep locks.
pub(super) struct Checked {
    pub(super) connection: Connection,
    pub(super) server: ServerIdentity,
    pub(super) warnings: Vec<String>,
}

/// Connects, and checks everything that can be read.
pub(super) async fn connect(endpoint: &Endpoint) -> Result<Checked, NodeError> {
    let connection = Connection::open(endpoint).await?;
    let text = connection.info(endpoint, None).await?;
    let info = ServerInfo::parse(&text);
    let findings = info.check(endpoint);
    match info.identity() {
        Some(server) if findings.problems.is_empty() => Ok(Checked {
            connection,
            server,
            warnings: findings.warnings,
        }),
        _ if findings.loading && findings.problems.len() == 1 => {
            Err(NodeError::Unreachable(findings.problems.join(" ")))
        }
        _ => Err(NodeError::Unfit(findings.problems)),
    }
}

/// Builds a node on the server at `address`, writing the era if it must be.
pub(super) async fn open(
    plan: &Plan,
    address: Address,
    known: &mut Known,
) -> Result<Opened, NodeError> {
    let endpoint = Endpoint::new(address, plan.config.clone());
    let checked = connect(&endpoint).await?;
    let run_id = checked.server.run_id.as_str();
    let (probe, subscriber) = try_join!(
        another(Connection::open(&endpoint), &endpoint, run_id),
        another(
            Connection::open_for_messages(&endpoint, plan.messages_max),
            &endpoint,
            run_id
        )
    )?;
    let (gate, waiting) = match plan.config.wait_replicas {
        0 => (None, None),
        replicas => {
            let connection = another(Connection::open(&endpoint), &endpoint, run_id).await?;
            let (gate, waiting) = Gate::new(plan.config.marker_key(), replicas);
            (Some(gate), Some((connection, waiting)))
        }
    };
    let client = checked.connection.client();
    let failed = |error: fred::error::Error| endpoint.unreachable(&error);
    for script in plan.scripts.iter() {
        script.load(client).await.map_err(failed)?;
    }
    let settled = settle(&endpoint, client, &checked.server, known).await?;
    let messages = subscriber.client().message_rx();
    let subscribing = subscriber.client();
    subscribing.subscribe(&plan.channel).await.map_err(failed)?;
    // The subscription is confirmed only by the reply to a later command on the same connection.
    subscribing.ping::<()>(None).await.map_err(failed)?;
    let now_ms = time_ms(client).await.map_err(failed)?;
    let node = Arc::new(Node::new(Verified {
        name: endpoint.name(),
        client: client.clone(),
        scripts: Arc::clone(&plan.scripts),
        server: checked.server,
        era: settled.era,
        key: settled.key,
        now_ms,
        gate,
    }));
    Ok(Opened {
        endpoint,
        node,
        links: Links {
            command: checked.connection,
            probe,
            subscriber,
            messages,
            gate: waiting,
        },
        warnings: checked.warnings,
    })
}

/// TIME in milliseconds.
pub(super) async fn time_ms(client: &Client) -> Result<u64, fred::error::Error> {
    let time = CustomCommand::new_static("TIME", None::<u16>, false);
    let (seconds, micros): (u64, u64) = client.custom(time, Vec::<Value>::new()).await?;
    Ok(seconds * 1_000 + micros / 1_000)
}

/// A connection to the same process.
async fn another(
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
        "{} leads to different servers at once. Give the address of one server.",
        endpoint.name()
    )))
}
