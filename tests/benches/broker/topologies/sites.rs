//! All topologies at a time: their servers, and a broker on each.

use std::{net::SocketAddr, path::Path, time::Duration};

use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    certificates::Authority,
    cluster::{ClusterDeployment, ClusterOptions},
    redis_server::RedisServer,
    redlock::RedlockDeployment,
    sentinel::{Sentinel, SentinelDeployment, SentinelOptions},
    temp_dir::TempDir,
};
use tokio::time::{Instant, sleep};

use super::Topology;
use crate::streams::usage::cpu_time;

/// As the harness starts the servers of all other topologies.
const APPENDING: [&str; 2] = ["--appendonly", "yes"];
const REDLOCK_SERVERS: usize = 5;
/// That the machine is busy is no reason to fail over.
const NODE_TIMEOUT: Duration = Duration::from_secs(60);
const DEPLOYMENT_KEY_DIGITS: usize = 64;
const IDLE_WINDOW: Duration = Duration::from_secs(3);

/// Killed when dropped, brokers first.
pub(super) struct Sites {
    brokers: Vec<(Topology, BrokerProcess)>,
    servers: Servers,
    /// What the brokers' settings name.
    _files: TempDir,
}

struct Servers {
    node: RedisServer,
    tls: RedisServer,
    sentinel: SentinelDeployment,
    cluster: ClusterDeployment,
    redlock: RedlockDeployment,
}

/// What all of them cost while nothing is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Idle {
    /// Servers and Sentinels.
    pub(super) servers: usize,
    /// One for each row.
    pub(super) brokers: usize,
    /// Of all, in seconds of CPU per second.
    pub(super) cpu: f64,
}

impl Sites {
    pub(super) async fn start() -> Self {
        let (files, authority) = (TempDir::new("topologies"), Authority::new("the authority"));
        let certificate = authority.server(&["127.0.0.1"]);
        let servers = Servers {
            node: RedisServer::start_with(&APPENDING).await,
            tls: RedisServer::start_tls(&certificate, None, &APPENDING).await,
            sentinel: SentinelDeployment::start(SentinelOptions::undisturbed()).await,
            cluster: ClusterDeployment::start(ClusterOptions {
                node_timeout: NODE_TIMEOUT,
                ..ClusterOptions::default()
            })
            .await,
            redlock: RedlockDeployment::start(REDLOCK_SERVERS).await,
        };
        let brokers = servers.brokers(files.path(), &authority).await;
        Self {
            brokers,
            servers,
            _files: files,
        }
    }

    /// Where the broker of each topology listens.
    pub(super) fn brokers(&self) -> impl Iterator<Item = (Topology, SocketAddr)> {
        let brokers = self.brokers.iter();
        brokers.map(|(topology, broker)| (*topology, broker.addr()))
    }

    /// The first one comes last from now on.
    pub(super) fn rotate(&mut self) {
        self.brokers.rotate_left(1);
    }

    /// Nobody may ask anything meanwhile.
    pub(super) async fn idle(&self) -> Idle {
        let servers = self.servers.pids();
        let brokers: Vec<_> = self.brokers.iter().map(|(_, broker)| broker).collect();
        let brokers: Vec<_> = brokers.iter().map(|one| one.process().pid()).collect();
        let used = || -> Duration { servers.iter().chain(&brokers).copied().map(cpu_time).sum() };
        let (begun, before) = (Instant::now(), used());
        sleep(IDLE_WINDOW).await;
        Idle {
            servers: servers.len(),
            brokers: brokers.len(),
            cpu: (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64(),
        }
    }
}

impl Servers {
    /// A broker on each, on a store that was prepared as an installation does it.
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
                store: url,
                env: settings.iter().map(setting).collect(),
            };
            // Both brokers behind Sentinel have one store.
            if topology != Topology::SentinelWaits {
                options.init_store().await;
            }
            brokers.push((topology, BrokerProcess::start(&options).await));
        }
        brokers
    }

    fn pids(&self) -> Vec<u32> {
        let (sentinel, cluster) = (&self.sentinel, &self.cluster);
        let single = [&self.node, &self.tls].into_iter();
        let servers = single
            .chain((0..sentinel.count()).map(|index| sentinel.server(index)))
            .chain((0..cluster.count()).map(|index| cluster.server(index)))
            .chain(self.redlock.servers());
        let sentinels = sentinel.sentinels().iter().map(Sentinel::process);
        let all = servers.map(RedisServer::process).chain(sentinels);
        all.map(|process| process.pid()).collect()
    }
}

/// A file of that name; returns where it is.
fn written(folder: &Path, name: &str, text: String) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("write a file");
    path.to_str().expect("a plain path").to_owned()
}
