//! One connection to one Redis process. It never reconnects: when it breaks, it is over.

use std::time::Duration;

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::ClientLike as _,
    types::{
        Builder, ConnectHandle, CustomCommand, InfoKind, RespVersion, Value,
        config::{Config, Server, ServerConfig, TcpConfig},
    },
};
use thiserror::Error;

use super::{
    era::EraBounds,
    login::Login,
    place::{Address, Place},
    refusal::at_opening,
    tls::Tls,
};
use crate::lock::DeploymentKey;

/// Commands that may be in flight on one connection.
const IN_FLIGHT_MAX: usize = 65_536;
/// fred allocates several channels of this size for every connection at once; it tells itself of
/// its own connection through one of them.
const MESSAGES_UNUSED: usize = 32;
/// A supervisor reads a burst of 20,000 without a pause.
const MESSAGES_MAX: usize = 65_536;
/// The same for each of many nodes: what is lost costs a touch of the locks that are waited for.
const MESSAGES_MAX_EACH: usize = 8_192;
const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// What fred writes before an error of rustls.
const OF_TLS: &str = "kind: InvalidData, error: ";
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// What a Redis store is configured with.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// Where it is.
    pub place: Place,
    /// Number of the database.
    pub database: u8,
    /// The broker's user.
    pub login: Login,
    /// `None`: in the clear.
    pub tls: Option<Tls>,
    /// What every key of this deployment begins with.
    pub key_prefix: String,
    /// The deployment key from a file; else it is kept in the store.
    pub deployment_key: Option<DeploymentKey>,
    /// The bounds of this broker.
    pub bounds: EraBounds,
    /// How many replicas must have a grant or a renewal before anybody is told; 0: nobody waits.
    pub wait_replicas: u32,
    /// Brokers of a cluster tell each other by sharded channels, not by messages to all of its servers.
    pub sharded_pubsub: bool,
    /// A store without an era has never been used, and grants at once.
    pub trust_empty_store: bool,
    /// Serves stores that may evict locks, or are too old.
    pub allow_unsafe: bool,
    /// Starts even though the store is out of reach.
    pub wait_for_store: bool,
    /// Messages on the broker's channel that are kept until they are read: see `Channel`.
    pub messages_max: usize,
}

/// One server that is connected to.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) config: RedisConfig,
}

/// Why there is no node, in whole sentences for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodeError {
    /// It may come by waiting.
    #[error("{0}")]
    Unreachable(String),
    /// Somebody has to change something.
    #[error("{}", .0.join(" "))]
    Unfit(Vec<String>),
}

/// How a connection ended.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) why: String,
    /// The other side closed it.
    pub(super) is_closed: bool,
}

/// An open connection. Dropping it closes it at once.
pub(super) struct Connection {
    client: Client,
    router: ConnectHandle,
}

impl RedisConfig {
    /// With nothing but a place: no login, no TLS, no key prefix, the usual bounds.
    pub fn at(place: Place) -> Self {
        let messages_max = match place.is_cluster() {
            true => MESSAGES_MAX_EACH,
            false => MESSAGES_MAX,
        };
        Self {
            place,
            database: 0,
            login: Login::default(),
            tls: None,
            key_prefix: String::new(),
            deployment_key: None,
            bounds: EraBounds::default(),
            wait_replicas: 0,
            sharded_pubsub: false,
            trust_empty_store: false,
            allow_unsafe: false,
            wait_for_store: false,
            messages_max,
        }
    }

    /// The key of the era.
    pub fn era_key(&self) -> String {
        format!("{}era", self.key_prefix)
    }

    /// The key that is written before replicas are asked.
    pub(super) fn marker_key(&self) -> String {
        format!("{}marker", self.key_prefix)
    }

    /// The key of the deployment key.
    pub fn deployment_key_key(&self) -> String {
        format!("{}key", self.key_prefix)
    }
}

impl Endpoint {
    pub(super) fn new(address: Address, config: RedisConfig) -> Self {
        Self { address, config }
    }

    /// How the server is called in messages.
    pub(super) fn name(&self) -> String {
        format!("Redis at {}", self.address)
    }

    pub(super) fn unreachable(&self, error: &Error) -> NodeError {
        let is_about_tls = error.details().contains(OF_TLS);
        if is_about_tls || matches!(error.kind(), ErrorKind::Tls) {
            return NodeError::Unreachable(format!(
                "{} and this broker do not agree on TLS: {}. See whether the server's \
                 certificate names {}, who signed it (store.tls_ca_file), and whether it wants one \
                 of the broker (store.tls_cert_file).",
                self.name(),
                plain(error),
                self.server_name()
            ));
        }
        at_opening(&self.name(), error)
    }

    /// The name that its certificate must have.
    fn server_name(&self) -> &str {
        let tls = self.config.tls.as_ref();
        let named = tls.and_then(|tls| tls.server_name.as_deref());
        named.unwrap_or(&self.address.host)
    }

    /// What fred connects with.
    fn connect_with(&self) -> Result<Config, NodeError> {
        let unfit = |why: String| NodeError::Unfit(vec![format!("{}: {why}.", self.name())]);
        let (username, password) = self.config.login.read().map_err(unfit)?;
        let tls = self.config.tls.as_ref();
        let server = Server {
            host: self.address.host.as_str().into(),
            port: self.address.port,
            tls_server_name: tls.map(|_| self.server_name().into()),
        };
        Ok(Config {
            server: ServerConfig::Centralized { server },
            database: (self.config.database != 0).then_some(self.config.database),
            username,
            password,
            tls: tls.map(Tls::connector).transpose().map_err(unfit)?,
            // fred writes a RESP3 HELLO as plain text, in which a space ends the password.
            version: RespVersion::RESP2,
            ..Config::default()
        })
    }
}

impl Connection {
    /// Connects, authenticates and selects the database.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Self, NodeError> {
        Self::open_for_messages(endpoint, MESSAGES_UNUSED).await
    }

    /// `open`, with room for `messages_max` messages that were not yet read.
    pub(super) async fn open_for_messages(
        endpoint: &Endpoint,
        messages_max: usize,
    ) -> Result<Self, NodeError> {
        let builder = builder(endpoint.connect_with()?, messages_max);
        let client = builder.build().map_err(|e| endpoint.unreachable(&e))?;
        let router = client.init().await.map_err(|e| endpoint.unreachable(&e))?;
        Ok(Self { client, router })
    }

    /// Sends commands.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// INFO, of one section or all.
    pub(super) async fn info(
        &self,
        endpoint: &Endpoint,
        section: Option<InfoKind>,
    ) -> Result<String, NodeError> {
        self.client
            .info(section)
            .await
            .map_err(|e| endpoint.unreachable(&e))
    }

    /// Resolves when the connection has broken, with the reason.
    pub(super) async fn broken(&mut self) -> Broken {
        let (why, is_closed) = match (&mut self.router).await {
            Ok(Ok(())) => ("connection closed".to_owned(), false),
            Ok(Err(error)) => (plain(&error), is_closed_by_peer(&error)),
            Err(_) => ("connection aborted".to_owned(), false),
        };
        Broken { why, is_closed }
    }
}

impl Drop for Connection {
    // The only sure reset: everything gentler waits for a server that may have stopped.
    fn drop(&mut self) {
        self.router.abort();
    }
}

/// What a client is built with: room for `messages_max` messages that were not yet read, and the bounds of
/// every connection.
fn builder(config: Config, messages_max: usize) -> Builder {
    let mut builder = Builder::from_config(config);
    builder.with_connection_config(|connection| {
        connection.max_command_attempts = 1;
        connection.max_command_buffer_len = IN_FLIGHT_MAX;
        connection.connection_timeout = CONNECT_TIMEOUT;
        connection.internal_command_timeout = CONNECT_TIMEOUT;
        connection.disable_cluster_health_check = true;
        connection.tcp = TcpConfig {
            nodelay: Some(true),
            user_timeout: Some(UNACKNOWLEDGED_MAX),
            ..TcpConfig::default()
        };
    });
    builder.with_performance_config(|performance| {
        performance.default_command_timeout = COMMAND_TIMEOUT;
        performance.broadcast_channel_capacity = messages_max;
    });
    builder
}

/// A setting of the server; `None` if it has none of this name.
pub(super) async fn setting(client: &Client, name: &str) -> Result<Option<String>, Error> {
    let config = CustomCommand::new_static("CONFIG", None::<u16>, false);
    let args: Vec<Value> = vec!["GET".into(), name.into()];
    let (_, value): (String, String) = match client.custom(config, args).await? {
        Some(pair) => pair,
        None => return Ok(None),
    };
    Ok(Some(value))
}

/// Whether an error of a connection says that the other side has closed it, and not that it is silent.
fn is_closed_by_peer(error: &Error) -> bool {
    let closed = [
        "Connection closed",
        "ConnectionReset",
        "UnexpectedEof",
        "BrokenPipe",
    ];
    closed.iter().any(|kind| error.details().contains(kind))
}

/// The text of an error, without the arguments that a server may quote in it.
pub(super) fn plain(error: &Error) -> String {
    let text = match error.details().split_once(", with args") {
        Some((text, _)) => text,
        None => error.details(),
    };
    // fred gives errors of the system, and those of TLS, in their debug form.
    let of_system = text.split_once("message: \"");
    let of_system = of_system.and_then(|(_, rest)| rest.split_once('"'));
    let of_tls = text.split_once(OF_TLS);
    let of_tls = of_tls.and_then(|(_, rest)| rest.rsplit_once(" }"));
    let text = of_system.or(of_tls).map_or(text, |(text, _)| text);
    let text: String = text.chars().take(160).collect();
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn so_many_commands_are_on_the_way_to_a_server() {
        let client = builder(Config::default(), MESSAGES_UNUSED).build();
        let client = client.expect("a client");
        let ask = || client.ping::<()>(None).now_or_never();
        // Nobody has connected it: what is sent waits.
        assert!((0..IN_FLIGHT_MAX).all(|_| ask().is_none()));
        let refused = ask().expect("at once").expect_err("one too many");
        assert_eq!(*refused.kind(), ErrorKind::Backpressure);
    }

    #[test]
    fn messages_wait_by_the_number_of_servers() {
        let address = Address {
            host: "redis".to_owned(),
            port: 6_379,
        };
        for (place, messages_max) in [
            (Place::Server(address.clone()), MESSAGES_MAX),
            (Place::Cluster(vec![address]), MESSAGES_MAX_EACH),
        ] {
            let config = RedisConfig::at(place);
            assert_eq!(config.messages_max, messages_max);
            let builder = builder(Config::default(), config.messages_max);
            let performance = builder.get_performance_config();
            assert_eq!(performance.broadcast_channel_capacity, messages_max);
        }
    }
}
