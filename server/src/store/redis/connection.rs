//! One connection to one Redis process. It never reconnects: when it breaks, it is over.

use std::{fmt, time::Duration};

use fred::{
    clients::Client,
    error::ErrorKind,
    interfaces::ClientLike as _,
    types::{
        Builder, ConnectHandle, InfoKind, RespVersion,
        config::{Config, ServerConfig, TcpConfig},
    },
};
use thiserror::Error;

use super::era::EraBounds;
use crate::lock::DeploymentKey;

/// Commands that may be in flight on one connection.
const IN_FLIGHT_MAX: usize = 65_536;
/// fred allocates several channels of this size for every connection at once; it tells itself of
/// its own connection through one of them.
const MESSAGES_UNUSED: usize = 32;
const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// What a Redis store is configured with.
#[derive(Clone)]
pub struct RedisConfig {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Number of the database.
    pub database: u8,
    /// ACL user.
    pub username: Option<String>,
    /// Never logged.
    pub password: Option<String>,
    /// What every key of this deployment begins with.
    pub key_prefix: String,
    /// The deployment key from a file; else it is kept in the store.
    pub deployment_key: Option<DeploymentKey>,
    /// The bounds of this broker.
    pub bounds: EraBounds,
    /// A store without an era has never been used, and grants at once.
    pub trust_empty_store: bool,
    /// Serves stores that may evict locks, or are too old.
    pub allow_unsafe: bool,
    /// Starts even though the store is out of reach.
    pub wait_for_store: bool,
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

/// An open connection. Dropping it closes it at once.
pub(super) struct Connection {
    client: Client,
    router: ConnectHandle,
}

impl RedisConfig {
    /// How the store is called in messages.
    pub fn address(&self) -> String {
        format!("Redis at {}:{}", self.host, self.port)
    }

    /// The key of the era.
    pub fn era_key(&self) -> String {
        format!("{}era", self.key_prefix)
    }

    /// The key of the deployment key.
    pub fn deployment_key_key(&self) -> String {
        format!("{}key", self.key_prefix)
    }

    pub(super) fn unreachable(&self, error: &fred::error::Error) -> NodeError {
        let address = self.address();
        let text = plain(error);
        if matches!(error.kind(), ErrorKind::Auth) || text.starts_with("NOPERM") {
            return NodeError::Unfit(vec![format!(
                "{address} refuses this broker's user: {text}. Correct the user name and the \
                 password, or the user's rights."
            )]);
        }
        NodeError::Unreachable(format!(
            "{address} cannot be reached: {text}. Start it, or use --wait-for-store."
        ))
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("address", &self.address())
            .field("database", &self.database)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| ".."))
            .field("key_prefix", &self.key_prefix)
            .field("deployment_key", &self.deployment_key)
            .field("bounds", &self.bounds)
            .field("trust_empty_store", &self.trust_empty_store)
            .field("allow_unsafe", &self.allow_unsafe)
            .field("wait_for_store", &self.wait_for_store)
            .finish()
    }
}

impl Connection {
    /// Connects, authenticates and selects the database.
    pub(super) async fn open(config: &RedisConfig) -> Result<Self, NodeError> {
        Self::open_for_messages(config, MESSAGES_UNUSED).await
    }

    /// `open`, with room for `messages_max` messages that were not yet read.
    pub(super) async fn open_for_messages(
        config: &RedisConfig,
        messages_max: usize,
    ) -> Result<Self, NodeError> {
        // RESP2: fred writes a RESP3 HELLO as plain text, in which a space ends the password.
        let mut builder = Builder::from_config(Config {
            server: ServerConfig::new_centralized(&config.host, config.port),
            database: (config.database != 0).then_some(config.database),
            username: config.username.clone(),
            password: config.password.clone(),
            version: RespVersion::RESP2,
            ..Config::default()
        });
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
        let client = builder.build().map_err(|e| config.unreachable(&e))?;
        let router = client.init().await.map_err(|e| config.unreachable(&e))?;
        Ok(Self { client, router })
    }

    /// Sends commands.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// INFO, of one section or all.
    pub(super) async fn info(
        &self,
        config: &RedisConfig,
        section: Option<InfoKind>,
    ) -> Result<String, NodeError> {
        self.client
            .info(section)
            .await
            .map_err(|e| config.unreachable(&e))
    }

    /// Resolves when the connection has broken, with the reason.
    pub(super) async fn broken(&mut self) -> String {
        match (&mut self.router).await {
            Ok(Ok(())) => "connection closed".to_owned(),
            Ok(Err(error)) => plain(&error),
            Err(_) => "connection aborted".to_owned(),
        }
    }
}

impl Drop for Connection {
    // The only sure reset: everything gentler waits for a server that may have stopped.
    fn drop(&mut self) {
        self.router.abort();
    }
}

/// The text of an error, without the arguments that a server may quote in it.
pub(super) fn plain(error: &fred::error::Error) -> String {
    let text = match error.details().split_once(", with args") {
        Some((text, _)) => text,
        None => error.details(),
    };
    // fred gives errors of the system in their debug form.
    let of_system = text.split_once("message: \"");
    let text = match of_system.and_then(|(_, rest)| rest.split_once('"')) {
        Some((text, _)) => text,
        None => text,
    };
    let text: String = text.chars().take(160).collect();
    text.trim_end_matches('.').to_owned()
}
