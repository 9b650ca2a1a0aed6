//! What the fuzz target of the configuration calls.

use std::ffi::OsString;

use super::{Config, reader::Reader, reloadable};
use crate::access::{Policy, Tokens};

/// The line between the text of the file and the variables, of which each line is one.
const ENVIRONMENT: &str = "# environment\n";

/// Reads a configuration, whose text is tried as the files that it can name, too. What is accepted can
/// be shown, and reloaded without a change.
pub fn configuration(input: &str) {
    let (text, variables) = input.split_once(ENVIRONMENT).unwrap_or((input, ""));
    drop(Policy::parse(text));
    drop(Tokens::parse(text));
    let variables = variables.lines().filter_map(|line| line.split_once('='));
    let variables: Vec<_> = variables
        .map(|(name, value)| (OsString::from(name), OsString::from(value)))
        .collect();
    for dev in [false, true] {
        let Ok(config) = Config::load_from(Reader::of(text, variables.clone()), dev) else {
            continue;
        };
        let shown = config.settings.to_toml();
        assert!(shown.parse::<toml::Table>().is_ok(), "no TOML: {shown}");
        let reloaded = reloadable(&config.settings, &config.settings);
        assert!(reloaded.is_ok(), "not reloadable: {shown}");
    }
}
