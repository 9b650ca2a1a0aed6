//! Location of a store: one server, the master named by Sentinel, or the masters of a cluster.

use std::{collections::HashMap, fmt, slice, sync::Arc, time::Duration};

use fred::{
    interfaces::ClientLike as _,
    types::{CustomCommand, Value},
};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

use super::{
    connection::{Connection, Endpoint, NodeError, RedisConfig, plain_message},
    credentials::Credentials,
    error_table::is_denied,
};

/// Interval at which Sentinels are queried. A broker switches to a new master within that time,
/// even while the former master still replies.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for which a slow Sentinel delays the query of the others.
const REPLY_TIMEOUT: Duration = Duration::from_millis(800);
/// Time for which a master is used after a majority of the Sentinels has named it.
pub(super) const MASTER_VALID_FOR: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    pub port: u16,
}

/// Location of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// A single server, which is the master.
    Server(Address),
    /// The master that Sentinels name.
    Sentinel(Sentinel),
    /// The masters of a cluster. The addresses are some of its servers, from which the others are
    /// discovered.
    Cluster(Vec<Address>),
}

/// The Sentinels of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinel {
    /// Any number of Sentinels, which must be the same for all brokers. Sentinels that are not
    /// listed are not queried.
    pub addresses: Vec<Address>,
    /// Name of the master at the Sentinels.
    pub master: String,
    /// Credentials for connections to the Sentinels.
    pub credentials: Credentials,
}

/// Resolver of a store's server, used repeatedly.
pub(super) struct MasterResolver {
    mode: ResolverMode,
    view: SentinelViewHandle,
    /// Time at which the last majority that named the master was queried.
    named_at: Instant,
}

enum ResolverMode {
    Known(Address),
    Querying {
        master: String,
        all: Vec<SentinelClient>,
    },
}

/// The Sentinels' view of the master, once one of them was queried.
#[derive(Debug, Clone, Default)]
pub(super) struct SentinelViewHandle(Arc<Mutex<Option<SentinelView>>>);

/// Properties of a master that its Sentinels report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentinelView {
    /// Number of replicas that may replace the master, including those that are down.
    pub(super) replicas: usize,
    /// Silence after which a master is replaced.
    pub(super) down_after: Duration,
}

/// A Sentinel, and the connection to it until the connection breaks.
pub(super) struct SentinelClient {
    endpoint: Endpoint,
    connection: Option<SentinelConnection>,
}

struct SentinelConnection {
    connection: Connection,
    /// True if the Sentinel does not permit the broker's user to query the replicas of the master.
    /// It records each further query in its ACL LOG.
    is_view_denied: bool,
}

impl StoreLocation {
    /// Returns the addresses that the configuration names.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        match self {
            Self::Server(address) => slice::from_ref(address),
            Self::Sentinel(sentinel) => &sentinel.addresses,
            Self::Cluster(seeds) => seeds,
        }
    }

    /// Returns true if another server may replace the current one.
    pub(super) fn is_replicated(&self) -> bool {
        matches!(self, Self::Sentinel(_) | Self::Cluster(_))
    }

    /// Returns true if each server has only some of the locks.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

impl MasterResolver {
    /// Creates a resolver that always returns `address`.
    pub(super) fn fixed(address: Address) -> Self {
        Self::with_mode(ResolverMode::Known(address))
    }

    pub(super) fn new(config: &RedisConfig) -> Self {
        let mode = match &config.location {
            StoreLocation::Server(address) => ResolverMode::Known(address.clone()),
            // Callers that need all masters query this server for them.
            StoreLocation::Cluster(seeds) => ResolverMode::Known(seeds[0].clone()),
            StoreLocation::Sentinel(sentinel) => {
                let config = RedisConfig {
                    credentials: sentinel.credentials.clone(),
                    database: 0,
                    ..config.clone()
                };
                let queried = |address: &Address| SentinelClient {
                    endpoint: Endpoint::new(address.clone(), config.clone()),
                    connection: None,
                };
                ResolverMode::Querying {
                    master: sentinel.master.clone(),
                    all: sentinel.addresses.iter().map(queried).collect(),
                }
            }
        };
        Self::with_mode(mode)
    }

    fn with_mode(mode: ResolverMode) -> Self {
        Self {
            mode,
            view: SentinelViewHandle::default(),
            named_at: Instant::now(),
        }
    }

    /// Returns a handle of the Sentinels' view, which is updated by each query.
    pub(super) fn view(&self) -> SentinelViewHandle {
        self.view.clone()
    }

    /// Returns the current server of the store.
    pub(super) async fn resolve(&mut self) -> Result<Address, NodeError> {
        match &mut self.mode {
            ResolverMode::Known(address) => Ok(address.clone()),
            ResolverMode::Querying { master, all } => {
                let queried = Instant::now();
                let vote = vote_for_master(master, all).await?;
                if !vote.is_majority {
                    return Err(NodeError::Unreachable(format!(
                        "Only {} of {} Sentinels report {} as the master; a majority is needed. \
                         Check that the others run and can be reached.",
                        vote.votes,
                        all.len(),
                        vote.address
                    )));
                }
                self.named_at = queried;
                self.view.update(master, all).await;
                Ok(vote.address)
            }
        }
    }

    /// Waits until the store is no longer at `address`, and returns the reason: a majority of the
    /// Sentinels names another address, or has not named this one for [`MASTER_VALID_FOR`].
    ///
    /// Two brokers use two masters for at most 4 s: 3 s in which no majority of the Sentinels has
    /// named the former master, plus commands in flight (0.8 s). Each of the two was named by a
    /// majority, so at least one Sentinel has named both, the later master later.
    pub(super) async fn wait_until_moved(&mut self, address: &Address) -> String {
        let ResolverMode::Querying { master, all } = &mut self.mode else {
            return std::future::pending().await;
        };
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut named = self.named_at;
        loop {
            let query = async {
                ticks.tick().await;
                (Instant::now(), vote_for_master(master, all).await)
            };
            match timeout_at(named + MASTER_VALID_FOR, query).await {
                Ok((queried, Ok(vote))) if vote.is_majority && vote.address == *address => {
                    named = queried;
                    self.view.update(master, all).await;
                }
                Ok((_, Ok(vote))) if vote.is_majority => {
                    return format!("Sentinel now reports {} as the master", vote.address);
                }
                Ok((_, Ok(_) | Err(_))) => {}
                Err(_) => {
                    return format!(
                        "no majority of the Sentinels has reported it as the master for {} s",
                        MASTER_VALID_FOR.as_secs()
                    );
                }
            }
        }
    }
}

/// The result of a query of all Sentinels.
struct MasterVote {
    /// The address that most of the replies name.
    address: Address,
    votes: usize,
    /// True if more than half of all queried Sentinels name it.
    is_majority: bool,
}

/// Queries all Sentinels for the master.
async fn vote_for_master(
    master: &str,
    all: &mut [SentinelClient],
) -> Result<MasterVote, NodeError> {
    let queries = all.iter_mut().map(async |queried| {
        let reply = timeout(REPLY_TIMEOUT, queried.query_master(master)).await;
        reply.unwrap_or_else(|_| Err(queried.silence_error()))
    });
    let replies = join_all(queries).await;
    let mut reason = Vec::new();
    let mut votes: Vec<(Address, usize)> = Vec::new();
    for reply in replies {
        match reply {
            Ok(address) => match votes.iter_mut().find(|(named, _)| *named == address) {
                Some((_, count)) => *count += 1,
                None => votes.push((address, 1)),
            },
            Err(error) => reason.push(error.to_string()),
        }
    }
    let winner = votes.into_iter().max_by_key(|(_, count)| *count);
    let (address, votes) = winner.ok_or_else(|| NodeError::Unreachable(reason.join(" ")))?;
    Ok(MasterVote {
        address,
        votes,
        is_majority: votes * 2 > all.len(),
    })
}

impl SentinelViewHandle {
    /// Returns the view of the last query.
    pub(super) fn current(&self) -> Option<SentinelView> {
        *self.0.lock()
    }

    /// Queries the connected Sentinels. The result has their highest number of replicas and their
    /// shortest silence.
    async fn update(&self, master: &str, all: &mut [SentinelClient]) {
        let views = join_all(all.iter_mut().map(|queried| queried.query_view(master))).await;
        let views_seen = views
            .into_iter()
            .flatten()
            .reduce(|first, second| SentinelView {
                replicas: first.replicas.max(second.replicas),
                down_after: first.down_after.min(second.down_after),
            });
        if views_seen.is_some() {
            *self.0.lock() = views_seen;
        }
    }
}

impl SentinelClient {
    fn silence_error(&self) -> NodeError {
        NodeError::Unreachable(format!("{} does not answer.", self.endpoint.name()))
    }

    /// Returns this Sentinel's view of the master, if the broker's user may query it. After a
    /// denial the Sentinel is not queried again on the same connection.
    async fn query_view(&mut self, master: &str) -> Option<SentinelView> {
        let sentinel = self.connection.as_mut()?;
        if sentinel.is_view_denied {
            return None;
        }
        let client = sentinel.connection.client();
        let command = CustomCommand::new_static("SENTINEL", None::<u16>, false);
        let args: Vec<Value> = vec!["MASTER".into(), master.into()];
        let fields = client
            .custom::<HashMap<String, String>, _>(command, args)
            .await;
        let fields = match fields {
            Ok(fields) => fields,
            Err(error) => {
                sentinel.is_view_denied = is_denied(&error);
                return None;
            }
        };
        let down_after_ms = fields.get("down-after-milliseconds")?.parse().ok()?;
        Some(SentinelView {
            replicas: fields.get("num-slaves")?.parse().ok()?,
            down_after: Duration::from_millis(down_after_ms),
        })
    }

    async fn query_master(&mut self, master: &str) -> Result<Address, NodeError> {
        let sentinel = match self.connection.take() {
            Some(sentinel) => sentinel,
            None => SentinelConnection {
                connection: Connection::open(&self.endpoint).await?,
                is_view_denied: false,
            },
        };
        let command = CustomCommand::new_static("SENTINEL", None::<u16>, false);
        let args: Vec<Value> = vec!["GET-MASTER-ADDR-BY-NAME".into(), master.into()];
        let reply = sentinel.connection.client().custom(command, args).await;
        let address: Option<(String, u16)> = reply.map_err(|error| {
            NodeError::Unreachable(format!(
                "{} does not report the master: {}.",
                self.endpoint.name(),
                plain_message(&error)
            ))
        })?;
        self.connection = Some(sentinel);
        let (host, port) = address.ok_or_else(|| {
            NodeError::Unreachable(format!(
                "{} has no master named {master:?}. Correct the name after the last / of the \
                 store's URL.",
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
