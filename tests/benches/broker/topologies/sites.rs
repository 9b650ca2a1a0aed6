//! Servers of the topologies and a broker on each, of which one topology runs at a time.

use std::{net::SocketAddr, path::Path};

use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    cluster::deployment::ClusterDeployment,
    net::certificates::Authority,
    process::{child::TestProcess, temp_dir::TempDir},
    redis::server::RedisServer,
    redlock::deployment::RedlockDeployment,
    sentinel::deployment::{Sentinel, SentinelDeployment, SentinelOptions},
};

use super::Topology;
use crate::site::{start_cluster, wait_until_serving, write_deployment_key, write_file};

/// Persistence setting with which the harness starts the servers of all other topologies.
const APPENDING: [&str; 2] = ["--appendonly", "yes"];
const REDLOCK_SERVERS: usize = 5;

/// Brokers and servers of all topologies, killed when dropped, brokers first.
pub(super) struct Sites {
    brokers: Vec<(Topology, BrokerProcess)>,
    servers: Servers,
    /// Files that the brokers' settings refer to.
    _files: TempDir,
}

struct Servers {
    node: RedisServer,
    tls: RedisServer,
    sentinel: SentinelDeployment,
    cluster: ClusterDeployment,
    redlock: RedlockDeployment,
}

impl Sites {
    pub(super) async fn start() -> Self {
        let (files, authority) = (TempDir::new("topologies"), Authority::new("the authority"));
        let certificate = authority.server(&["127.0.0.1"]);
        let servers = Servers {
            node: RedisServer::start_with(&APPENDING).await,
            tls: RedisServer::start_tls(&certificate, None, &APPENDING).await,
            sentinel: SentinelDeployment::start(SentinelOptions::without_failovers()).await,
            cluster: start_cluster().await,
            redlock: RedlockDeployment::start(REDLOCK_SERVERS).await,
        };
        let brokers = servers.brokers(files.path(), &authority).await;
        let sites = Self {
            brokers,
            servers,
            _files: files,
        };
        // A broker listens before its store is open, and two brokers have the same store.
        for (_, broker) in &sites.brokers {
            wait_until_serving(broker.addr()).await;
        }
        for topology in sites.topologies() {
            sites.stop(topology).await;
        }
        sites
    }

    /// Returns the topologies in the order of the table.
    pub(super) fn topologies(&self) -> impl Iterator<Item = Topology> {
        self.brokers.iter().map(|(topology, _)| *topology)
    }

    /// Resumes a topology. Returns the address of its broker once the broker serves.
    pub(super) async fn go_on(&self, topology: Topology) -> SocketAddr {
        for process in self.servers.of(topology) {
            process.resume();
        }
        match topology {
            Topology::Sentinel | Topology::SentinelWaits => {
                self.servers.sentinel.wait_until_ready().await
            }
            Topology::Cluster => self.servers.cluster.wait_until_ready().await,
            Topology::Node | Topology::Tls | Topology::RedLock => {}
        }
        let broker = self.broker(topology);
        broker.process().resume();
        wait_until_serving(broker.addr()).await;
        broker.addr()
    }

    /// Pauses a topology, its broker first.
    pub(super) async fn stop(&self, topology: Topology) {
        self.broker(topology).process().pause().await;
        for process in self.servers.of(topology) {
            process.pause().await;
        }
    }

    fn broker(&self, topology: Topology) -> &BrokerProcess {
        let mut brokers = self.brokers.iter();
        let found = brokers.find(|(of, _)| *of == topology);
        let (_, broker) = found.expect("each topology has a broker");
        broker
    }
}

impl Servers {
    /// Starts a broker on each topology, on a store that was initialized as in an installation.
    async fn brokers(&self, files: &Path, authority: &Authority) -> Vec<(Topology, BrokerProcess)> {
        let ca = write_file(files, "ca.pem", authority.pem());
        let key = write_deployment_key(files);
        let key = [("DEPLOYMENT_KEY_FILE", key.as_str())];
        let waits = [("WAIT_REPLICAS", "1")];
        let rows = [
            (Topology::Node, self.node.url(), &[][..]),
            (Topology::Tls, self.tls.url(), &[("TLS_CA_FILE", &*ca)]),
            (Topology::Sentinel, self.sentinel.url(), &[]),
            (Topology::SentinelWaits, self.sentinel.url(), &waits),
            (Topology::Cluster, self.cluster.url(), &key),
            (Topology::RedLock, self.redlock.url(), &key),
        ];
        let mut brokers = Vec::new();
        for (topology, url, settings) in rows {
            let setting = |(key, value): &(&str, &str)| {
                let key = format!("LEASEHOLD__STORE__{key}");
                (key, (*value).to_owned())
            };
            let options = BrokerOptions {
                env: settings.iter().map(setting).collect(),
                ..BrokerOptions::for_store(url)
            };
            // Both brokers behind Sentinel have the same store.
            if topology != Topology::SentinelWaits {
                options.init_store().await;
            }
            brokers.push((topology, BrokerProcess::start(&options).await));
        }
        brokers
    }

    fn of(&self, topology: Topology) -> Vec<&TestProcess> {
        let (sentinel, cluster) = (&self.sentinel, &self.cluster);
        match topology {
            Topology::Node => vec![self.node.process()],
            Topology::Tls => vec![self.tls.process()],
            Topology::Sentinel | Topology::SentinelWaits => {
                let servers = (0..sentinel.count()).map(|index| sentinel.server(index).process());
                let sentinels = sentinel.sentinels().iter().map(Sentinel::process);
                servers.chain(sentinels).collect()
            }
            Topology::Cluster => {
                let nodes = 0..cluster.count();
                nodes.map(|index| cluster.server(index).process()).collect()
            }
            Topology::RedLock => {
                let servers = self.redlock.servers().iter();
                servers.map(RedisServer::process).collect()
            }
        }
    }
}
