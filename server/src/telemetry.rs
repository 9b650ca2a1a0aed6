//! Logs, to stderr.

mod lines;
mod panics;

use std::{
    env,
    io::{self, IsTerminal as _},
    sync::OnceLock,
};

use tracing_subscriber::{EnvFilter, Registry, fmt, prelude::*, reload};

use self::lines::{Json, Text};

/// Before the directives of the configuration, which may say otherwise of the same module: rustls
/// warns of every client that connects to an address rather than to a name.
const QUIET: &str = "rustls::msgs::handshake=error";
/// That of the process.
static FILTER: OnceLock<LogFilter> = OnceLock::new();

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// As text for people at a terminal, else as JSON.
    Auto,
    /// One JSON object a line.
    Json,
    /// As text; coloured on a terminal.
    Text,
}

/// What is logged; it can change.
#[derive(Debug, Clone)]
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    /// Logs by these directives from now on.
    pub fn set(&self, directives: &str) {
        if let Err(error) = self.0.reload(filter(directives)) {
            tracing::error!(%error, "log.filter cannot be changed");
        }
    }
}

/// What is wrong with directives, if they are.
///
/// # Errors
/// Why.
pub fn check(directives: &str) -> Result<(), String> {
    let parsed = EnvFilter::builder().parse(directives);
    parsed.map(drop).map_err(|error| error.to_string())
}

/// Logs by these directives from now on, if the process logs at all.
pub fn set_filter(directives: &str) {
    if let Some(filter) = FILTER.get() {
        filter.set(directives);
    }
}

/// Starts logging in this format by these directives. A second call in a process changes nothing.
pub fn init(format: LogFormat, directives: &str) -> LogFilter {
    let is_terminal = io::stderr().is_terminal();
    let is_json = match format {
        LogFormat::Auto => !is_terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let is_coloured = is_terminal && env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let (filter, handle) = reload::Layer::new(filter(directives));
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = if is_json {
        lines.json().map_event_format(Json).boxed()
    } else {
        let text = fmt::format().with_ansi(is_coloured);
        lines
            .with_ansi(is_coloured)
            .event_format(Text(text))
            .fmt_fields(lines::fields())
            .boxed()
    };
    let started = tracing_subscriber::registry().with(filter).with(lines);
    let filter = LogFilter(handle);
    match started.try_init() {
        Ok(()) => {
            let _ = FILTER.set(filter.clone());
            panics::log();
        }
        Err(error) => tracing::debug!(%error, "logging had been started before"),
    }
    filter
}

fn filter(directives: &str) -> EnvFilter {
    EnvFilter::new(format!("{QUIET},{directives}"))
}
