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
    init::require_unused,
    location::Address,
};

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
    let masters = open_masters(&config, &map).await?;
    for master in &masters {
        require_unused(&master.server, "delete them on every master").await?;
    }
    let slots = fixed_slots(map);
    for master in &masters {
        let mut era_sync = SlotEraSync::new(slots.clone(), master.server.clone());
        era_sync.sync_all().await?;
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
    let masters = open_masters(&config, &map).await?;
    let slots = fixed_slots(map);
    for master in masters {
        let mut era_sync = SlotEraSync::new(slots.clone(), master.server.clone());
        era_sync.check_all().await?;
        warnings.extend(master.warnings);
        let (endpoint, client) = (&master.server.endpoint, &master.server.client);
        let time = ClockSample::best_of_several(client).await;
        let time = time.map_err(|e| endpoint.unreachable(&e))?;
        times.push((endpoint.name(), time));
    }
    warnings.extend(skew_warning(&times));
    Ok(warnings)
}

async fn open_masters(
    config: &RedisConfig,
    map: &SlotMap,
) -> Result<Vec<VerifiedConnection>, NodeError> {
    let mut masters = Vec::new();
    for address in map.masters() {
        masters.push(connect(Endpoint::new(address, config.clone()), None).await?);
    }
    Ok(masters)
}

/// Returns the slots of a map that does not change.
fn fixed_slots(map: SlotMap) -> SlotContext {
    let (_, map) = watch::channel(Arc::new(map));
    SlotContext::new(map)
}
