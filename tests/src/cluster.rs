//! A Redis Cluster: masters that share the slots, and replicas that take their places.

mod faults;
mod forming;
mod map;
mod migration;
mod slot;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use futures::future::join_all;

pub use self::{
    faults::Writes,
    map::Seen,
    migration::Migration,
    slot::{SLOTS, slot_of, tag_in},
};
use crate::{
    gate::Gate,
    port::free_port,
    redis_connection::RedisConnection,
    redis_server::{RedisOptions, RedisServer},
    store_clock::StoreClock,
};

/// What differs from installation to installation.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// How many share the slots.
    pub masters: usize,
    /// Of each master.
    pub replicas: usize,
    /// A node that is silent for so long has failed for another one.
    pub node_timeout: Duration,
    /// Whether everybody reaches each node through gates, which can be shut.
    pub gated: bool,
    /// Whether each node has a wall clock of its own.
    pub clocks: bool,
    /// Whether each node announces an address of its own, as on a host of its own.
    pub apart: bool,
    /// Options of TLS. With any, each node has a port for it besides, and nodes talk by TLS alone.
    pub tls: Vec<String>,
    /// Further options of the nodes, as on redis-server's command line.
    pub options: Vec<String>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            masters: 3,
            replicas: 1,
            node_timeout: Duration::from_millis(1_500),
            gated: false,
            clocks: false,
            apart: false,
            tls: Vec::new(),
            options: Vec::new(),
        }
    }
}

/// Nodes by index: first the first masters, then their replicas in the same order.
#[derive(Debug)]
pub struct ClusterDeployment {
    members: Vec<Member>,
}

/// A node, and what stands before its two ports.
#[derive(Debug)]
struct Member {
    server: RedisServer,
    tls: Option<u16>,
    bus: u16,
    gates: Option<Gates>,
}

#[derive(Debug)]
struct Gates {
    commands: Gate,
    bus: Gate,
}

impl ClusterDeployment {
    /// Starts all; returns once every node knows all slots and every replica is in sync.
    pub async fn start(options: ClusterOptions) -> Self {
        let count = options.masters * (options.replicas + 1);
        let members = (0..count).map(|index| Member::start(index, &options));
        let all = Self {
            members: join_all(members).await,
        };
        all.form(options.masters).await;
        all
    }

    /// What `--store` takes: the addresses of the first masters.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.members.iter().map(|member| member.addr().to_string());
        let addrs: Vec<_> = addrs.take(3).collect();
        format!("redis-cluster://{}", addrs.join(","))
    }

    /// How many nodes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// A node, to pause it or to ask it past its gate.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.members[index].server
    }

    /// Where everybody else reaches a node.
    #[must_use]
    pub fn addr(&self, index: usize) -> SocketAddr {
        self.members[index].addr()
    }

    /// Where those reach a node who talk by TLS.
    #[must_use]
    pub fn tls_addr(&self, index: usize) -> SocketAddr {
        let port = self.members[index].tls;
        let port = port.expect("a deployment that was started with TLS");
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    /// A connection as a client has it, through the gate if there is one.
    pub async fn connect(&self, index: usize) -> RedisConnection {
        let connection = RedisConnection::open(self.addr(index)).await;
        connection.expect("connect to a node of this test")
    }

    /// Every node that runs and is not paused.
    fn answering(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|&index| self.server(index).answers())
    }
}

impl Member {
    async fn start(index: usize, all: &ClusterOptions) -> Self {
        let (port, bus) = (free_port(), free_port());
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let gates = match all.gated {
            true => Some(Gates {
                commands: Gate::start(local(port)).await,
                bus: Gate::start(local(bus)).await,
            }),
            false => None,
        };
        let clock = match all.clocks {
            true => Some(StoreClock::build().await),
            false => None,
        };
        let shown = gates.as_ref().map_or((port, bus), Gates::ports);
        let own = node_address(index);
        let announced = match all.apart {
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
            shown.0,
            shown.1,
            own,
        );
        let options = options.split(' ').map(str::to_owned);
        let mut options: Vec<_> = options.chain(all.options.iter().cloned()).collect();
        if all.apart {
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
        let server = RedisServer::start_as(RedisOptions {
            port: Some(port),
            options,
            clock,
        });
        Self {
            server: server.await,
            tls,
            bus,
            gates,
        }
    }

    fn addr(&self) -> SocketAddr {
        let gate = self.gates.as_ref().map(|gates| gates.commands.addr());
        gate.unwrap_or_else(|| self.server.addr())
    }

    fn bus_port(&self) -> u16 {
        let gates = self.gates.as_ref();
        gates.map_or(self.bus, |gates| gates.ports().1)
    }
}

impl Gates {
    fn ports(&self) -> (u16, u16) {
        (self.commands.addr().port(), self.bus.addr().port())
    }
}

/// From where a node connects to others: a gate knows it by this.
fn node_address(index: usize) -> IpAddr {
    let host = u8::try_from(index + 1).expect("a few processes");
    IpAddr::from([127, 0, 3, host])
}
