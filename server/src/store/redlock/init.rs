//! What an operator does with the nodes before a broker serves: write their first eras, or check them.

use std::collections::HashSet;

use futures::future::join_all;

use super::{nodes, tally::quorum};
use crate::store::redis::{
    connection::{NodeError, RedisConfig},
    init,
    place::Address,
};

/// Writes the first era, which votes at once, into every node that can be reached, if none of them
/// holds one of our keys: a node that came back empty beside others which still have their locks must
/// wait out its quarantine. Says what was done, and which nodes were not reached.
///
/// # Errors
/// If a node has been used, or fewer than a quorum can be written.
pub async fn init_store(common: &RedisConfig, addresses: &[Address]) -> Result<String, NodeError> {
    let configs = nodes(common, addresses);
    let looks = join_all(configs.iter().cloned().map(init::look_at_server)).await;
    let (mut empty, mut missing, mut used) = (Vec::new(), Vec::new(), Vec::new());
    let mut run_ids = HashSet::new();
    for ((config, address), look) in configs.into_iter().zip(addresses).zip(looks) {
        match look {
            Err(error) => missing.push(error.to_string()),
            Ok((ref run_id, _)) if !run_ids.insert(run_id.clone()) => {
                return Err(NodeError::Unfit(vec![twice(address)]));
            }
            Ok((_, Some(key))) => used.push(format!("{address} ({key:?})")),
            Ok((_, None)) => empty.push(config),
        }
    }
    if !used.is_empty() {
        return Err(NodeError::Unfit(vec![format!(
            "These servers already hold keys with the prefix {:?}: {}. Nothing was written. If no \
             broker has ever used them, delete those keys; else start the brokers: they give a \
             server that came back empty its era, and count its vote when no lock can be trusted \
             any more that it may have forgotten.",
            common.key_prefix,
            used.join(", ")
        )]));
    }
    let (count, needed) = (addresses.len(), quorum(addresses.len()));
    if empty.len() < needed {
        return Err(NodeError::Unreachable(format!(
            "Only {} of {count} servers can be reached, and {needed} must get their first era. \
             Nothing was written. {}",
            empty.len(),
            missing.join(" ")
        )));
    }
    write(empty, missing, (count, needed)).await
}

async fn write(
    empty: Vec<RedisConfig>,
    mut missing: Vec<String>,
    (count, needed): (usize, usize),
) -> Result<String, NodeError> {
    let mut done = Vec::new();
    for written in join_all(empty.into_iter().map(init::init_store)).await {
        match written {
            Ok(text) => done.push(text),
            Err(error) => missing.push(error.to_string()),
        }
    }
    if done.len() < needed {
        missing.extend(done);
        return Err(NodeError::Unreachable(missing.join(" ")));
    }
    if !missing.is_empty() {
        done.push(format!(
            "{} of {count} servers have no first era: {} The brokers give them one, and count \
             their votes a while later.",
            missing.len(),
            missing.join(" ")
        ));
    }
    Ok(done.join("\n"))
}

/// Connects to every node and verifies it without writing anything: what an operator should know.
///
/// # Errors
/// Every problem, one sentence each.
pub async fn check_store(
    common: &RedisConfig,
    addresses: &[Address],
) -> Result<Vec<String>, Vec<String>> {
    let checks = nodes(common, addresses).into_iter().map(init::check_server);
    let (mut warnings, mut problems, mut run_ids) = (Vec::new(), Vec::new(), HashSet::new());
    for (checked, address) in join_all(checks).await.into_iter().zip(addresses) {
        match checked {
            Ok((run_id, more)) if run_ids.insert(run_id.clone()) => warnings.extend(more),
            Ok(_) => problems.push(twice(address)),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() {
        return Ok(warnings);
    }
    Err(problems)
}

fn twice(address: &Address) -> String {
    format!(
        "{address} and another server of this store are one process, which would have two votes. \
         Give the address of each server once."
    )
}
