//! Entry point of the fuzz target for the configuration.

use std::ffi::OsString;

use super::{Config, reader::Reader, reloadable};
use crate::access::{Policy, Tokens};

/// Separator between the text of the file and the environment, which has one variable on each line.
const ENVIRONMENT: &str = "# environment\n";

/// Loads a configuration. Its text is also parsed as the policy and token files. An accepted
/// configuration can be printed as TOML, and reloaded without a change.
pub fn configuration(input: &str) {
    let (text, variables) = input.split_once(ENVIRONMENT).unwrap_or((input, ""));
    drop(Policy::parse(text));
    drop(Tokens::parse(text));
    let variables = variables.lines().filter_map(|line| line.split_once('='));
    let variables: Vec<_> = variables
        .map(|(name, value)| (OsString::from(name), OsString::from(value)))
        .collect();
    for dev in [false, true] {
        let Ok(config) = Config::load_from(Reader::from_text(text, variables.clone()), dev) else {
            continue;
        };
        let toml = config.settings.to_toml();
        assert!(toml.parse::<toml::Table>().is_ok(), "no TOML: {toml}");
        let reloaded = reloadable(&config.settings, &config.settings);
        assert!(reloaded.is_ok(), "not reloadable: {toml}");
    }
}
