//! Redis with Sentinel: a master, replicas, and the Sentinels that put one in the place of the other.

mod faults;
mod process;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use futures::future::join_all;

pub use self::process::Sentinel;
use crate::{
    gate::Gate,
    port::free_port,
    redis_connection::RedisConnection,
    redis_server::{RedisOptions, RedisServer},
    until::until,
};

/// How the Sentinels name the master.
pub const MASTER: &str = "leasehold";

/// What differs from installation to installation.
#[derive(Debug, Clone)]
pub struct SentinelOptions {
    /// Beside the master.
    pub replicas: usize,
    /// Two thirds of them must agree, rounded up.
    pub sentinels: usize,
    /// A server that is silent for so long is down for a Sentinel.
    pub down_after: Duration,
    /// A fail-over takes no longer, or is begun again after twice this time.
    pub failover_timeout: Duration,
    /// A master with fewer replicas refuses writes.
    pub min_replicas_to_write: usize,
    /// A replica counts for so long after it was heard; whole seconds.
    pub min_replicas_max_lag: Duration,
    /// What the Sentinels call this machine, on which everybody is: an address, or a name.
    pub host: &'static str,
    /// Options of TLS. With any, each server and each Sentinel has a port for it besides, and nobody
    /// but the test uses another.
    pub tls: Vec<String>,
    /// Whether everybody reaches each server through a gate, which can be shut.
    pub gated: bool,
    /// Further options of the servers, as on redis-server's command line.
    pub options: Vec<String>,
}

impl Default for SentinelOptions {
    fn default() -> Self {
        Self {
            replicas: 2,
            sentinels: 3,
            down_after: Duration::from_secs(1),
            failover_timeout: Duration::from_secs(4),
            min_replicas_to_write: 1,
            min_replicas_max_lag: Duration::from_secs(2),
            host: "127.0.0.1",
            tls: Vec::new(),
            gated: false,
            options: Vec::new(),
        }
    }
}

impl SentinelOptions {
    /// That the machine is busy is no reason to fail over, or to refuse writes.
    #[must_use]
    pub fn undisturbed() -> Self {
        Self {
            down_after: Duration::from_secs(60),
            min_replicas_max_lag: Duration::from_secs(10),
            ..Self::default()
        }
    }
}

/// Servers by index: the first master is 0.
#[derive(Debug)]
pub struct SentinelDeployment {
    members: Vec<Member>,
    sentinels: Vec<Sentinel>,
    host: &'static str,
}

/// A server, and what stands before it.
#[derive(Debug)]
struct Member {
    server: RedisServer,
    tls: Option<u16>,
    gate: Option<Gate>,
}

impl SentinelDeployment {
    /// Starts all; returns once the replicas are in sync and the Sentinels know everybody.
    pub async fn start(options: SentinelOptions) -> Self {
        let members = (0..=options.replicas).map(|index| Member::start(index, &options));
        let members = join_all(members).await;
        let master = members[0].addr();
        for replica in &members[1..] {
            let mut raw = replica.server.connect().await;
            raw.must(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])
                .await;
        }
        let mut all = Self {
            members,
            sentinels: Vec::new(),
            host: options.host,
        };
        all.in_sync(0).await;
        let sentinels = (0..options.sentinels)
            .map(|index| Sentinel::start(sentinel_address(index), master, &options));
        all.sentinels = join_all(sentinels).await;
        all.ready().await;
        all
    }

    /// What `--store` takes.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.sentinel_addrs().into_iter();
        let addrs = addrs.map(|addr| format!("{}:{}", self.host, addr.port()));
        let addrs: Vec<_> = addrs.collect();
        format!("redis-sentinel://{}/{MASTER}", addrs.join(","))
    }

    /// Where the Sentinels listen.
    #[must_use]
    pub fn sentinel_addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Sentinel::addr).collect()
    }

    /// The Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// How many servers there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// A server, to pause it or to ask it past its gate.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.members[index].server
    }

    /// Where everybody else reaches a server, by TLS if there is TLS.
    #[must_use]
    pub fn addr(&self, index: usize) -> SocketAddr {
        self.members[index].addr()
    }

    /// A connection in the clear, through the gate if there is one.
    pub async fn connect(&self, index: usize) -> RedisConnection {
        let member = &self.members[index];
        let gate = member.gate.as_ref().map(Gate::addr);
        let addr = gate.unwrap_or_else(|| member.server.addr());
        let connection = RedisConnection::open(addr).await;
        connection.expect("connect to a server of this test")
    }

    /// Whom the first Sentinel that runs names as the master.
    pub async fn master(&self) -> usize {
        let sentinel = self.running().next().expect("a Sentinel runs");
        self.index_of(sentinel.master().await)
    }

    /// Returns once every replica that runs has what the master has now.
    pub async fn in_sync(&self, master: usize) {
        let mut noted = None;
        until("replicas in sync", async || {
            let caught_up = self.caught_up(master, &mut noted).await;
            caught_up.then_some(())
        })
        .await;
    }

    /// Returns once the present master's replicas are in sync, and every Sentinel that runs sees all
    /// the others that run, and all replicas in order: a fail-over can begin.
    pub async fn ready(&self) {
        let mut noted = None;
        until("master, replicas and Sentinels in order", async || {
            let master = self.master().await;
            let caught_up = self.caught_up(master, &mut noted).await;
            let replicas: Vec<u16> = self.replicas(master).collect();
            let sentinels = self.running().count();
            let seen = self.running().map(|one| one.sees(&replicas, sentinels));
            let seen = join_all(seen).await.into_iter().all(|seen| seen);
            (caught_up && seen).then_some(())
        })
        .await;
    }

    /// Whether every replica that runs has what the same master had when it was first asked.
    async fn caught_up(&self, master: usize, noted: &mut Option<(usize, i64)>) -> bool {
        let mut raw = self.server(master).connect().await;
        let text = raw.must(&["INFO", "replication"]).await.text().to_owned();
        let offset = text.lines().find_map(|line| {
            let offset = line.strip_prefix("master_repl_offset:")?;
            offset.parse().ok()
        });
        let offset: i64 = offset.expect("an offset");
        let reached = match *noted {
            Some((same, reached)) if same == master => reached,
            Some(_) | None => noted.insert((master, offset)).1,
        };
        let online = text.lines().filter(|line| {
            let offset = line
                .split(',')
                .find_map(|part| part.strip_prefix("offset="));
            let offset = offset.and_then(|offset| offset.parse::<i64>().ok());
            line.contains("state=online") && offset >= Some(reached)
        });
        online.count() >= self.replicas(master).count()
    }

    /// The ports of the others that run.
    fn replicas(&self, master: usize) -> impl Iterator<Item = u16> {
        let others = self.others(master);
        let running = others.filter(|&other| self.server(other).answers());
        running.map(|other| self.addr(other).port())
    }

    fn running(&self) -> impl Iterator<Item = &Sentinel> {
        self.sentinels.iter().filter(|sentinel| sentinel.runs())
    }

    fn others(&self, than: usize) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(move |&index| index != than)
    }

    fn index_of(&self, addr: SocketAddr) -> usize {
        let index = self.members.iter().position(|member| member.addr() == addr);
        index.unwrap_or_else(|| panic!("{addr} is no server of this test"))
    }
}

impl Member {
    async fn start(index: usize, all: &SentinelOptions) -> Self {
        let port = free_port();
        let gate = match all.gated {
            true => Some(Gate::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await),
            false => None,
        };
        let tls = (!all.tls.is_empty()).then(free_port);
        let announced = gate.as_ref().map(|gate| gate.addr().port());
        let announced = announced.or(tls).unwrap_or(port);
        let options = format!(
            "--protected-mode no --bind-source-addr {} --replica-announce-ip {} --replica-announce-port {announced} \
             --repl-diskless-sync-delay 0 --repl-ping-replica-period 1 --appendonly yes \
             --min-replicas-to-write {} --min-replicas-max-lag {}",
            server_address(index),
            all.host,
            all.min_replicas_to_write,
            all.min_replicas_max_lag.as_secs(),
        );
        let options = options.split(' ').map(str::to_owned);
        let mut options: Vec<_> = options.chain(all.options.iter().cloned()).collect();
        if let Some(port) = tls {
            let of_tls = ["--tls-port", &port.to_string(), "--tls-replication", "yes"];
            options.extend(of_tls.map(str::to_owned));
            options.extend(all.tls.iter().cloned());
        }
        let server = RedisServer::start_as(RedisOptions {
            port: Some(port),
            options,
            clock: None,
        });
        Self {
            server: server.await,
            tls,
            gate,
        }
    }

    fn addr(&self) -> SocketAddr {
        let by_tls = || {
            self.tls
                .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        let gate = self.gate.as_ref().map(Gate::addr).or_else(by_tls);
        gate.unwrap_or_else(|| self.server.addr())
    }
}

/// From where a server connects to others: a gate knows it by this.
fn server_address(index: usize) -> IpAddr {
    local(1, index)
}

fn sentinel_address(index: usize) -> IpAddr {
    local(2, index)
}

fn local(net: u8, index: usize) -> IpAddr {
    let host = u8::try_from(index + 1).expect("a few processes");
    IpAddr::from([127, 0, net, host])
}
