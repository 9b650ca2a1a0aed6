//! Where a store is: one server, the master that Sentinel names, or the masters of a cluster.

use std::{fmt, time::Duration};

use fred::{
    interfaces::ClientLike as _,
    types::{CustomCommand, Value},
};
use futures::future::join_all;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    connection::{Connection, Endpoint, NodeError, RedisConfig, plain},
    login::Login,
};

/// How soon a new master is followed that Sentinel names while the old one still answers.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Host and port of a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// There.
    Server(Address),
    /// Where Sentinel says that the master is.
    Sentinel(Sentinel),
    /// At the masters of a cluster. These are some of its servers, which name the others.
    Cluster(Vec<Address>),
}

/// The Sentinels of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinel {
    /// Any number of them; the others are not asked.
    pub addresses: Vec<Address>,
    /// What they call the master.
    pub master: String,
    /// The user of connections to them.
    pub login: Login,
}

/// Finds the server of a store, again and again.
pub(super) enum Finder {
    Known(Address),
    Asking { master: String, all: Vec<Asked> },
}

/// A Sentinel that is asked, and the connection to it until that breaks.
pub(super) struct Asked {
    endpoint: Endpoint,
    connection: Option<Connection>,
}

impl Place {
    /// Whether another server may take over.
    pub(super) fn is_replicated(&self) -> bool {
        matches!(self, Self::Sentinel(_) | Self::Cluster(_))
    }

    /// Whether each server has only some of the locks.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

impl Finder {
    pub(super) fn new(config: &RedisConfig) -> Self {
        match &config.place {
            Place::Server(address) => Self::Known(address.clone()),
            // Whoever has to find all masters asks this one.
            Place::Cluster(seeds) => Self::Known(seeds[0].clone()),
            Place::Sentinel(sentinel) => {
                let config = RedisConfig {
                    login: sentinel.login.clone(),
                    database: 0,
                    ..config.clone()
                };
                let asked = |address: &Address| Asked {
                    endpoint: Endpoint::new(address.clone(), config.clone()),
                    connection: None,
                };
                Self::Asking {
                    master: sentinel.master.clone(),
                    all: sentinel.addresses.iter().map(asked).collect(),
                }
            }
        }
    }

    /// The server of the store at this moment.
    pub(super) async fn find(&mut self) -> Result<Address, NodeError> {
        match self {
            Self::Known(address) => Ok(address.clone()),
            Self::Asking { master, all } => vote(master, all).await.map(|(address, _)| address),
        }
    }

    /// Resolves when the store is not at `address` any more, with the reason. Fewer than most of the
    /// Sentinels cannot say so: they may be cut off from the others, and name an old master.
    pub(super) async fn moved(&mut self, address: &Address) -> String {
        let Self::Asking { master, all } = self else {
            return std::future::pending().await;
        };
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match vote(master, all).await {
                Ok((now, votes)) if now != *address && votes * 2 > all.len() => {
                    return format!("Sentinel names {now} as the master now");
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// The address that most of those Sentinels name that answer, and how many do.
async fn vote(master: &str, all: &mut [Asked]) -> Result<(Address, usize), NodeError> {
    let answers = join_all(all.iter_mut().map(|asked| asked.ask(master))).await;
    let mut why = Vec::new();
    let mut votes: Vec<(Address, usize)> = Vec::new();
    for answer in answers {
        match answer {
            Ok(address) => match votes.iter_mut().find(|(named, _)| *named == address) {
                Some((_, count)) => *count += 1,
                None => votes.push((address, 1)),
            },
            Err(error) => why.push(error.to_string()),
        }
    }
    let most = votes.into_iter().max_by_key(|(_, count)| *count);
    most.ok_or_else(|| NodeError::Unreachable(why.join(" ")))
}

impl Asked {
    async fn ask(&mut self, master: &str) -> Result<Address, NodeError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.endpoint).await?,
        };
        let ask = CustomCommand::new_static("SENTINEL", None::<u16>, false);
        let args: Vec<Value> = vec!["GET-MASTER-ADDR-BY-NAME".into(), master.into()];
        let answer = connection.client().custom(ask, args).await;
        let address: Option<(String, u16)> = answer.map_err(|error| {
            NodeError::Unreachable(format!(
                "{} does not name the master: {}.",
                self.endpoint.name(),
                plain(&error)
            ))
        })?;
        self.connection = Some(connection);
        let (host, port) = address.ok_or_else(|| {
            NodeError::Unreachable(format!(
                "{} knows no master {master:?}. Correct the name after the last / of the store's \
                 URL.",
                self.endpoint.name()
            ))
        })?;
        Ok(Address { host, port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}
