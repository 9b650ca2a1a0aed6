//! Operator commands on a cluster before a broker serves: write its first eras, or check the
//! cluster.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::{
    slot::{SLOTS, ranges},
    slot_era_sync::{SlotContext, SlotEraSync},
    slot_eras::EraHistory,
    slot_map::{SlotMap, newest},
    slot_map_refresh::query_slot_map,
};
use crate::store::redis::{
    clock::{ClockSample, skew_warning},
    connect::{KEY_FILE_MISSING, VerifiedConnection, connect},
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
    let map = read_slot_map(&config, seeds).await?;
    let unserved = map.unserved();
    if !unserved.is_empty() {
        return Err(NodeError::Unfit(vec![format!(
            "No master has the slots {}: nothing was written. Assign all slots to masters first.",
            ranges(unserved)
        )]));
    }
    let mut masters = open_masters(&config, &Arc::new(map)).await?;
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
    let map = read_slot_map(&config, seeds).await?;
    let mut warnings = Vec::new();
    let unserved = map.unserved();
    if !unserved.is_empty() {
        let slots = ranges(unserved);
        warnings.push(format!("No master has the slots {slots}: no locks there."));
    }
    let mut times = Vec::new();
    for master in open_masters(&config, &Arc::new(map)).await? {
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

async fn read_slot_map(config: &RedisConfig, seeds: &[Address]) -> Result<SlotMap, NodeError> {
    if config.deployment_key.is_none() {
        return Err(NodeError::Unfit(vec![KEY_FILE_MISSING.to_owned()]));
    }
    let (mut readings, mut reasons) = (Vec::new(), Vec::new());
    for seed in seeds {
        match query_slot_map(&Endpoint::new(seed.clone(), config.clone())).await {
            Ok(reading) => readings.push(reading),
            Err(error @ NodeError::Unfit(_)) => return Err(error),
            Err(NodeError::Unreachable(error)) => reasons.push(error),
        }
    }
    newest(readings).ok_or_else(|| NodeError::Unreachable(reasons.join(" ")))
}

async fn open_masters(
    config: &RedisConfig,
    map: &Arc<SlotMap>,
) -> Result<Vec<CheckedMaster>, NodeError> {
    let (sender, receiver) = watch::channel(Arc::clone(map));
    let slots = SlotContext {
        map: receiver,
        history: Arc::new(EraHistory::new()),
        refresh_slot_map: Arc::new(Notify::new()),
    };
    let mut masters = Vec::new();
    for address in sender.borrow().masters() {
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
