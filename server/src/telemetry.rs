//! Logs, to stderr.

use std::io;

use tracing_subscriber::{EnvFilter, Registry, fmt, prelude::*, reload};

use crate::config::Config;

/// What is logged; it can change.
#[derive(Debug)]
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    /// Logs by these directives from now on.
    pub fn set(&self, directives: &str) {
        if let Err(error) = self.0.reload(EnvFilter::new(directives)) {
            tracing::error!(%error, "log.filter cannot be changed");
        }
    }
}

/// Starts logging. Once in a process; a second call changes nothing.
pub fn init(config: &Config) -> LogFilter {
    let filter = EnvFilter::new(&config.live.borrow().log_filter);
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = if config.log_json {
        lines.json().boxed()
    } else {
        lines.with_ansi(false).boxed()
    };
    let started = tracing_subscriber::registry().with(filter).with(lines);
    if let Err(error) = started.try_init() {
        tracing::debug!(%error, "logging had been started before");
    }
    LogFilter(handle)
}
