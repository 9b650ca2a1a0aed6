//! Log output to stderr: format, filter and start-up.

mod lines;
mod panics;

use std::{
    env,
    io::{self, IsTerminal as _},
    sync::OnceLock,
};

pub(crate) use leasehold_proto::text::plain;
use tracing_subscriber::{EnvFilter, Registry, fmt, prelude::*, reload};

use self::lines::LineFormat;

/// Directive placed before the configured ones, which can override it. rustls logs a warning for
/// each client that connects to an address rather than to a name.
const DEPENDENCY_DIRECTIVES: &str = "rustls::msgs::handshake=error";
/// Filter of the process's log, set when logging starts.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text if stderr is a terminal, otherwise JSON.
    Auto,
    /// One JSON object on each line.
    Json,
    /// Text, coloured on a terminal.
    Text,
}

/// Checks directives of a log filter.
///
/// # Errors
/// If the directives are invalid; the error names the cause.
pub fn check(directives: &str) -> Result<(), String> {
    let parsed = EnvFilter::builder().parse(directives);
    parsed.map(drop).map_err(|error| error.to_string())
}

/// Replaces the filter by these directives, if the process has started logging.
pub fn set_filter(directives: &str) {
    if let Some(handle) = FILTER.get()
        && let Err(error) = handle.reload(filter(directives))
    {
        tracing::error!(%error, "cannot apply the new log.filter");
    }
}

/// Starts logging in this format with these directives. A second call in a process has no effect.
pub fn init(format: LogFormat, directives: &str) {
    let is_terminal = io::stderr().is_terminal();
    let is_json = match format {
        LogFormat::Auto => !is_terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let is_coloured = is_terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (filter, handle) = reload::Layer::new(filter(directives));
    let layer = fmt::layer().with_writer(io::stderr);
    let layer = if is_json {
        let layer = layer.json();
        let layer = layer.map_event_format(|format| LineFormat { format, is_json });
        layer.boxed()
    } else {
        let format = fmt::format().with_ansi(is_coloured);
        layer
            .with_ansi(is_coloured)
            .event_format(LineFormat { format, is_json })
            .fmt_fields(lines::fields())
            .boxed()
    };
    let registry = tracing_subscriber::registry().with(filter).with(layer);
    match registry.try_init() {
        Ok(()) => {
            let _ = FILTER.set(handle);
            panics::log();
        }
        Err(error) => tracing::debug!(%error, "logging is already initialized"),
    }
}

fn filter(directives: &str) -> EnvFilter {
    EnvFilter::new(format!("{DEPENDENCY_DIRECTIVES},{directives}"))
}
