//! A connection to one Redis process. It never reconnects: when the connection breaks, it is
//! closed.

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
    credentials::Credentials,
    era::EraBounds,
    error_table::when_opening,
    location::{Address, StoreLocation},
    span_limit::SpanLimitTerms,
    tls::Tls,
};
use crate::lock::DeploymentKey;

/// Maximum number of commands in flight on one connection.
const IN_FLIGHT_MAX: usize = 65_536;
/// Capacity of fred's message buffers on connections without subscriptions. fred allocates several
/// channels of this size for every connection, and uses one of them for events of the connection.
const MESSAGES_UNUSED: usize = 32;
/// Capacity with which a supervisor receives a burst of 20,000 messages without a pause.
const MESSAGES_MAX: usize = 65_536;
/// Capacity for each of many nodes of a cluster. A lost message costs a touch of the locks with
/// waiters.
const MESSAGES_MAX_EACH: usize = 8_192;
const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Prefix of an error of rustls in fred's errors.
const TLS_ERROR_MARKER: &str = "kind: InvalidData, error: ";
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(3);

/// Configuration of a Redis store.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// Location of the store.
    pub location: StoreLocation,
    pub database: u8,
    /// Credentials of the broker's user.
    pub credentials: Credentials,
    /// TLS settings; `None` for plaintext connections.
    pub tls: Option<Tls>,
    /// Prefix of every key of this deployment.
    pub key_prefix: String,
    /// The deployment key from a file; `None` if it is kept in the store.
    pub deployment_key: Option<DeploymentKey>,
    pub bounds: EraBounds,
    /// Settings of the limit of spans; `None` if the store has none.
    pub span_limit: Option<SpanLimitTerms>,
    /// Number of replicas that must have a grant or a renewal before it is reported; 0 to report it
    /// without waiting.
    pub wait_replicas: u32,
    /// True if the brokers of a cluster use sharded channels instead of messages to all of its
    /// servers.
    pub sharded_pubsub: bool,
    /// True if a store without an era is assumed never to have been used, so that it grants at
    /// once.
    pub trust_empty_store: bool,
    /// True to use stores that may evict locks or are too old.
    pub allow_unsafe: bool,
    /// True to start even if the store cannot be reached.
    pub wait_for_store: bool,
    /// Capacity of the message buffer of the broker's channel: see `Channel`.
    pub messages_max: usize,
}

/// A server and the configuration of connections to it.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) config: RedisConfig,
}

/// Reason why there is no node, in full sentences for operators.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodeError {
    /// A failure that may disappear without an operator.
    #[error("{0}")]
    Unreachable(String),
    /// Problems that an operator must correct.
    #[error("{}", .0.join(" "))]
    Unfit(Vec<String>),
}

/// Reason why a connection closed.
#[derive(Debug)]
pub(super) struct ConnectionLost {
    pub(super) reason: String,
    /// True if the server closed the connection.
    pub(super) is_closed: bool,
}

/// An open connection. Dropping it closes the connection at once.
pub(super) struct Connection {
    client: Client,
    router: ConnectHandle,
}

impl RedisConfig {
    /// Creates a configuration with default values: no credentials, no TLS, no key prefix, default
    /// bounds.
    pub fn at(location: StoreLocation) -> Self {
        let messages_max = match location.is_cluster() {
            true => MESSAGES_MAX_EACH,
            false => MESSAGES_MAX,
        };
        // In a cluster, locks and eras move between servers.
        let span_limit = (!location.is_cluster()).then(SpanLimitTerms::default);
        Self {
            location,
            span_limit,
            database: 0,
            credentials: Credentials::default(),
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

    pub fn era_key(&self) -> String {
        format!("{}era", self.key_prefix)
    }

    /// Returns the key of the spans in use (spans.lua).
    pub(super) fn spans_key(&self) -> String {
        format!("{}spans", self.key_prefix)
    }

    /// Returns the deployment key of a cluster, which the cluster does not store.
    pub(super) fn cluster_key(&self) -> Result<DeploymentKey, NodeError> {
        let missing = "A cluster does not store the deployment key: the brokers need it in a file \
                       (store.deployment_key_file).";
        let key = self.deployment_key.clone();
        key.ok_or_else(|| NodeError::Unfit(vec![missing.to_owned()]))
    }

    /// Returns the key that is written before replicas are queried.
    pub(super) fn marker_key(&self) -> String {
        format!("{}marker", self.key_prefix)
    }

    /// Returns the key under which the deployment key is stored.
    pub fn deployment_key_key(&self) -> String {
        format!("{}key", self.key_prefix)
    }
}

impl Endpoint {
    pub(super) fn new(address: Address, config: RedisConfig) -> Self {
        Self { address, config }
    }

    /// Returns the name of the server for messages.
    pub(super) fn name(&self) -> String {
        format!("Redis at {}", self.address)
    }

    pub(super) fn unreachable(&self, error: &Error) -> NodeError {
        let is_about_tls = error.details().contains(TLS_ERROR_MARKER);
        if is_about_tls || matches!(error.kind(), ErrorKind::Tls) {
            return NodeError::Unreachable(format!(
                "{} and this broker do not agree on TLS: {}. Check whether the server's \
                 certificate names {}, which authority signed it (store.tls_ca_file), and whether \
                 the server requires a certificate of the broker (store.tls_cert_file).",
                self.name(),
                plain_message(error),
                self.server_name()
            ));
        }
        when_opening(&self.name(), error)
    }

    /// Returns the name that the server's certificate must have.
    fn server_name(&self) -> &str {
        let tls = self.config.tls.as_ref();
        let named = tls.and_then(|tls| tls.server_name.as_deref());
        named.unwrap_or(&self.address.host)
    }

    /// Returns the configuration of fred's client.
    fn connect_with(&self) -> Result<Config, NodeError> {
        let unfit = |reason: String| NodeError::Unfit(vec![format!("{}: {reason}.", self.name())]);
        let (username, password) = self.config.credentials.read().map_err(unfit)?;
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

    /// Opens a connection like `open`, with a buffer for `messages_max` unread messages.
    pub(super) async fn open_for_messages(
        endpoint: &Endpoint,
        messages_max: usize,
    ) -> Result<Self, NodeError> {
        let builder = builder(endpoint.connect_with()?, messages_max);
        let client = builder.build().map_err(|e| endpoint.unreachable(&e))?;
        let router = client.init().await.map_err(|e| endpoint.unreachable(&e))?;
        Ok(Self { client, router })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Runs INFO for one section or for all.
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

    /// Waits until the connection breaks, and returns the reason.
    pub(super) async fn broken(&mut self) -> ConnectionLost {
        let (reason, is_closed) = match (&mut self.router).await {
            Ok(Ok(())) => ("connection closed".to_owned(), false),
            Ok(Err(error)) => (plain_message(&error), is_closed_by_peer(&error)),
            Err(_) => ("connection aborted".to_owned(), false),
        };
        ConnectionLost { reason, is_closed }
    }
}

impl Drop for Connection {
    // Aborting is the only certain way to close the connection: everything gentler waits for a
    // server that may have stopped.
    fn drop(&mut self) {
        self.router.abort();
    }
}

/// Returns a builder of clients with the limits of every connection, and a buffer for
/// `messages_max` unread messages.
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
            user_timeout: Some(TCP_USER_TIMEOUT),
            ..TcpConfig::default()
        };
    });
    builder.with_performance_config(|performance| {
        performance.default_command_timeout = COMMAND_TIMEOUT;
        performance.broadcast_channel_capacity = messages_max;
    });
    builder
}

/// Returns a setting of the server; `None` if the server has no setting of this name.
pub(super) async fn setting(client: &Client, name: &str) -> Result<Option<String>, Error> {
    let config = CustomCommand::new_static("CONFIG", None::<u16>, false);
    let args: Vec<Value> = vec!["GET".into(), name.into()];
    let pair: Option<(String, String)> = client.custom(config, args).await?;
    Ok(pair.map(|(_, value)| value))
}

/// Returns true if the error means that the server has closed the connection, and not that it is
/// silent.
fn is_closed_by_peer(error: &Error) -> bool {
    let closed = [
        "Connection closed",
        "ConnectionReset",
        "UnexpectedEof",
        "BrokenPipe",
    ];
    closed.iter().any(|kind| error.details().contains(kind))
}

/// Returns the text of an error, without the arguments that a server may quote.
pub(super) fn plain_message(error: &Error) -> String {
    let text = match error.details().split_once(", with args") {
        Some((text, _)) => text,
        None => error.details(),
    };
    // fred formats errors of the operating system and of TLS in their debug form.
    let of_system = text.split_once("message: \"");
    let of_system = of_system.and_then(|(_, rest)| rest.split_once('"'));
    let of_tls = text.split_once(TLS_ERROR_MARKER);
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
    async fn commands_in_flight_are_bounded() {
        let client = builder(Config::default(), MESSAGES_UNUSED).build();
        let client = client.expect("a client");
        let ping = || client.ping::<()>(None).now_or_never();
        // The client is not connected, so commands wait.
        assert!((0..IN_FLIGHT_MAX).all(|_| ping().is_none()));
        let error = ping().expect("at once").expect_err("one too many");
        assert_eq!(*error.kind(), ErrorKind::Backpressure);
    }

    #[test]
    fn messages_wait_by_the_number_of_servers() {
        let address = Address {
            host: "redis".to_owned(),
            port: 6_379,
        };
        for (location, messages_max) in [
            (StoreLocation::Server(address.clone()), MESSAGES_MAX),
            (StoreLocation::Cluster(vec![address]), MESSAGES_MAX_EACH),
        ] {
            let config = RedisConfig::at(location);
            assert_eq!(config.messages_max, messages_max);
            let builder = builder(Config::default(), config.messages_max);
            let performance = builder.get_performance_config();
            assert_eq!(performance.broadcast_channel_capacity, messages_max);
        }
    }
}
