//! A broker with its own store, whose resource usage is measured.

use std::{net::SocketAddr, path::Path, time::Duration};

use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    client::unary::channel,
    cluster::deployment::{ClusterDeployment, ClusterOptions},
    process::temp_dir::TempDir,
    redis::{connection::RedisConnection, server::RedisServer},
    until::until,
};

use crate::{
    grpc::{acquire_request, lock_name, named, release},
    streams::usage::Usage,
    targets::Served,
};

/// Node timeout of clusters, long enough that a busy machine causes no failover.
const NODE_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of locks that are granted before a broker is considered to serve.
const PROBES: usize = 64;
/// Quotas of locks, larger than the number of measured locks.
const QUOTAS: [&str; 2] = [
    "LEASEHOLD__QUOTAS__LOCKS",
    "LEASEHOLD__QUOTAS__LOCKS_PER_NAMESPACE",
];
const QUOTA: &str = "2000000";
const DEPLOYMENT_KEY_DIGITS: usize = 64;

/// Store of a measured broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    Memory,
    Redis,
    /// Three masters, each with a replica.
    Cluster,
}

/// A broker and the Redis servers of its store. Killed when dropped.
pub(crate) struct Site {
    pub(crate) addr: SocketAddr,
    broker: u32,
    servers: Vec<MeasuredServer>,
    _processes: Processes,
    /// Files that the broker's settings refer to.
    _files: TempDir,
}

/// A Redis server, of a cluster a master.
pub(crate) struct MeasuredServer {
    pub(crate) pid: u32,
    pub(crate) connection: RedisConnection,
}

/// Processes of a site. The first of each kind is the broker, so that it ends before its store.
#[expect(dead_code, reason = "they are killed when dropped")]
enum Processes {
    Memory(Served),
    Redis(Deployment),
    Cluster(BrokerProcess, ClusterDeployment),
}

impl Site {
    /// Starts a broker on an empty store. Returns once the broker is connected to its store.
    pub(crate) async fn start(store: Store) -> Self {
        let files = TempDir::new("site");
        let mut env: Vec<_> = QUOTAS
            .iter()
            .map(|quota| ((*quota).to_owned(), QUOTA.to_owned()))
            .collect();
        let mut servers = Vec::new();
        let (addr, broker, processes) = match store {
            Store::Memory => {
                let broker = Served::memory_broker(&env).await;
                (broker.addr(), broker.pid(), Processes::Memory(broker))
            }
            Store::Redis => {
                let options = BrokerOptions {
                    env,
                    ..BrokerOptions::default()
                };
                let deployment = Deployment::start_single(options).await;
                servers.push(MeasuredServer::connect(&deployment.redis).await);
                let broker = &deployment.brokers[0];
                let (addr, pid) = (broker.addr(), broker.process().pid());
                (addr, pid, Processes::Redis(deployment))
            }
            Store::Cluster => {
                let cluster = start_cluster().await;
                let key = write_deployment_key(files.path());
                env.push(("LEASEHOLD__STORE__DEPLOYMENT_KEY_FILE".to_owned(), key));
                let options = BrokerOptions {
                    env,
                    ..BrokerOptions::for_store(cluster.url())
                };
                options.init_store().await;
                let broker = BrokerProcess::start(&options).await;
                for master in 0..ClusterOptions::default().masters {
                    servers.push(MeasuredServer::connect(cluster.server(master)).await);
                }
                let (addr, pid) = (broker.addr(), broker.process().pid());
                (addr, pid, Processes::Cluster(broker, cluster))
            }
        };
        wait_until_serving(addr).await;
        Self {
            addr,
            broker,
            servers,
            _processes: processes,
            _files: files,
        }
    }

    /// Reads the usage of the broker, of all servers together, and of this program.
    pub(crate) async fn usage(&mut self) -> Usage {
        Usage::read(self.broker, &mut self.servers).await
    }
}

impl MeasuredServer {
    async fn connect(server: &RedisServer) -> Self {
        Self {
            pid: server.process().pid(),
            connection: server.connect().await,
        }
    }
}

/// Starts a cluster in which a busy machine causes no failover.
pub(crate) async fn start_cluster() -> ClusterDeployment {
    let node_timeout = NODE_TIMEOUT;
    ClusterDeployment::start(ClusterOptions {
        node_timeout,
        ..ClusterOptions::default()
    })
    .await
}

/// Writes a deployment key into a folder and returns the path of its file.
pub(crate) fn write_deployment_key(folder: &Path) -> String {
    write_file(folder, "key", "5a".repeat(DEPLOYMENT_KEY_DIGITS / 2))
}

/// Writes a file and returns its path.
pub(crate) fn write_file(folder: &Path, name: &str, text: String) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("write a file");
    path.to_str().expect("a plain path").to_owned()
}

/// Waits until locks of many slots were granted, so that the broker is connected to all its
/// servers.
pub(crate) async fn wait_until_serving(broker: SocketAddr) {
    let mut locks = LockServiceClient::new(channel(broker));
    for at in 0..PROBES {
        let lease = until("the broker serves", async || {
            let held = locks.acquire(acquire_request(named(&lock_name(at)))).await;
            held.ok()?.into_inner().lease
        })
        .await;
        release(&mut locks, lease).await;
    }
}
