//! Configuration: defaults < file < environment < flags, every problem reported at once.

mod cli;
mod http2;
mod reader;
mod store;

use std::{net::SocketAddr, time::Duration};

pub use cli::{Cli, Command, Flags};
pub use http2::Http2;
pub use store::StoreSettings;

use self::reader::Reader;
use crate::{lock::Limits, store::redis::era::EraBounds};

const TTL_LEAST: Duration = Duration::from_millis(100);
const TTL_MOST: Duration = Duration::from_secs(3_600);
const WAIT_MOST: Duration = Duration::from_secs(3_600);
const LOCK_DELAY_MOST: Duration = Duration::from_secs(60);

/// What a broker is to do, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// `dev`: one embedded store that grants at once, and the admin service on the API port.
    pub dev: bool,
    /// The address of the API.
    pub listen: SocketAddr,
    /// The address of health and the admin service.
    pub admin_listen: SocketAddr,
    /// The longest time that a stop may take.
    pub drain_timeout: Duration,
    /// Bounds of what callers may ask for.
    pub limits: Limits,
    /// How connections are kept.
    pub http2: Http2,
    /// Where locks are kept.
    pub store: StoreSettings,
    /// What is logged.
    pub log: LogConfig,
}

/// What is logged, to stderr.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Directives of tracing-subscriber's `EnvFilter`.
    pub filter: String,
    /// One JSON object a line.
    pub json: bool,
}

impl Config {
    /// Reads the file, the environment and the flags of `serve`, or of `dev`.
    ///
    /// # Errors
    /// Every problem, one sentence each.
    pub fn load(flags: &Flags, dev: bool) -> Result<Self, Vec<String>> {
        let mut reader = Reader::open(flags);
        let config = Self::read(&mut reader, dev);
        let problems = reader.finish();
        if problems.is_empty() {
            return Ok(config);
        }
        Err(problems)
    }

    fn read(reader: &mut Reader, dev: bool) -> Self {
        let listen = reader.parse("server.listen", "127.0.0.1:7070", address);
        let admin_listen = reader.parse("server.admin_listen", "127.0.0.1:7071", address);
        if listen == admin_listen && listen.port() != 0 {
            reader.problem("server.admin_listen", "must differ from server.listen");
        }
        let log = LogConfig {
            filter: reader.parse("log.filter", "info", filter),
            json: reader.parse("log.format", "text", log_format),
        };
        let limits = limits(reader);
        let bounds = EraBounds {
            ttl_max_ms: limits.ttl_max_ms,
            lock_delay_max_ms: limits.lock_delay_max_ms,
            replica_lag_max_ms: millis(reader.parse("store.replica_lag_max", "12s", duration)),
        };
        Self {
            dev,
            listen,
            admin_listen,
            drain_timeout: reader.parse("server.drain_timeout", "10s", duration),
            limits,
            http2: Http2::read(reader),
            store: StoreSettings::read(reader, dev, bounds),
            log,
        }
    }
}

fn limits(reader: &mut Reader) -> Limits {
    let ttl_min = reader.parse("limits.ttl_min", "1s", duration);
    let ttl_max = at_most(reader, "limits.ttl_max", "60s", TTL_MOST);
    let wait_max = at_most(reader, "limits.wait_max", "1h", WAIT_MOST);
    let lock_delay_max = at_most(reader, "limits.lock_delay_max", "10s", LOCK_DELAY_MOST);
    if ttl_min < TTL_LEAST {
        reader.problem("limits.ttl_min", "must be at least 100ms");
    }
    if ttl_max < ttl_min {
        reader.problem("limits.ttl_max", "must not be below limits.ttl_min");
    }
    let ttl_default = if reader.is_set("limits.ttl_default") {
        reader.parse("limits.ttl_default", "10s", duration)
    } else {
        Duration::from_secs(10).min(ttl_max).max(ttl_min)
    };
    if ttl_default < ttl_min || (ttl_default > ttl_max && ttl_max >= ttl_min) {
        let between = "must lie between limits.ttl_min and limits.ttl_max";
        reader.problem("limits.ttl_default", between);
    }
    Limits {
        ttl_min_ms: millis(ttl_min),
        ttl_max_ms: millis(ttl_max),
        ttl_default_ms: millis(ttl_default),
        wait_max_ms: millis(wait_max),
        lock_delay_max_ms: millis(lock_delay_max),
    }
}

fn at_most(
    reader: &mut Reader,
    key: &'static str,
    default: &'static str,
    most: Duration,
) -> Duration {
    reader.parse(key, default, |text| match duration(text)? {
        value if value <= most => Ok(value),
        _ => Err(format!(
            "must be at most {}",
            humantime::format_duration(most)
        )),
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no IP address with a port, such as 127.0.0.1:7070"))
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is no duration, such as 10s or 500ms"))
}

fn boolean(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is neither true nor false"))
}

fn log_format(text: &str) -> Result<bool, String> {
    match text {
        "json" => Ok(true),
        "text" => Ok(false),
        _ => Err(format!("{text:?} is neither text nor json")),
    }
}

fn filter(text: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{text:?} is no log filter: {error}")),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
