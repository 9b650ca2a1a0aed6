//! Servers of the topologies and a broker on each, of which one topology runs at a time.

use std::{net::SocketAddr, path::Path, time::Duration};

use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::unary::channel,
    cluster::deployment::{ClusterDeployment, ClusterOptions},
    net::certificates::Authority,
    process::{child::TestProcess, temp_dir::TempDir},
    redis::server::RedisServer,
    redlock::deployment::RedlockDeployment,
    sentinel::deployment::{Sentinel, SentinelDeployment, SentinelOptions},
    until::until,
};

use super::{CALLERS_MAX, Topology};
use crate::grpc::{acquire_request, lock_name, named, release};

/// Persistence setting with which the harness starts the servers of all other topologies.
const APPENDING: [&str; 2] = ["--appendonly", "yes"];
const REDLOCK_SERVERS: usize = 5;
/// Node timeout of the cluster, long enough that a busy machine causes no failover.
const NODE_TIMEOUT: Duration = Duration::from_secs(60);
const DEPLOYMENT_KEY_DIGITS: usize = 64;

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
            cluster: ClusterDeployment::start(ClusterOptions {
                node_timeout: NODE_TIMEOUT,
                ..ClusterOptions::default()
            })
            .await,
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
            serves(broker.addr()).await;
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
        serves(broker.addr()).await;
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
        let ca = written(files, "ca.pem", authority.pem());
        let key = written(files, "key", "5a".repeat(DEPLOYMENT_KEY_DIGITS / 2));
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

/// Waits until every lock of the callers was granted, so that the broker is connected to all its
/// servers.
async fn serves(broker: SocketAddr) {
    let mut locks = LockServiceClient::new(channel(broker));
    for at in 0..CALLERS_MAX {
        let lease = until("the broker serves", async || {
            let held = locks.acquire(acquire_request(named(&lock_name(at)))).await;
            held.ok()?.into_inner().lease
        })
        .await;
        release(&mut locks, lease).await;
    }
}

/// Writes a file and returns its path.
fn written(folder: &Path, name: &str, text: String) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("write a file");
    path.to_str().expect("a plain path").to_owned()
}
