//! Logs, to stderr.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::config::Config;

/// Starts logging. Once in a process; a second call changes nothing.
pub fn init(config: &Config) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&config.live.borrow().log_filter))
        .with_writer(io::stderr);
    let started = if config.log_json {
        builder.json().try_init()
    } else {
        builder.with_ansi(false).try_init()
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logging had been started before");
    }
}
