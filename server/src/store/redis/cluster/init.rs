//! Operator commands on a cluster before a broker serves: write its first eras, or check the
//! cluster.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    slot::{SLOTS, ranges},
    slot_era_sync::{SlotContext, SlotEraSync},
    slot_map::{SlotMap, query_servers},
};
use crate::store::redis::{
    clock::{ClockSample, skew_warning},
    connect::{VerifiedConnection, connect},
    connection::{Endpoint, NodeError, RedisConfig},
    init::any_key,
    location::Address,
};

/// A master, with its verified connection and the agreement on its slots' eras.
struct CheckedMaster {
    endpoint: Endpoint,
    checked: VerifiedConnection,
    era_sync: SlotEraSync,
}

/// Writes the first era of every slot, if no master contains keys of this deployment. Returns a
/// description of what was written.
pub(in crate::store::redis) async fn init_cluster(
    config: RedisConfig,
    seeds: &[Address],
) -> Result<String, NodeError> {
    config.cluster_key()?;
    let map = query_servers(&config, seeds).await?;
    let unserved = map.unserved();
    if !unserved.is_empty() {
        return Err(NodeError::Unfit(vec![format!(
            "No master has the slots {}: nothing was written. Assign all slots to masters first.",
            ranges(unserved)
        )]));
    }
    let mut masters = open_masters(&config, map).await?;
    for master in &masters {
        let CheckedMaster {
            endpoint, checked, ..
        } = master;
        if let Some(key) = any_key(endpoint, &checked.connection).await? {
            return Err(NodeError::Unfit(vec![format!(
                "{} already holds keys with the prefix {:?} ({key:?}): nothing was written. If no \
                 broker has ever used it, delete them on every master; otherwise leave it \
                 unchanged.",
                endpoint.name(),
                config.key_prefix
            )]));
        }
    }
    for master in &mut masters {
        master.era_sync.sync_all().await?;
    }
    Ok(format!(
        "The first eras of {SLOTS} slots were written on {} masters; the deployment key stays in \
         its file.",
        masters.len()
    ))
}

/// Connects to every master and verifies it without writing. Returns warnings for operators.
pub(in crate::store::redis) async fn check_cluster(
    config: RedisConfig,
    seeds: &[Address],
) -> Result<Vec<String>, NodeError> {
    config.cluster_key()?;
    let map = query_servers(&config, seeds).await?;
    let mut warnings = Vec::new();
    let unserved = map.unserved();
    if !unserved.is_empty() {
        let slots = ranges(unserved);
        warnings.push(format!("No master has the slots {slots}: no locks there."));
    }
    let mut times = Vec::new();
    for master in open_masters(&config, map).await? {
        let CheckedMaster {
            endpoint,
            checked,
            mut era_sync,
        } = master;
        era_sync.check_all().await?;
        warnings.extend(checked.warnings);
        let time = ClockSample::best_of_several(checked.connection.client()).await;
        let time = time.map_err(|e| endpoint.unreachable(&e))?;
        times.push((endpoint.name(), time));
    }
    warnings.extend(skew_warning(&times));
    Ok(warnings)
}

async fn open_masters(config: &RedisConfig, map: SlotMap) -> Result<Vec<CheckedMaster>, NodeError> {
    let addresses = map.masters();
    let (_, map) = watch::channel(Arc::new(map));
    let slots = SlotContext::new(map);
    let mut masters = Vec::new();
    for address in addresses {
        let endpoint = Endpoint::new(address, config.clone());
        let checked = connect(&endpoint, None).await?;
        let client = checked.connection.client().clone();
        let server = checked.server.clone();
        masters.push(CheckedMaster {
            era_sync: SlotEraSync::new(slots.clone(), endpoint.clone(), client, server),
            endpoint,
            checked,
        });
    }
    Ok(masters)
}
