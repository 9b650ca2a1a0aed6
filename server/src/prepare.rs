//! What an operator does before a broker serves: check the configuration, prepare the store.

use crate::{
    config::{Config, Flags, StoreSettings},
    store::{
        redis::{connection::NodeError, init},
        redlock,
    },
};

/// Checks the configuration, and with `connect` the store itself. Says that all is well.
///
/// # Errors
/// Every problem, one sentence each.
pub async fn check(flags: &Flags, connect: bool) -> Result<String, Vec<String>> {
    let config = Config::load(flags, false)?;
    if !connect {
        return Ok("the configuration is valid".to_owned());
    }
    match config.store {
        StoreSettings::Memory { .. } => return Ok("the configuration is valid".to_owned()),
        StoreSettings::Redis(redis) => init::check_store(*redis).await?,
        StoreSettings::Redlock { common, addresses } => {
            redlock::init::check_store(&common, &addresses).await?;
        }
    }
    Ok("the configuration is valid, and the store can be used".to_owned())
}

/// Writes the first era into a store that was never used. Says what was done.
///
/// # Errors
/// Every problem, one sentence each.
pub async fn init_store(flags: &Flags) -> Result<String, Vec<String>> {
    match Config::load(flags, false)?.store {
        StoreSettings::Memory { .. } => Ok("the memory store needs no first era".to_owned()),
        StoreSettings::Redis(redis) => told(init::init_store(*redis).await),
        StoreSettings::Redlock { common, addresses } => {
            told(redlock::init::init_store(&common, &addresses).await)
        }
    }
}

fn told(done: Result<String, NodeError>) -> Result<String, Vec<String>> {
    done.map_err(|error| vec![error.to_string()])
}
