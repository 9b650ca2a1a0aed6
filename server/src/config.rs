//! Configuration: defaults < file < environment < flags, every problem reported at once.

mod access;
mod cli;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod http2;
mod key;
mod live;
mod reader;
mod schema;
mod settings;
mod sources;
mod store;
mod traces;

use std::net::SocketAddr;

use tokio::sync::watch;

pub use access::Access;
pub use cli::{Check, Cli, Command, Flags};
pub use http2::Http2;
pub use live::Live;
pub use settings::{Change, Settings};
pub use store::StoreSettings;

use self::{
    key::{Kind, key, one_of, switch},
    reader::{Outcome, Reader},
};
use crate::{metrics::Metrics, telemetry::LogFormat, trace::TracingSettings};

const LOG_FORMATS: [(&str, LogFormat); 3] = [
    ("auto", LogFormat::Auto),
    ("json", LogFormat::Json),
    ("text", LogFormat::Text),
];

/// What a broker is to do, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// `dev`: one embedded store that grants at once, and the admin service on the API port.
    pub dev: bool,
    /// The address of the API.
    pub listen: SocketAddr,
    /// The address of health and the admin service.
    pub admin_listen: SocketAddr,
    /// The names of the admin listener, in lower case; addresses and `localhost` need none.
    pub admin_hosts: Vec<String>,
    /// Who may connect.
    pub access: Access,
    /// What can change while the broker runs: the newest is what counts.
    pub live: watch::Sender<Live>,
    /// How connections are kept.
    pub http2: Http2,
    /// Where locks are kept.
    pub store: StoreSettings,
    /// Where spans go.
    pub tracing: TracingSettings,
    /// How the log is written.
    pub log_format: LogFormat,
    /// What the broker counts.
    pub metrics: Metrics,
    /// All values in effect, and where each is from.
    pub settings: Settings,
    /// What should be changed, one sentence each.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads the file, the environment and the flags of `serve`, or of `dev`.
    ///
    /// # Errors
    /// Every problem, one sentence each.
    pub fn load(flags: &Flags, dev: bool) -> Result<Self, Vec<String>> {
        Self::load_from(Reader::open(flags), dev)
    }

    fn load_from(mut reader: Reader, dev: bool) -> Result<Self, Vec<String>> {
        let config = Self::read(&mut reader, dev);
        reader.refuse_unknown();
        let outcome = reader.finish();
        if outcome.problems.is_empty() {
            return Ok(Self {
                settings: outcome.settings,
                warnings: outcome.warnings,
                ..config
            });
        }
        Err(outcome.problems)
    }

    /// The JSON Schema of the file.
    #[must_use]
    pub fn schema() -> serde_json::Value {
        let mut reader = Reader::default();
        Self::read(&mut reader, true);
        schema::schema(&reader.finish().settings)
    }

    fn read(reader: &mut Reader, dev: bool) -> Self {
        let listen = key("server.listen", "Where the API listens").or("127.0.0.1:7070");
        let about = "Where health and the admin service listen";
        let admin_listen = key("server.admin_listen", about).or("127.0.0.1:7071");
        let listen = reader.read(listen, address());
        let admin_listen = reader.read(admin_listen, address());
        if listen == admin_listen && listen.port() != 0 {
            reader.problem("server.admin_listen", "must differ from server.listen");
        }
        let about = "Names by which the admin listener may be called where authentication is off, besides IP \
                     addresses and localhost";
        let admin_hosts = key("server.admin_hosts", about).or("");
        let admin_hosts = reader.read(admin_hosts, host_names());
        let about = "How the log is written: as text, as one JSON object a line, or, with auto, as text \
                     on a terminal and else as JSON";
        let log_format = key("log.format", about).or("auto");
        let about = "Whether the broker counts what it does, and shows it on /metrics";
        let metrics = key("metrics.enabled", about).or("true");
        let live = Live::read(reader);
        let bounds = StoreSettings::bounds(reader, &live.limits);
        let store = StoreSettings::read(reader, dev, bounds);
        let is_shared = !matches!(store, StoreSettings::Memory { .. });
        let is_reachable = |address: SocketAddr| !address.ip().is_loopback();
        if dev && is_shared && [listen, admin_listen].into_iter().any(is_reachable) {
            let why =
                "is not for a `dev` that other machines can reach: run `serve` for this store";
            reader.problem("store.url", why);
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
            metrics: Metrics::when(reader.read(metrics, switch())),
            http2: Http2::read(reader),
            store,
            tracing: traces::read(reader),
            settings: Settings::default(),
            warnings: Vec::new(),
        }
    }
}

/// What can be used at once of a configuration that is right by itself: the part that needs no
/// restart, beside the part that does as it is in use.
///
/// # Errors
/// Why they do not go together.
pub(crate) fn reloadable(
    wanted: &Settings,
    in_use: &Settings,
) -> Result<(Live, Settings), Vec<String>> {
    let mut reader = Reader::reloading(wanted, in_use);
    let live = Live::read(&mut reader);
    let Outcome {
        settings, problems, ..
    } = reader.finish();
    if problems.is_empty() {
        return Ok((live, settings));
    }
    Err(problems)
}

fn host_names() -> Kind<Vec<String>> {
    let what = "host names without ports, with commas between them";
    let schema = serde_json::json!({ "type": "string" });
    Kind::new(what, schema, |text| {
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

fn address() -> Kind<SocketAddr> {
    let what = "an IP address with a port, such as 127.0.0.1:7070";
    let schema = serde_json::json!({ "type": "string", "pattern": "^.+:[0-9]+$" });
    Kind::new(what, schema, |text| text.parse().ok())
}
