//! Operator commands on a store before a broker serves: write the first era, or check the store.

use fred::interfaces::KeysInterface as _;

use super::{
    cluster::init::{check_cluster, init_cluster},
    connect::{VerifiedConnection, VerifiedServer, connect},
    connection::{Endpoint, NodeError, RedisConfig},
    era_decision::KnownState,
    era_sync::{check_era, sync_era},
    listing::escaped,
    location::{MasterResolver, StoreLocation},
};

const SCAN_COUNT: u32 = 1_000;

/// Writes the first era, which grants locks at once, to a store without keys of this deployment.
/// Also writes a deployment key, unless it is in a file. Returns a description of what was written.
pub async fn init_store(mut config: RedisConfig) -> Result<String, NodeError> {
    config.trust_empty_store = true;
    if let StoreLocation::Cluster(seeds) = config.location.clone() {
        return init_cluster(config, &seeds).await;
    }
    let checked = connect_to_master(config).await?;
    let server = &checked.server;
    require_unused(server, "delete them").await?;
    let settled = sync_era(server, &mut KnownState::default()).await?;
    let key = match server.endpoint.config.deployment_key {
        Some(_) => "the deployment key stays in its file",
        None => "a deployment key was created in the store",
    };
    Ok(format!(
        "{}: the first era {} was written; {key}.",
        server.endpoint.name(),
        settled.era.id
    ))
}

/// Returns the run id of a server, and one key of this deployment if it contains any. Writes
/// nothing.
pub async fn inspect_server(config: RedisConfig) -> Result<(String, Option<String>), NodeError> {
    let checked = connect_to_master(config).await?;
    let key = any_key(&checked.server).await?;
    Ok((checked.server.identity.run_id, key))
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
    let checked = connect_to_master(config).await.map_err(problems)?;
    check_era(&checked.server).await.map_err(problems)?;
    Ok((checked.server.identity.run_id, checked.warnings))
}

fn problems(error: NodeError) -> Vec<String> {
    match error {
        NodeError::Unreachable(problem) => vec![problem],
        NodeError::Unfit(problems) => problems,
    }
}

async fn connect_to_master(config: RedisConfig) -> Result<VerifiedConnection, NodeError> {
    let mut finder = MasterResolver::new(&config);
    let address = finder.resolve().await?;
    connect(Endpoint::new(address, config), finder.view().current()).await
}

/// Returns an error if a server has keys of this deployment. `removal` says how to delete them.
pub(super) async fn require_unused(
    server: &VerifiedServer,
    removal: &str,
) -> Result<(), NodeError> {
    let Some(key) = any_key(server).await? else {
        return Ok(());
    };
    Err(NodeError::Unfit(vec![format!(
        "{} already holds keys with the prefix {:?} ({key:?}): nothing was written. If no broker \
         has ever used it, {removal}; otherwise leave it unchanged.",
        server.endpoint.name(),
        server.endpoint.config.key_prefix
    )]))
}

/// Returns one key with the configured prefix, if there are any.
async fn any_key(server: &VerifiedServer) -> Result<Option<String>, NodeError> {
    let pattern = escaped(&server.endpoint.config.key_prefix) + "*";
    let mut cursor = "0".to_owned();
    loop {
        let page = server
            .client
            .scan_page(cursor, pattern.as_str(), Some(SCAN_COUNT), None);
        let (next, keys): (String, Vec<String>) =
            page.await.map_err(|e| server.endpoint.unreachable(&e))?;
        if let Some(key) = keys.into_iter().next() {
            return Ok(Some(key));
        }
        if next == "0" {
            return Ok(None);
        }
        cursor = next;
    }
}
