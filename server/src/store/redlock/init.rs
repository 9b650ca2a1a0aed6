//! Operator commands for the nodes before a broker serves: write the first eras, or check the
//! nodes.

use std::collections::HashSet;

use futures::future::join_all;

use super::{nodes, quorum::quorum};
use crate::store::redis::{
    connection::{NodeError, RedisConfig},
    init,
    location::Address,
};

/// Writes the first era, which votes at once, into every reachable node. Requires that no node has
/// keys with the prefix of this deployment: a node that came back empty, beside nodes that still
/// have their locks, must wait for its quarantine. Returns a description of the result and of the
/// nodes that were not reached.
///
/// # Errors
/// If a node has been used, or fewer than a quorum can be written.
pub async fn init_store(common: &RedisConfig, addresses: &[Address]) -> Result<String, NodeError> {
    let configs = nodes(common, addresses);
    let results = join_all(configs.iter().cloned().map(init::inspect_server)).await;
    let (mut empty, mut missing, mut used) = (Vec::new(), Vec::new(), Vec::new());
    let mut run_ids = HashSet::new();
    for ((config, address), result) in configs.into_iter().zip(addresses).zip(results) {
        match result {
            Err(error) => missing.push(error.to_string()),
            Ok((ref run_id, _)) if !run_ids.insert(run_id.clone()) => {
                return Err(NodeError::Unfit(vec![duplicate_error(address)]));
            }
            Ok((_, Some(key))) => used.push(format!("{address} ({key:?})")),
            Ok((_, None)) => empty.push(config),
        }
    }
    if !used.is_empty() {
        return Err(NodeError::Unfit(vec![format!(
            "These servers already hold keys with the prefix {:?}: {}. Nothing was written. If no \
             broker has ever used them, delete those keys; otherwise start the brokers: they write \
             the era of a server that restarted without data, and count its vote when every lock \
             that it may have lost has expired.",
            common.key_prefix,
            used.join(", ")
        )]));
    }
    let (count, needed) = (addresses.len(), quorum(addresses.len()));
    if empty.len() < needed {
        return Err(NodeError::Unreachable(format!(
            "Only {} of {count} servers can be reached, but the first era must be written to \
             {needed}. Nothing was written. {}",
            empty.len(),
            missing.join(" ")
        )));
    }
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
            "{} of {count} servers have no first era: {} The brokers write it, and count the votes \
             of these servers after the quarantine.",
            missing.len(),
            missing.join(" ")
        ));
    }
    Ok(done.join("\n"))
}

/// Connects to every node and verifies it without writing anything. Returns warnings for the
/// operator.
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
            Ok(_) => problems.push(duplicate_error(address)),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() {
        return Ok(warnings);
    }
    Err(problems)
}

fn duplicate_error(address: &Address) -> String {
    format!(
        "{address} and another server of this store are one process, which would have two votes. \
         List the address of each server once."
    )
}
