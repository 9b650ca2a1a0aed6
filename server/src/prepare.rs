//! What an operator does before a broker serves: check the configuration, prepare the store.

use std::iter;

use crate::{
    config::{Check, Config, Flags, StoreSettings},
    store::{
        redis::{connection::NodeError, init},
        redlock,
    },
};

/// Checks the configuration, and with `connect` the store itself. Says that all is well, and what
/// should be changed all the same; with `show` as comments, after the configuration in effect.
///
/// # Errors
/// Every problem, one sentence each.
pub async fn check(asked: &Check) -> Result<String, Vec<String>> {
    let config = Config::load(&asked.flags, false)?;
    let shown = asked.show.then(|| config.settings.to_toml());
    let mut warnings = config.warnings;
    let valid = match config.store {
        StoreSettings::Redis(redis) if asked.connect => {
            warnings.extend(init::check_store(*redis).await?);
            "the configuration is valid, and the store can be used"
        }
        StoreSettings::Redlock { common, addresses } if asked.connect => {
            warnings.extend(redlock::init::check_store(&common, &addresses).await?);
            "the configuration is valid, and the store can be used"
        }
        StoreSettings::Memory { .. } | StoreSettings::Redis(_) | StoreSettings::Redlock { .. } => {
            "the configuration is valid"
        }
    };
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
    let said = iter::once(valid.to_owned()).chain(warnings);
    let lines: Vec<_> = match shown {
        None => said.collect(),
        Some(shown) => iter::once(shown + "\n")
            .chain(said.map(|line| format!("# {line}")))
            .collect(),
    };
    Ok(lines.join("\n"))
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
