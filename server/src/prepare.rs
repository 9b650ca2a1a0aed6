//! What an operator does before a broker serves: check the configuration, prepare the store.

use crate::{
    config::{Config, Flags, StoreSettings},
    store::redis::init,
};

/// Checks the configuration, and with `connect` the store itself. Says that all is well.
///
/// # Errors
/// Every problem, one sentence each.
pub async fn check(flags: &Flags, connect: bool) -> Result<String, Vec<String>> {
    let config = Config::load(flags, false)?;
    if connect && let StoreSettings::Redis(redis) = config.store {
        let warnings = init::check_store(*redis).await?;
        let valid = "the configuration is valid, and the store can be used".to_owned();
        let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
        return Ok(std::iter::once(valid)
            .chain(warnings)
            .collect::<Vec<_>>()
            .join("\n"));
    }
    Ok("the configuration is valid".to_owned())
}

/// Writes the first era into a store that was never used. Says what was done.
///
/// # Errors
/// Every problem, one sentence each.
pub async fn init_store(flags: &Flags) -> Result<String, Vec<String>> {
    match Config::load(flags, false)?.store {
        StoreSettings::Memory { .. } => Ok("the memory store needs no first era".to_owned()),
        StoreSettings::Redis(redis) => {
            let done = init::init_store(*redis).await;
            done.map_err(|error| vec![error.to_string()])
        }
    }
}
