//! Builds a node: three or four connections to one process, verified, with era, scripts and subscription.

use std::sync::Arc;

use fred::{
    clients::Client,
    interfaces::{ClientLike as _, EventInterface as _, PubsubInterface as _},
    types::{CustomCommand, InfoKind, Message, Value},
};
use futures::future::try_join_all;
use tokio::{sync::broadcast, time::sleep, try_join};

use super::{
    clocks::Reading,
    cluster::{
        check::check_settings,
        settle::{Settler, Slots},
        shards::Shards,
        slot::tag_of,
    },
    connection::{Connection, Endpoint, NodeError, RedisConfig},
    decide::Known,
    era::ServerIdentity,
    former::{Pause, ServerProcesses},
    gate::{Gate, Marker, Waiting},
    node::{Eras, Node, Verified},
    place::{Address, SentinelView},
    replication,
    script::Script,
    settle::settle,
    silence::{LastAnswer, REST},
    supervisor::Channel,
    verify::{Findings, ServerInfo},
};

pub(super) const KEY_FILE_MISSING: &str = "A cluster keeps no deployment key: the brokers need one \
    in a file (store.deployment_key_file).";

/// What every node of a store is built from.
pub(super) struct Plan {
    pub(super) config: RedisConfig,
    pub(super) scripts: Arc<[Script]>,
    /// The processes that nodes of this store were on.
    pub(super) processes: Arc<ServerProcesses>,
    /// What it subscribes to.
    pub(super) channel: Channel,
    /// Of a cluster.
    pub(super) slots: Option<Slots>,
}

/// The connections of a node. Dropping them ends every call that is under way.
pub(super) struct Links {
    pub(super) command: Connection,
    pub(super) probe: Connection,
    pub(super) subscriber: Subscriber,
    pub(super) settler: Option<Settler>,
    pub(super) gate: Option<(Connection, Waiting)>,
}

/// A connection that listens to the broker's channel.
pub(super) struct Subscriber {
    pub(super) connection: Connection,
    pub(super) messages: broadcast::Receiver<Message>,
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
    pub(super) may_be_replaced: bool,
}

/// Connects, and checks everything that can be read.
pub(super) async fn connect(
    endpoint: &Endpoint,
    view: Option<SentinelView>,
) -> Result<Checked, NodeError> {
    let connection = Connection::open(endpoint).await?;
    let text = connection.info(endpoint, None).await?;
    let info = ServerInfo::parse(&text);
    let findings = check(endpoint, connection.client(), &info, view).await;
    let findings = findings.map_err(|e| endpoint.unreachable(&e))?;
    match info.identity() {
        Some(server) if findings.problems.is_empty() => Ok(Checked {
            connection,
            server,
            warnings: findings.warnings,
            may_be_replaced: info.may_be_replaced(&endpoint.config),
        }),
        _ if findings.passes && findings.problems.len() == 1 => {
            Err(NodeError::Unreachable(findings.problems.join(" ")))
        }
        _ => Err(NodeError::Unfit(findings.problems)),
    }
}

/// Checks what a server says of itself, and its settings if there is nothing wrong with that.
pub(super) async fn check(
    endpoint: &Endpoint,
    client: &Client,
    info: &ServerInfo<'_>,
    view: Option<SentinelView>,
) -> Result<Findings, fred::error::Error> {
    let mut findings = info.check(endpoint);
    if !findings.problems.is_empty() {
        return Ok(findings);
    }
    if endpoint.config.place.is_cluster() {
        check_settings(endpoint, client, &mut findings).await;
    }
    replication::check(endpoint, client, info, view, &mut findings).await?;
    Ok(findings)
}

/// Builds a node on the server at `address`, writing the era if it must be.
pub(super) async fn open(
    plan: &Plan,
    address: Address,
    view: Option<SentinelView>,
    known: &mut Known,
) -> Result<Opened, NodeError> {
    let endpoint = Endpoint::new(address, plan.config.clone());
    let last_answer = LastAnswer::now();
    let checked = connect(&endpoint, view).await?;
    goes_on(&last_answer, &endpoint).await?;
    let run_id = checked.server.run_id.as_str();
    let (probe, subscriber) = try_join!(
        another(Connection::open(&endpoint), &endpoint, run_id),
        listen(&endpoint, run_id, &plan.channel)
    )?;
    goes_on(&last_answer, &endpoint).await?;
    let client = checked.connection.client();
    let failed = |error: fred::error::Error| endpoint.unreachable(&error);
    let loaded = try_join_all(plan.scripts.iter().map(|script| script.load(client)));
    loaded.await.map_err(failed)?;
    goes_on(&last_answer, &endpoint).await?;
    let (eras, key, settler) = match &plan.slots {
        None => {
            let settled = settle(&endpoint, client, &checked.server, known).await?;
            (Eras::One(settled.era), settled.key, None)
        }
        Some(slots) => {
            let server = checked.server.clone();
            let mut settler = Settler::new(slots.clone(), endpoint.clone(), client.clone(), server);
            settler.begin().await?;
            let key = plan.config.deployment_key.clone();
            let key = key.ok_or_else(|| NodeError::Unfit(vec![KEY_FILE_MISSING.to_owned()]))?;
            (Eras::Slots(Arc::clone(&settler.eras)), key, Some(settler))
        }
    };
    goes_on(&last_answer, &endpoint).await?;
    let (gate, waiting) = gate(&endpoint, run_id, &eras).await?;
    goes_on(&last_answer, &endpoint).await?;
    let shards = shards(plan, &endpoint, &subscriber).await?;
    let time = Reading::quick(client).await.map_err(failed)?;
    goes_on(&last_answer, &endpoint).await?;
    let pause = match &eras {
        Eras::One(era) => Pause::of(era, time.now_ms),
        Eras::Slots(_) => None,
    };
    let verified = Verified {
        endpoint: endpoint.clone(),
        client: client.clone(),
        looks: probe.client().clone(),
        scripts: Arc::clone(&plan.scripts),
        server: checked.server,
        eras,
        key,
        time,
        pause,
        may_be_replaced: checked.may_be_replaced,
        gate,
        shards,
    };
    let node = Arc::new(Node::new(verified, last_answer));
    Ok(Opened {
        endpoint,
        node,
        links: Links {
            command: checked.connection,
            probe,
            subscriber,
            settler,
            gate: waiting,
        },
        warnings: checked.warnings,
    })
}

/// Checks that the server has not stood still while it was opened: it may have been replaced meanwhile.
async fn goes_on(last_answer: &LastAnswer, endpoint: &Endpoint) -> Result<(), NodeError> {
    match last_answer.renew() {
        None => Ok(()),
        Some(silent) => {
            sleep(REST).await;
            Err(NodeError::Unreachable(format!(
                "{} took {} ms to answer: it may have been replaced meanwhile.",
                endpoint.name(),
                silent.as_millis()
            )))
        }
    }
}

/// A connection to the process `run_id` that listens to a channel.
async fn listen(
    endpoint: &Endpoint,
    run_id: &str,
    channel: &Channel,
) -> Result<Subscriber, NodeError> {
    let opening = Connection::open_for_messages(endpoint, channel.messages_max);
    let connection = another(opening, endpoint, run_id).await?;
    let failed = |error: fred::error::Error| endpoint.unreachable(&error);
    let client = connection.client();
    let messages = client.message_rx();
    client
        .subscribe(vec![channel.name.as_str(), channel.of_all.as_str()])
        .await
        .map_err(failed)?;
    // The subscription is confirmed only by the reply to a later command on the same connection.
    client.ping::<()>(None).await.map_err(failed)?;
    Ok(Subscriber {
        connection,
        messages,
    })
}

/// The sharded channels of a cluster's node, where brokers tell each other by them.
async fn shards(
    plan: &Plan,
    endpoint: &Endpoint,
    subscriber: &Subscriber,
) -> Result<Option<Shards>, NodeError> {
    let (true, Some(slots)) = (plan.config.sharded_pubsub, &plan.slots) else {
        return Ok(None);
    };
    let client = subscriber.connection.client().clone();
    let shards = Shards::new(client, plan.channel.name.clone());
    if let Some(slot) = slots.first_of(&endpoint.address) {
        shards.check(endpoint, slot).await?;
    }
    Ok(Some(shards))
}

/// What answers wait for, and the connection that asks for it.
async fn gate(
    endpoint: &Endpoint,
    run_id: &str,
    eras: &Eras,
) -> Result<(Option<Gate>, Option<(Connection, Waiting)>), NodeError> {
    let config = &endpoint.config;
    if config.wait_replicas == 0 {
        return Ok((None, None));
    }
    let connection = another(Connection::open(endpoint), endpoint, run_id).await?;
    let key = config.marker_key();
    let marker: Marker = match eras {
        Eras::One(_) => Box::new(move |_| Some((key.clone(), 0))),
        Eras::Slots(eras) => {
            let eras = Arc::clone(eras);
            Box::new(move |from| {
                let slot = eras.any_settled(from)?;
                Some((format!("{key}{}", tag_of(slot)), slot))
            })
        }
    };
    let (gate, waiting) = Gate::new(marker, config.wait_replicas);
    Ok((Some(gate), Some((connection, waiting))))
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
