//! Configuration from defaults, file, environment and flags (the later source overrides). All
//! problems are reported at once.

mod access;
mod cli;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod http2;
mod reader;
mod reloadable;
mod schema;
mod setting_def;
mod settings;
mod sources;
mod store;
mod traces;

use std::net::SocketAddr;

use tokio::sync::watch;

pub use access::Access;
pub use cli::{Check, Cli, Command, Flags};
pub use http2::Http2;
pub use reloadable::ReloadableConfig;
pub use settings::Settings;
pub use store::StoreSettings;

use self::{
    reader::Reader,
    setting_def::{ValueType, boolean, one_of, setting},
};
use crate::{metrics::Metrics, telemetry::LogFormat, trace::TracingSettings};

const LOG_FORMATS: [(&str, LogFormat); 3] = [
    ("auto", LogFormat::Auto),
    ("json", LogFormat::Json),
    ("text", LogFormat::Text),
];

/// Validated configuration of a broker.
#[derive(Debug, Clone)]
pub struct Config {
    /// True for the command `dev`: by default an embedded store without quarantine, and the admin
    /// service also on the API port.
    pub dev: bool,
    /// Address of the API listener.
    pub listen: SocketAddr,
    /// Address of the admin listener: health checks, metrics, admin service and operator console.
    pub admin_listen: SocketAddr,
    /// Host names of the admin listener, in lower case. IP addresses and `localhost` are always
    /// allowed.
    pub admin_hosts: Vec<String>,
    /// Authentication, authorization, TLS and connection limits.
    pub access: Access,
    /// Settings that can change while the broker runs. The channel holds the current values.
    pub live: watch::Sender<ReloadableConfig>,
    /// HTTP/2 and gRPC settings.
    pub http2: Http2,
    pub store: StoreSettings,
    /// Export and sampling of spans.
    pub tracing: TracingSettings,
    pub log_format: LogFormat,
    pub metrics: Metrics,
    /// All values in effect, with their sources.
    pub settings: Settings,
    /// Warnings about doubtful settings, one sentence each.
    pub warnings: Vec<String>,
}

impl Config {
    /// Loads the configuration of `serve` or `dev` from the file, the environment and the flags.
    ///
    /// # Errors
    /// All problems, one sentence each.
    pub fn load(flags: &Flags, dev: bool) -> Result<Self, Vec<String>> {
        Self::load_from(Reader::open(flags), dev)
    }

    fn load_from(mut reader: Reader, dev: bool) -> Result<Self, Vec<String>> {
        let config = Self::read(&mut reader, dev);
        reader.report_unknown();
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }
        Ok(Self {
            settings: reader.settings,
            warnings: reader.warnings,
            ..config
        })
    }

    /// Returns the JSON Schema of the configuration file.
    #[must_use]
    pub fn schema() -> serde_json::Value {
        let mut reader = Reader::default();
        Self::read(&mut reader, true);
        schema::schema(&reader.settings)
    }

    fn read(reader: &mut Reader, dev: bool) -> Self {
        let listen = setting("server.listen", "Address of the API").with_default("127.0.0.1:7070");
        let about = "Address of health and the admin service";
        let admin_listen = setting("server.admin_listen", about).with_default("127.0.0.1:7071");
        let listen = reader.read(listen, address());
        let admin_listen = reader.read(admin_listen, address());
        if listen == admin_listen && listen.port() != 0 {
            reader.problem("server.admin_listen", "must differ from server.listen");
        }
        let about = "Host names that the admin listener accepts while authentication is off, in \
            addition to IP addresses and localhost";
        let admin_hosts = setting("server.admin_hosts", about).with_default("");
        let admin_hosts = reader.read(admin_hosts, host_names());
        let about = "Log format: text, one JSON object per line, or, with auto, text on a terminal \
            and JSON otherwise";
        let log_format = setting("log.format", about).with_default("auto");
        let about = "Collect metrics and serve them on /metrics";
        let metrics = setting("metrics.enabled", about).with_default("true");
        let live = ReloadableConfig::read(reader);
        let bounds = StoreSettings::bounds(reader, &live.limits);
        let store = StoreSettings::read(reader, dev, bounds);
        let is_shared = !matches!(store, StoreSettings::Memory { .. });
        let is_reachable = |address: SocketAddr| !address.ip().is_loopback();
        if dev && is_shared && [listen, admin_listen].into_iter().any(is_reachable) {
            let message = "is not allowed for a `dev` that other machines can reach: run `serve` \
                for this store";
            reader.problem("store.url", message);
        }
        Self {
            dev,
            listen,
            admin_listen,
            admin_hosts,
            access: Access::read(
                reader,
                [
                    ("server.listen", listen),
                    ("server.admin_listen", admin_listen),
                ],
            ),
            log_format: reader.read(log_format, one_of(&LOG_FORMATS)),
            live: watch::Sender::new(live),
            metrics: Metrics::enabled(reader.read(metrics, boolean())),
            http2: Http2::read(reader),
            store,
            tracing: traces::read(reader),
            settings: Settings::default(),
            warnings: Vec::new(),
        }
    }
}

/// Combines the reloadable settings of `wanted`, a valid configuration, with the values in use of
/// all other settings.
///
/// # Errors
/// The reasons why the combined settings are invalid.
pub(crate) fn reloadable(
    requested: &Settings,
    in_use: &Settings,
) -> Result<(ReloadableConfig, Settings), Vec<String>> {
    let mut reader = Reader::for_reload(requested, in_use);
    let live = ReloadableConfig::read(&mut reader);
    match reader.problems.is_empty() {
        true => Ok((live, reader.settings)),
        false => Err(reader.problems),
    }
}

fn host_names() -> ValueType<Vec<String>> {
    let expected = "host names without ports, separated by commas";
    let schema = serde_json::json!({ "type": "string" });
    ValueType::new(expected, schema, |text| {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let names = text.split(',').map(str::trim);
        let names: Vec<_> = names
            .filter(|name| !name.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        let are_legal = names.iter().all(|name| name.chars().all(is_legal));
        are_legal.then_some(names)
    })
}

fn address() -> ValueType<SocketAddr> {
    let expected = "an IP address with a port, such as 127.0.0.1:7070";
    let schema = serde_json::json!({ "type": "string", "pattern": "^.+:[0-9]+$" });
    ValueType::new(expected, schema, |text| text.parse().ok())
}
