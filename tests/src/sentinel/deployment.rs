//! Redis with Sentinel: a master, its replicas, and the Sentinels that perform failovers.

mod faults;
mod process;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use futures::future::join_all;

pub use self::{faults::MasterFault, process::Sentinel};
use crate::{
    net::partition_proxy::PartitionProxy,
    process::ports::free_port,
    redis::{
        connection::RedisConnection,
        server::{RedisOptions, RedisServer},
    },
    until::until,
};

/// Name of the master in the configuration of the Sentinels.
pub const MASTER: &str = "leasehold";

/// Options of a deployment.
#[derive(Debug, Clone)]
pub struct SentinelOptions {
    /// Number of replicas in addition to the master.
    pub replicas: usize,
    /// Number of Sentinels. The quorum is two thirds of them, rounded up.
    pub sentinels: usize,
    /// Time without a response after which a Sentinel considers a server down.
    pub down_after: Duration,
    /// Maximum duration of a failover. After twice this time a failed failover is retried.
    pub failover_timeout: Duration,
    /// Number of replicas below which a master rejects writes.
    pub min_replicas_to_write: usize,
    /// Time after its last acknowledgement for which a replica counts, in whole seconds.
    pub min_replicas_max_lag: Duration,
    /// Address or host name of this machine, as the Sentinels announce it.
    pub host: &'static str,
    /// TLS options. If there are any, each server and each Sentinel also has a TLS port, which all
    /// components except the test use.
    pub tls: Vec<String>,
    /// True if all components reach each server through a blockable proxy.
    pub has_partition_proxies: bool,
    /// Further options of the servers, as on the command line of `redis-server`.
    pub server_options: Vec<String>,
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
            has_partition_proxies: false,
            server_options: Vec::new(),
        }
    }
}

impl SentinelOptions {
    /// Returns options with long timeouts, so that a busy machine causes neither a failover nor
    /// rejected writes.
    #[must_use]
    pub fn without_failovers() -> Self {
        Self {
            down_after: Duration::from_secs(60),
            min_replicas_max_lag: Duration::from_secs(10),
            ..Self::default()
        }
    }
}

/// Running servers and Sentinels. Servers are indexed, and the first master has index 0.
#[derive(Debug)]
pub struct SentinelDeployment {
    members: Vec<MonitoredServer>,
    sentinels: Vec<Sentinel>,
    host: &'static str,
}

/// A server and the proxy in front of it.
#[derive(Debug)]
struct MonitoredServer {
    server: RedisServer,
    tls: Option<u16>,
    proxy: Option<PartitionProxy>,
}

impl SentinelDeployment {
    /// Starts all processes, and waits until the replicas are in sync and the Sentinels have found
    /// all servers and Sentinels.
    pub async fn start(options: SentinelOptions) -> Self {
        let members = (0..=options.replicas).map(|index| MonitoredServer::start(index, &options));
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
        all.wait_until_in_sync(0).await;
        let sentinels = (0..options.sentinels)
            .map(|index| Sentinel::start(sentinel_source_address(index), master, &options));
        all.sentinels = join_all(sentinels).await;
        all.wait_until_ready().await;
        all
    }

    /// Returns the URL for `--store`.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.sentinel_addrs().into_iter();
        let addrs = addrs.map(|addr| format!("{}:{}", self.host, addr.port()));
        let addrs: Vec<_> = addrs.collect();
        format!("redis-sentinel://{}/{MASTER}", addrs.join(","))
    }

    #[must_use]
    pub fn sentinel_addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Sentinel::addr).collect()
    }

    #[must_use]
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// Returns the number of servers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Returns a server, to pause it or to connect to it without its proxy.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.members[index].server
    }

    /// Returns the address at which all other components reach a server: the address of its proxy,
    /// or its TLS address with TLS.
    #[must_use]
    pub fn addr(&self, index: usize) -> SocketAddr {
        self.members[index].addr()
    }

    /// Opens a plaintext connection, through the proxy if there is one.
    pub async fn connect(&self, index: usize) -> RedisConnection {
        let member = &self.members[index];
        let proxy = member.proxy.as_ref().map(PartitionProxy::addr);
        let addr = proxy.unwrap_or_else(|| member.server.addr());
        let connection = RedisConnection::open(addr).await;
        connection.expect("connect to a server of this test")
    }

    /// Returns the index of the master, according to the first running Sentinel.
    pub async fn master(&self) -> usize {
        let sentinel = self.running_sentinels().next().expect("a Sentinel runs");
        self.index_of(sentinel.master().await)
    }

    /// Waits until every running replica has replicated the current data of the master.
    pub async fn wait_until_in_sync(&self, master: usize) {
        let mut target_offset = None;
        until("replicas in sync", async || {
            let caught_up = self.has_caught_up(master, &mut target_offset).await;
            caught_up.then_some(())
        })
        .await;
    }

    /// Waits until a failover is possible: the replicas of the current master are in sync, and
    /// every running Sentinel sees all other running Sentinels and healthy replicas.
    pub async fn wait_until_ready(&self) {
        let mut target_offset = None;
        until("master, replicas and Sentinels in order", async || {
            let master = self.master().await;
            let caught_up = self.has_caught_up(master, &mut target_offset).await;
            let replicas: Vec<u16> = self.running_replica_ports(master).collect();
            let sentinels = self.running_sentinels().count();
            let seen = self
                .running_sentinels()
                .map(|one| one.sees_all(&replicas, sentinels));
            let seen = join_all(seen).await.into_iter().all(|seen| seen);
            (caught_up && seen).then_some(())
        })
        .await;
    }

    /// Returns true if every running replica has reached the replication offset that this master
    /// had at the first call with `noted`.
    async fn has_caught_up(&self, master: usize, target_offset: &mut Option<(usize, i64)>) -> bool {
        let mut raw = self.server(master).connect().await;
        let text = raw.must(&["INFO", "replication"]).await.text().to_owned();
        let offset = text.lines().find_map(|line| {
            let offset = line.strip_prefix("master_repl_offset:")?;
            offset.parse().ok()
        });
        let offset: i64 = offset.expect("an offset");
        let reached = match *target_offset {
            Some((same, reached)) if same == master => reached,
            Some(_) | None => target_offset.insert((master, offset)).1,
        };
        let online = text.lines().filter(|line| {
            let offset = line
                .split(',')
                .find_map(|part| part.strip_prefix("offset="));
            let offset = offset.and_then(|offset| offset.parse::<i64>().ok());
            line.contains("state=online") && offset >= Some(reached)
        });
        online.count() >= self.running_replica_ports(master).count()
    }

    /// Returns the ports of the running servers other than the master.
    fn running_replica_ports(&self, master: usize) -> impl Iterator<Item = u16> {
        let others = self.other_servers(master);
        let running = others.filter(|&other| self.server(other).is_responsive());
        running.map(|other| self.addr(other).port())
    }

    fn running_sentinels(&self) -> impl Iterator<Item = &Sentinel> {
        self.sentinels
            .iter()
            .filter(|sentinel| sentinel.is_running())
    }

    fn other_servers(&self, than: usize) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(move |&index| index != than)
    }

    fn index_of(&self, addr: SocketAddr) -> usize {
        let index = self.members.iter().position(|member| member.addr() == addr);
        index.unwrap_or_else(|| panic!("{addr} is no server of this test"))
    }
}

impl MonitoredServer {
    async fn start(index: usize, all: &SentinelOptions) -> Self {
        let port = free_port();
        let proxy = match all.has_partition_proxies {
            true => {
                Some(PartitionProxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await)
            }
            false => None,
        };
        let tls = (!all.tls.is_empty()).then(free_port);
        let announced = proxy.as_ref().map(|proxy| proxy.addr().port());
        let announced = announced.or(tls).unwrap_or(port);
        let options = format!(
            "--protected-mode no --bind-source-addr {} --replica-announce-ip {} --replica-announce-port {announced} \
             --repl-diskless-sync-delay 0 --repl-ping-replica-period 1 --appendonly yes \
             --min-replicas-to-write {} --min-replicas-max-lag {}",
            server_source_address(index),
            all.host,
            all.min_replicas_to_write,
            all.min_replicas_max_lag.as_secs(),
        );
        let options = options.split(' ').map(str::to_owned);
        let mut options: Vec<_> = options.chain(all.server_options.iter().cloned()).collect();
        if let Some(port) = tls {
            let of_tls = ["--tls-port", &port.to_string(), "--tls-replication", "yes"];
            options.extend(of_tls.map(str::to_owned));
            options.extend(all.tls.iter().cloned());
        }
        let server = RedisServer::start_with_options(RedisOptions {
            port: Some(port),
            options,
            ..RedisOptions::default()
        });
        Self {
            server: server.await,
            tls,
            proxy,
        }
    }

    fn addr(&self) -> SocketAddr {
        let by_tls = || {
            self.tls
                .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        let proxy = self
            .proxy
            .as_ref()
            .map(PartitionProxy::addr)
            .or_else(by_tls);
        proxy.unwrap_or_else(|| self.server.addr())
    }
}

/// Returns the source address of a server's connections, by which a proxy identifies the server.
fn server_source_address(index: usize) -> IpAddr {
    loopback_address(1, index)
}

fn sentinel_source_address(index: usize) -> IpAddr {
    loopback_address(2, index)
}

fn loopback_address(net: u8, index: usize) -> IpAddr {
    let host = u8::try_from(index + 1).expect("a few processes");
    IpAddr::from([127, 0, net, host])
}
