//! Commands that operators run before a broker serves: check the configuration, prepare the store.

use std::iter;

use crate::{
    config::{Check, Config, Flags, StoreSettings},
    store::{
        redis::{connection::NodeError, init},
        redlock,
    },
};

/// Checks the configuration, and with `connect` also the store. Returns a confirmation, followed by
/// warnings. With `show`, returns them as comments after the configuration in effect.
///
/// # Errors
/// All problems, one sentence each.
pub async fn check(args: &Check) -> Result<String, Vec<String>> {
    let config = Config::load(&args.flags, false)?;
    let settings_text = args.show.then(|| config.settings.to_toml());
    let mut warnings = config.warnings;
    let summary = match config.store {
        StoreSettings::Redis(redis) if args.connect => {
            warnings.extend(init::check_store(*redis).await?);
            "the configuration is valid, and the store can be used"
        }
        StoreSettings::Redlock { common, addresses } if args.connect => {
            warnings.extend(redlock::init::check_store(&common, &addresses).await?);
            "the configuration is valid, and the store can be used"
        }
        StoreSettings::Memory { .. } | StoreSettings::Redis(_) | StoreSettings::Redlock { .. } => {
            "the configuration is valid"
        }
    };
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
    let messages = iter::once(summary.to_owned()).chain(warnings);
    let lines: Vec<_> = match settings_text {
        None => messages.collect(),
        Some(settings_text) => iter::once(settings_text + "\n")
            .chain(messages.map(|line| format!("# {line}")))
            .collect(),
    };
    Ok(lines.join("\n"))
}

/// Writes the first era into a store that was never used. Returns a description of what was
/// written.
///
/// # Errors
/// All problems, one sentence each.
pub async fn init_store(flags: &Flags) -> Result<String, Vec<String>> {
    match Config::load(flags, false)?.store {
        StoreSettings::Memory { .. } => Ok("the memory store needs no initialization".to_owned()),
        StoreSettings::Redis(redis) => with_problem_list(init::init_store(*redis).await),
        StoreSettings::Redlock { common, addresses } => {
            with_problem_list(redlock::init::init_store(&common, &addresses).await)
        }
    }
}

fn with_problem_list(result: Result<String, NodeError>) -> Result<String, Vec<String>> {
    result.map_err(|error| vec![error.to_string()])
}
