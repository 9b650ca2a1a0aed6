//! What an operator does with a store before a broker serves: write its first era, or check it.

use fred::interfaces::KeysInterface as _;

use super::{
    cluster::init::{check_cluster, init_cluster},
    connection::{Connection, Endpoint, NodeError, RedisConfig},
    decide::{Decision, Known, decide},
    list::escaped,
    open::{Checked, connect},
    place::{Finder, Place, SentinelView},
    settle::{own, read, refused, settle},
};

const SCAN_COUNT: u32 = 1_000;

/// Writes the first era, which grants at once, into a store that holds none of our keys, and a
/// deployment key unless that is in a file. Says what was done.
pub async fn init_store(mut config: RedisConfig) -> Result<String, NodeError> {
    config.trust_empty_store = true;
    if let Place::Cluster(seeds) = config.place.clone() {
        return init_cluster(config, &seeds).await;
    }
    let (endpoint, view) = endpoint(config).await?;
    let Checked {
        connection, server, ..
    } = connect(&endpoint, view).await?;
    if let Some(key) = any_key(&endpoint, &connection).await? {
        return Err(NodeError::Unfit(vec![format!(
            "{} already holds keys with the prefix {:?} ({key:?}): nothing was written. If no \
             broker has ever used it, delete them; else leave it as it is.",
            endpoint.name(),
            endpoint.config.key_prefix
        )]));
    }
    let client = connection.client();
    let settled = settle(&endpoint, client, &server, &mut Known::default()).await?;
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

/// Which process a server is, and one of our keys if it holds any, without writing anything.
pub async fn look_at_server(config: RedisConfig) -> Result<(String, Option<String>), NodeError> {
    let (endpoint, view) = endpoint(config).await?;
    let checked = connect(&endpoint, view).await?;
    let key = any_key(&endpoint, &checked.connection).await?;
    Ok((checked.server.run_id, key))
}

/// Connects and verifies without writing anything: what an operator should know, or the problems, in
/// plain sentences.
pub async fn check_store(config: RedisConfig) -> Result<Vec<String>, Vec<String>> {
    if let Place::Cluster(seeds) = config.place.clone() {
        return check_cluster(config, &seeds).await.map_err(problems);
    }
    let (_, warnings) = check_server(config).await?;
    Ok(warnings)
}

/// The same of one server, and which process it is.
pub async fn check_server(config: RedisConfig) -> Result<(String, Vec<String>), Vec<String>> {
    let (endpoint, view) = endpoint(config).await.map_err(problems)?;
    let checked = connect(&endpoint, view).await.map_err(problems)?;
    let client = checked.connection.client();
    let read = read(&endpoint, client).await.map_err(problems)?;
    let known = Known::default();
    match decide(&read.found, &checked.server, &own(&endpoint.config), &known) {
        Decision::Refuse(why) => Err(problems(refused(&endpoint, why))),
        Decision::Adopt(_) | Decision::Write(_) => Ok((checked.server.run_id, checked.warnings)),
    }
}

fn problems(error: NodeError) -> Vec<String> {
    match error {
        NodeError::Unreachable(problem) => vec![problem],
        NodeError::Unfit(problems) => problems,
    }
}

async fn endpoint(config: RedisConfig) -> Result<(Endpoint, Option<SentinelView>), NodeError> {
    let mut finder = Finder::new(&config);
    let address = finder.find().await?;
    Ok((Endpoint::new(address, config), finder.view().seen()))
}

/// One of the keys with our prefix, if there are any.
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
