//! What an operator does with a cluster before a broker serves: write its first eras, or check it.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::{
    eras::Learnt,
    follow::ask,
    map::{SlotMap, newest},
    settle::{Settler, Slots},
    slot::{SLOTS, ranges},
};
use crate::store::redis::{
    clocks::{APART_MAX, Reading, furthest, warning},
    connection::{Endpoint, NodeError, RedisConfig},
    init::any_key,
    open::{Checked, KEY_FILE_MISSING, connect},
    place::Address,
};

/// A master and what it has.
struct Master {
    endpoint: Endpoint,
    checked: Checked,
    settler: Settler,
}

/// Writes the first era of every slot, if no master holds any of our keys. Says what was done.
pub(in crate::store::redis) async fn init_cluster(
    config: RedisConfig,
    seeds: &[Address],
) -> Result<String, NodeError> {
    let map = map(&config, seeds).await?;
    let unserved = map.unserved();
    if !unserved.is_empty() {
        return Err(NodeError::Unfit(vec![format!(
            "No master has the slots {}: nothing was written. Give all slots to masters first.",
            ranges(unserved)
        )]));
    }
    let mut masters = masters(&config, &Arc::new(map)).await?;
    for master in &masters {
        let Master {
            endpoint, checked, ..
        } = master;
        if let Some(key) = any_key(endpoint, &checked.connection).await? {
            return Err(NodeError::Unfit(vec![format!(
                "{} already holds keys with the prefix {:?} ({key:?}): nothing was written. If no \
                 broker has ever used it, delete them on every master; else leave it as it is.",
                endpoint.name(),
                config.key_prefix
            )]));
        }
    }
    for master in &mut masters {
        master.settler.settle_all().await?;
    }
    Ok(format!(
        "The first eras of {SLOTS} slots were written on {} masters; the deployment key stays in \
         its file.",
        masters.len()
    ))
}

/// Connects to every master and verifies without writing anything: what an operator should know.
pub(in crate::store::redis) async fn check_cluster(
    config: RedisConfig,
    seeds: &[Address],
) -> Result<Vec<String>, NodeError> {
    let map = map(&config, seeds).await?;
    let mut warnings = Vec::new();
    let unserved = map.unserved();
    if !unserved.is_empty() {
        let slots = ranges(unserved);
        warnings.push(format!("No master has the slots {slots}: no locks there."));
    }
    let mut times = Vec::new();
    for master in masters(&config, &Arc::new(map)).await? {
        let Master {
            endpoint,
            checked,
            mut settler,
        } = master;
        settler.check_all().await?;
        warnings.extend(checked.warnings);
        let time = Reading::quick(checked.connection.client()).await;
        let time = time.map_err(|e| endpoint.unreachable(&e))?;
        times.push((endpoint.name(), time));
    }
    if let Some((one, other, apart)) = furthest(&times)
        && apart > APART_MAX
    {
        warnings.push(warning(one, other, apart));
    }
    Ok(warnings)
}

async fn map(config: &RedisConfig, seeds: &[Address]) -> Result<SlotMap, NodeError> {
    if config.deployment_key.is_none() {
        return Err(NodeError::Unfit(vec![KEY_FILE_MISSING.to_owned()]));
    }
    let (mut readings, mut why) = (Vec::new(), Vec::new());
    for seed in seeds {
        match ask(&Endpoint::new(seed.clone(), config.clone())).await {
            Ok(reading) => readings.push(reading),
            Err(error @ NodeError::Unfit(_)) => return Err(error),
            Err(NodeError::Unreachable(error)) => why.push(error),
        }
    }
    newest(readings).ok_or_else(|| NodeError::Unreachable(why.join(" ")))
}

async fn masters(config: &RedisConfig, map: &Arc<SlotMap>) -> Result<Vec<Master>, NodeError> {
    let (sender, receiver) = watch::channel(Arc::clone(map));
    let slots = Slots {
        map: receiver,
        learnt: Arc::new(Learnt::new()),
        reread: Arc::new(Notify::new()),
    };
    let mut masters = Vec::new();
    for address in sender.borrow().masters() {
        let endpoint = Endpoint::new(address, config.clone());
        let checked = connect(&endpoint, None).await?;
        let client = checked.connection.client().clone();
        let server = checked.server.clone();
        masters.push(Master {
            settler: Settler::new(slots.clone(), endpoint.clone(), client, server),
            endpoint,
            checked,
        });
    }
    Ok(masters)
}
