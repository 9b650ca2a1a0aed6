//! A Redis Cluster of real servers: masters that share the slots, and replicas that replace failed
//! masters.

mod faults;
mod forming;
mod migration;
mod node_reports;
mod slot;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use futures::future::join_all;

pub use self::{
    faults::IsolatedWrites,
    migration::Migration,
    node_reports::ReportedNode,
    slot::{SLOTS, hash_tag_for, slot_of},
};
use crate::{
    net::partition_proxy::PartitionProxy,
    process::{ports::free_port, private_wall_clock::PrivateWallClock},
    redis::{
        connection::RedisConnection,
        server::{RedisOptions, RedisServer},
    },
};

/// Settings of a deployment.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Number of masters, which share the slots.
    pub masters: usize,
    /// Number of replicas of each master.
    pub replicas: usize,
    /// Time of silence after which other nodes consider a node failed.
    pub node_timeout: Duration,
    /// True if each node is reached through gates, which tests can shut.
    pub has_partition_proxies: bool,
    /// True if each node has its own wall clock.
    pub has_private_clocks: bool,
    /// True if each node announces its own address, like a node on a separate host.
    pub has_separate_addresses: bool,
    /// TLS options. If there are any, each node has an additional TLS port, and nodes connect to
    /// each other by TLS only.
    pub tls: Vec<String>,
    /// Further command line options of redis-server.
    pub server_options: Vec<String>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            masters: 3,
            replicas: 1,
            node_timeout: Duration::from_millis(1_500),
            has_partition_proxies: false,
            has_private_clocks: false,
            has_separate_addresses: false,
            tls: Vec::new(),
            server_options: Vec::new(),
        }
    }
}

/// A running cluster. Nodes have indexes: first the initial masters, then their replicas in the
/// same order.
#[derive(Debug)]
pub struct ClusterDeployment {
    members: Vec<ClusterNode>,
}

/// A node, and the gates before its two ports.
#[derive(Debug)]
struct ClusterNode {
    server: RedisServer,
    tls: Option<u16>,
    bus: u16,
    proxies: Option<NodeProxies>,
}

#[derive(Debug)]
struct NodeProxies {
    commands: PartitionProxy,
    bus: PartitionProxy,
}

impl ClusterDeployment {
    /// Starts all nodes. Returns once every node has the map of all slots and every replica is in
    /// sync.
    pub async fn start(options: ClusterOptions) -> Self {
        let count = options.masters * (options.replicas + 1);
        let members = (0..count).map(|index| ClusterNode::start(index, &options));
        let all = Self {
            members: join_all(members).await,
        };
        all.form(options.masters).await;
        all
    }

    /// Returns the value of `--store`: the addresses of the first masters.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.members.iter().map(|member| member.addr().to_string());
        let addrs: Vec<_> = addrs.take(3).collect();
        format!("redis-cluster://{}", addrs.join(","))
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Returns a node, so that tests can pause it or connect to it without its gate.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.members[index].server
    }

    /// Returns the address of a node for clients and other nodes, which is its gate if it has one.
    #[must_use]
    pub fn addr(&self, index: usize) -> SocketAddr {
        self.members[index].addr()
    }

    /// Returns the TLS address of a node.
    #[must_use]
    pub fn tls_addr(&self, index: usize) -> SocketAddr {
        let port = self.members[index].tls;
        let port = port.expect("a deployment that was started with TLS");
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    /// Opens a connection to a node as a client does, through the gate if there is one.
    pub async fn connect(&self, index: usize) -> RedisConnection {
        let connection = RedisConnection::open(self.addr(index)).await;
        connection.expect("connect to a node of this test")
    }

    /// Returns the nodes that run and are not paused.
    fn running_nodes(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|&index| self.server(index).is_responsive())
    }
}

impl ClusterNode {
    async fn start(index: usize, all: &ClusterOptions) -> Self {
        let (port, bus) = (free_port(), free_port());
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let proxies = match all.has_partition_proxies {
            true => Some(NodeProxies {
                commands: PartitionProxy::start(local(port)).await,
                bus: PartitionProxy::start(local(bus)).await,
            }),
            false => None,
        };
        let clock = match all.has_private_clocks {
            true => Some(PrivateWallClock::build().await),
            false => None,
        };
        let announced_ports = proxies.as_ref().map_or((port, bus), NodeProxies::ports);
        let own = source_address(index);
        let announced = match all.has_separate_addresses {
            true => own,
            false => Ipv4Addr::LOCALHOST.into(),
        };
        let options = format!(
            "--cluster-enabled yes --cluster-config-file nodes.conf --cluster-port {bus} \
             --cluster-node-timeout {} --cluster-require-full-coverage no \
             --cluster-allow-replica-migration no --cluster-announce-ip {} \
             --cluster-announce-port {} --cluster-announce-bus-port {} --protected-mode no --bind-source-addr {} \
             --repl-diskless-sync-delay 0 --repl-ping-replica-period 1 --appendonly yes",
            all.node_timeout.as_millis(),
            announced,
            announced_ports.0,
            announced_ports.1,
            own,
        );
        let options = options.split(' ').map(str::to_owned);
        let mut options: Vec<_> = options.chain(all.server_options.iter().cloned()).collect();
        if all.has_separate_addresses {
            let bind = format!("--bind {own} 127.0.0.1");
            options.extend(bind.split(' ').map(str::to_owned));
        }
        let tls = (!all.tls.is_empty()).then(free_port);
        if let Some(port) = tls {
            let of_tls = format!(
                "--tls-port {port} --cluster-announce-tls-port {port} --tls-cluster yes --tls-replication yes"
            );
            options.extend(of_tls.split(' ').map(str::to_owned));
            options.extend(all.tls.iter().cloned());
        }
        let server = RedisServer::start_with_options(RedisOptions {
            port: Some(port),
            options,
            clock,
            ..RedisOptions::default()
        });
        Self {
            server: server.await,
            tls,
            bus,
            proxies,
        }
    }

    fn addr(&self) -> SocketAddr {
        let proxy = self.proxies.as_ref().map(|proxies| proxies.commands.addr());
        proxy.unwrap_or_else(|| self.server.addr())
    }

    fn bus_port(&self) -> u16 {
        let proxies = self.proxies.as_ref();
        proxies.map_or(self.bus, |proxies| proxies.ports().1)
    }
}

impl NodeProxies {
    fn ports(&self) -> (u16, u16) {
        (self.commands.addr().port(), self.bus.addr().port())
    }
}

/// Returns the source address of a node's connections to other nodes. Gates identify nodes by this
/// address.
fn source_address(index: usize) -> IpAddr {
    let host = u8::try_from(index + 1).expect("a few processes");
    IpAddr::from([127, 0, 3, host])
}
