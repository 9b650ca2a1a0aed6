//! Operator commands on a store before a broker serves: write the first era, or check the store.

use fred::interfaces::KeysInterface as _;

use super::{
    cluster::init::{check_cluster, init_cluster},
    connect::{VerifiedConnection, connect},
    connection::{Connection, Endpoint, NodeError, RedisConfig},
    era_decision::{KnownState, decide_era},
    era_sync::{local_config, read_store, refuse_to_serve, sync_era},
    listing::escaped,
    location::{MasterResolver, SentinelView, StoreLocation},
};

const SCAN_COUNT: u32 = 1_000;

/// Writes the first era, which grants locks at once, to a store without keys of this deployment.
/// Also writes a deployment key, unless it is in a file. Returns a description of what was written.
pub async fn init_store(mut config: RedisConfig) -> Result<String, NodeError> {
    config.trust_empty_store = true;
    if let StoreLocation::Cluster(seeds) = config.location.clone() {
        return init_cluster(config, &seeds).await;
    }
    let (endpoint, view) = endpoint(config).await?;
    let VerifiedConnection {
        connection, server, ..
    } = connect(&endpoint, view).await?;
    if let Some(key) = any_key(&endpoint, &connection).await? {
        return Err(NodeError::Unfit(vec![format!(
            "{} already holds keys with the prefix {:?} ({key:?}): nothing was written. If no \
             broker has ever used it, delete them; otherwise leave it unchanged.",
            endpoint.name(),
            endpoint.config.key_prefix
        )]));
    }
    let client = connection.client();
    let settled = sync_era(&endpoint, client, &server, &mut KnownState::default()).await?;
    let key = match endpoint.config.deployment_key {
        Some(_) => "the deployment key stays in its file",
        None => "a deployment key was created in the store",
    };
    Ok(format!(
        "{}: the first era {} was written; {key}.",
        endpoint.name(),
        settled.era.id
    ))
}

/// Returns the run id of a server, and one key of this deployment if it contains any. Writes
/// nothing.
pub async fn inspect_server(config: RedisConfig) -> Result<(String, Option<String>), NodeError> {
    let (endpoint, view) = endpoint(config).await?;
    let checked = connect(&endpoint, view).await?;
    let key = any_key(&endpoint, &checked.connection).await?;
    Ok((checked.server.run_id, key))
}

/// Connects to a store and verifies it without writing. Returns warnings for operators, or the
/// problems, in plain sentences.
pub async fn check_store(config: RedisConfig) -> Result<Vec<String>, Vec<String>> {
    if let StoreLocation::Cluster(seeds) = config.location.clone() {
        return check_cluster(config, &seeds).await.map_err(problems);
    }
    let (_, warnings) = check_server(config).await?;
    Ok(warnings)
}

/// Connects to one server and verifies it without writing. Returns its run id and the warnings, or
/// the problems.
pub async fn check_server(config: RedisConfig) -> Result<(String, Vec<String>), Vec<String>> {
    let (endpoint, view) = endpoint(config).await.map_err(problems)?;
    let checked = connect(&endpoint, view).await.map_err(problems)?;
    let client = checked.connection.client();
    let read = read_store(&endpoint, client).await.map_err(problems)?;
    let (own, known_state) = (local_config(&endpoint.config), KnownState::default());
    decide_era(&read.found, &checked.server, &own, &known_state)
        .map_err(|reason| problems(refuse_to_serve(&endpoint, reason)))?;
    Ok((checked.server.run_id, checked.warnings))
}

fn problems(error: NodeError) -> Vec<String> {
    match error {
        NodeError::Unreachable(problem) => vec![problem],
        NodeError::Unfit(problems) => problems,
    }
}

async fn endpoint(config: RedisConfig) -> Result<(Endpoint, Option<SentinelView>), NodeError> {
    let mut finder = MasterResolver::new(&config);
    let address = finder.resolve().await?;
    Ok((Endpoint::new(address, config), finder.view().current()))
}

/// Returns one key with the configured prefix, if there are any.
pub(super) async fn any_key(
    endpoint: &Endpoint,
    connection: &Connection,
) -> Result<Option<String>, NodeError> {
    let pattern = escaped(&endpoint.config.key_prefix) + "*";
    let mut cursor = "0".to_owned();
    loop {
        let page = connection
            .client()
            .scan_page(cursor, pattern.as_str(), Some(SCAN_COUNT), None);
        let (next, keys): (String, Vec<String>) =
            page.await.map_err(|e| endpoint.unreachable(&e))?;
        if let Some(key) = keys.into_iter().next() {
            return Ok(Some(key));
        }
        if next == "0" {
            return Ok(None);
        }
        cursor = next;
    }
}
