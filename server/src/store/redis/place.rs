//! Where a store is: one server, the master that Sentinel names, or the masters of a cluster.

use std::{
    collections::HashMap,
    fmt, slice,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fred::{
    error::Error,
    interfaces::ClientLike as _,
    types::{CustomCommand, Value},
};
use futures::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

use super::{
    connection::{Connection, Endpoint, NodeError, RedisConfig, plain},
    login::Login,
    refusal::is_denied,
};

/// How soon a new master is followed that Sentinel names while the old one still answers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// One Sentinel that is slow holds the others up for so long at most.
const ANSWERED_WITHIN: Duration = Duration::from_millis(800);
/// How long a master is used that most of the Sentinels have named.
pub(super) const NAMED_FOR: Duration = Duration::from_secs(3);

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
    /// Any number of them, but the same at all brokers; the others are not asked.
    pub addresses: Vec<Address>,
    /// What they call the master.
    pub master: String,
    /// The user of connections to them.
    pub login: Login,
}

/// Finds the server of a store, again and again.
pub(super) struct Finder {
    way: Way,
    view: View,
    /// When most of the Sentinels were asked that named the master last.
    named: Instant,
}

enum Way {
    Known(Address),
    Asking { master: String, all: Vec<Asked> },
}

/// What the Sentinels say of the master's replicas, once one of them was asked.
#[derive(Debug, Clone, Default)]
pub(super) struct View(Arc<Mutex<Option<SentinelView>>>);

/// What the Sentinels of a master go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentinelView {
    /// The replicas that may take its place, those included that are down now.
    pub(super) replicas: usize,
    /// A master that is silent for so long is replaced.
    pub(super) down_after: Duration,
}

/// A Sentinel that is asked, and the connection to it until that breaks.
pub(super) struct Asked {
    endpoint: Endpoint,
    connection: Option<SentinelConnection>,
}

/// An open connection to a Sentinel.
struct SentinelConnection {
    connection: Connection,
    replica_query: ReplicaQuery,
}

/// Whether a Sentinel is asked about the replicas of the master on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplicaQuery {
    Allowed,
    /// The Sentinel does not let the broker's user ask. It notes each further query in its ACL LOG.
    Denied,
}

impl Place {
    /// Returns the addresses that the configuration names.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        match self {
            Self::Server(address) => slice::from_ref(address),
            Self::Sentinel(sentinel) => &sentinel.addresses,
            Self::Cluster(seeds) => seeds,
        }
    }

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
    /// The server is there.
    pub(super) fn known(address: Address) -> Self {
        Self::of(Way::Known(address))
    }

    pub(super) fn new(config: &RedisConfig) -> Self {
        let way = match &config.place {
            Place::Server(address) => Way::Known(address.clone()),
            // Whoever has to find all masters asks this one.
            Place::Cluster(seeds) => Way::Known(seeds[0].clone()),
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
                Way::Asking {
                    master: sentinel.master.clone(),
                    all: sentinel.addresses.iter().map(asked).collect(),
                }
            }
        };
        Self::of(way)
    }

    fn of(way: Way) -> Self {
        Self {
            way,
            view: View::default(),
            named: Instant::now(),
        }
    }

    /// What the Sentinels say of the replicas: it changes with every look.
    pub(super) fn view(&self) -> View {
        self.view.clone()
    }

    /// The server of the store at this moment.
    pub(super) async fn find(&mut self) -> Result<Address, NodeError> {
        match &mut self.way {
            Way::Known(address) => Ok(address.clone()),
            Way::Asking { master, all } => {
                let asked = Instant::now();
                let vote = vote(master, all).await?;
                if !vote.is_by_most {
                    return Err(NodeError::Unreachable(vote.refusal(all.len())));
                }
                self.named = asked;
                self.view.look(master, all).await;
                Ok(vote.address)
            }
        }
    }

    /// Resolves when the store is not at `address` any more, with the reason: most of the Sentinels name
    /// another one, or they have not named this one for [`NAMED_FOR`].
    ///
    /// Two brokers use two masters for at most 4 s: 3 s in which no majority of the Sentinels has named the
    /// former one, plus commands already under way (0.8 s). A majority has named each of them, so one Sentinel
    /// has named both, the later one later.
    pub(super) async fn moved(&mut self, address: &Address) -> String {
        let Way::Asking { master, all } = &mut self.way else {
            return std::future::pending().await;
        };
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut named = self.named;
        loop {
            let asking = async {
                ticks.tick().await;
                (Instant::now(), vote(master, all).await)
            };
            match timeout_at(named + NAMED_FOR, asking).await {
                Ok((asked, Ok(vote))) if vote.is_by_most && vote.address == *address => {
                    named = asked;
                    self.view.look(master, all).await;
                }
                Ok((_, Ok(vote))) if vote.is_by_most => {
                    return format!("Sentinel names {} as the master now", vote.address);
                }
                Ok((_, Ok(_) | Err(_))) => {}
                Err(_) => {
                    return format!(
                        "no majority of the Sentinels has named it as master for {} s",
                        NAMED_FOR.as_secs()
                    );
                }
            }
        }
    }
}

/// Whom Sentinels name.
struct Vote {
    /// The address that more of those name that answer than any other.
    address: Address,
    votes: usize,
    /// More than half of all that were asked name it.
    is_by_most: bool,
}

impl Vote {
    fn refusal(&self, asked: usize) -> String {
        format!(
            "Only {} of {asked} Sentinels name {} as the master; a majority is needed. Check that the others run \
             and can be reached.",
            self.votes, self.address
        )
    }
}

/// Asks all Sentinels.
async fn vote(master: &str, all: &mut [Asked]) -> Result<Vote, NodeError> {
    let asking = all.iter_mut().map(async |asked| {
        let answer = timeout(ANSWERED_WITHIN, asked.ask(master)).await;
        answer.unwrap_or_else(|_| Err(asked.is_silent()))
    });
    let answers = join_all(asking).await;
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
    let (address, votes) = most.ok_or_else(|| NodeError::Unreachable(why.join(" ")))?;
    Ok(Vote {
        address,
        votes,
        is_by_most: votes * 2 > all.len(),
    })
}

impl View {
    /// What was seen last.
    pub(super) fn seen(&self) -> Option<SentinelView> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the Sentinels that are connected to: most replicas, and the shortest silence.
    async fn look(&self, master: &str, all: &mut [Asked]) {
        let looks = join_all(all.iter_mut().map(|asked| asked.look(master))).await;
        let seen = looks
            .into_iter()
            .flatten()
            .reduce(|one, other| SentinelView {
                replicas: one.replicas.max(other.replicas),
                down_after: one.down_after.min(other.down_after),
            });
        if seen.is_some() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        }
    }
}

impl Asked {
    fn is_silent(&self) -> NodeError {
        NodeError::Unreachable(format!("{} does not answer.", self.endpoint.name()))
    }

    /// What this Sentinel says of the replicas, if the broker's user may ask. After it has denied that, it is
    /// not asked again on the same connection.
    async fn look(&mut self, master: &str) -> Option<SentinelView> {
        let sentinel = self.connection.as_mut()?;
        if sentinel.replica_query == ReplicaQuery::Denied {
            return None;
        }
        let client = sentinel.connection.client();
        let ask = CustomCommand::new_static("SENTINEL", None::<u16>, false);
        let args: Vec<Value> = vec!["MASTER".into(), master.into()];
        let fields = client.custom::<HashMap<String, String>, _>(ask, args).await;
        let fields = match fields {
            Ok(fields) => fields,
            Err(error) => {
                sentinel.replica_query = ReplicaQuery::after(&error);
                return None;
            }
        };
        let down_after_ms = fields.get("down-after-milliseconds")?.parse().ok()?;
        Some(SentinelView {
            replicas: fields.get("num-slaves")?.parse().ok()?,
            down_after: Duration::from_millis(down_after_ms),
        })
    }

    async fn ask(&mut self, master: &str) -> Result<Address, NodeError> {
        let sentinel = match self.connection.take() {
            Some(sentinel) => sentinel,
            None => SentinelConnection::open(&self.endpoint).await?,
        };
        let ask = CustomCommand::new_static("SENTINEL", None::<u16>, false);
        let args: Vec<Value> = vec!["GET-MASTER-ADDR-BY-NAME".into(), master.into()];
        let answer = sentinel.connection.client().custom(ask, args).await;
        let address: Option<(String, u16)> = answer.map_err(|error| {
            NodeError::Unreachable(format!(
                "{} does not name the master: {}.",
                self.endpoint.name(),
                plain(&error)
            ))
        })?;
        self.connection = Some(sentinel);
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

impl SentinelConnection {
    async fn open(endpoint: &Endpoint) -> Result<Self, NodeError> {
        Ok(Self {
            connection: Connection::open(endpoint).await?,
            replica_query: ReplicaQuery::Allowed,
        })
    }
}

impl ReplicaQuery {
    /// Returns the state after a query that failed. Other failures than a denial may pass.
    fn after(error: &Error) -> Self {
        match is_denied(error) {
            true => Self::Denied,
            false => Self::Allowed,
        }
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

#[cfg(test)]
mod tests {
    use fred::error::ErrorKind;

    use super::*;

    #[test]
    fn only_a_denial_ends_the_replica_query() {
        let after = |kind, text: &str| ReplicaQuery::after(&Error::new(kind, text.to_owned()));
        for denial in [
            "NOPERM this user has no permissions to run the 'sentinel|master' command",
            "NOPERM User broker has no permissions to run the 'sentinel|master' command",
        ] {
            let state = after(ErrorKind::Unknown, denial);
            assert_eq!(state, ReplicaQuery::Denied, "{denial}");
        }
        for passing in [
            "ERR No such master with that name",
            "ERR NOPERM is only named here",
            "LOADING Redis is loading the dataset in memory",
        ] {
            let state = after(ErrorKind::Unknown, passing);
            assert_eq!(state, ReplicaQuery::Allowed, "{passing}");
        }
        let timed_out = after(ErrorKind::Timeout, "Request timed out.");
        assert_eq!(timed_out, ReplicaQuery::Allowed);
    }
}
