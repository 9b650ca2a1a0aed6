//! The systems that are compared, and the servers that they need.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    port::free_port,
    process::TestProcess,
    redis_connection::RedisConnection,
    redis_server::RedisServer,
    setup::workspace,
    temp_dir::TempDir,
    until::until,
};
use tokio::{net::TcpStream, process::Command};

use super::ours;
use crate::targets::Targets;

/// A system, in the order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum System {
    Stream,
    Unary,
    Client,
    MemoryStream,
    MemoryUnary,
    Scripts,
    EchoStream,
    Echo,
    Etcd,
    Curator,
    Redisson,
    RedissonFair,
    Redlock,
    RedisPy,
    Redsync,
    Redislock,
}

pub(crate) const ALL: [System; 16] = [
    System::Stream,
    System::Unary,
    System::Client,
    System::MemoryStream,
    System::MemoryUnary,
    System::Scripts,
    System::EchoStream,
    System::Echo,
    System::Etcd,
    System::Curator,
    System::Redisson,
    System::RedissonFair,
    System::Redlock,
    System::RedisPy,
    System::Redsync,
    System::Redislock,
];

/// What a system asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Broker,
    Memory,
    Echo,
    /// With the keys of the broker, which has nothing to do meanwhile.
    BrokersRedis,
    Redis,
    Etcd,
    ZooKeeper,
}

impl System {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stream => "Leasehold, stream",
            Self::Unary => "Leasehold, unary",
            Self::Client => "Leasehold, Rust client",
            Self::MemoryStream => "Leasehold, stream, memory",
            Self::MemoryUnary => "Leasehold, unary, memory",
            Self::Scripts => "fred alone, same scripts",
            Self::EchoStream => "tonic echo, stream",
            Self::Echo => "tonic echo, unary",
            Self::Etcd => "etcd Lock",
            Self::Curator => "ZooKeeper, Curator",
            Self::Redisson => "Redisson RLock",
            Self::RedissonFair => "Redisson RFairLock",
            Self::Redlock => "node-redlock",
            Self::RedisPy => "redis-py Lock",
            Self::Redsync => "redsync",
            Self::Redislock => "bsm/redislock",
        }
    }

    fn server(self) -> Server {
        match self {
            Self::Stream | Self::Unary | Self::Client => Server::Broker,
            Self::MemoryStream | Self::MemoryUnary => Server::Memory,
            Self::Scripts => Server::BrokersRedis,
            Self::EchoStream | Self::Echo => Server::Echo,
            Self::Etcd => Server::Etcd,
            Self::Curator => Server::ZooKeeper,
            Self::Redisson
            | Self::RedissonFair
            | Self::Redlock
            | Self::RedisPy
            | Self::Redsync
            | Self::Redislock => Server::Redis,
        }
    }

    /// Whether callers can wait for a lock at it, and it is not one more way to the same.
    pub(crate) fn waits(self) -> bool {
        !matches!(
            self,
            Self::Scripts | Self::EchoStream | Self::Echo | Self::MemoryStream | Self::MemoryUnary
        )
    }

    /// Whether it is measured how it hears of a holder's end.
    pub(crate) fn dies(self) -> bool {
        self.waits() && self != Self::Stream
    }

    /// Whether it is Leasehold.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self.server(), Server::Broker | Server::Memory)
    }

    /// Whether its client keeps many locks by itself.
    pub(crate) fn keeps(self) -> bool {
        matches!(self, Self::Client | Self::Etcd | Self::Redisson)
    }

    /// What sends the commands to Redis whose number is told.
    pub(crate) fn is_broker(self) -> bool {
        self.server() == Server::Broker
    }
}

/// An etcd with nothing in it. Killed when dropped.
struct Etcd {
    process: TestProcess,
    addr: SocketAddr,
    _dir: TempDir,
}

/// The servers, all of them for all systems. Killed when dropped.
pub(crate) struct Sites {
    peers: PathBuf,
    options: BrokerOptions,
    broker: BrokerProcess,
    brokers_redis: RedisServer,
    redis: RedisServer,
    targets: Targets,
    etcd: Etcd,
    zookeeper: TestProcess,
    zookeeper_addr: SocketAddr,
    _dir: TempDir,
}

/// Locks of one namespace: more than are kept.
const QUOTA: usize = 1_000_000;

impl Sites {
    pub(crate) async fn start() -> Self {
        let peers = set_up().await;
        let dir = TempDir::new("servers");
        let brokers_redis = RedisServer::start().await;
        let mut options = BrokerOptions::on(brokers_redis.url());
        let quota = "LEASEHOLD__QUOTAS__LOCKS_PER_NAMESPACE".to_owned();
        options.env.push((quota, QUOTA.to_string()));
        options.init_store().await;
        let zookeeper_addr = addr();
        let mut zookeeper = Command::new("java");
        zookeeper.args(["-Dzookeeper.admin.enableServer=false", "-cp"]);
        zookeeper.arg(class_path(&peers));
        zookeeper.arg("org.apache.zookeeper.server.ZooKeeperServerMain");
        zookeeper
            .arg(zookeeper_addr.port().to_string())
            .arg(dir.path().join("zookeeper"));
        let (zookeeper, _, _) =
            TestProcess::start_talking(zookeeper, &dir.path().join("zookeeper.log"));
        let sites = Self {
            broker: BrokerProcess::start(&options).await,
            options,
            brokers_redis,
            redis: RedisServer::start().await,
            targets: Targets::start().await,
            etcd: Etcd::start(&peers).await,
            zookeeper,
            zookeeper_addr,
            peers,
            _dir: dir,
        };
        listens(zookeeper_addr).await;
        sites
    }

    /// What is compared, and in which version.
    pub(crate) fn versions(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(self.peers.join("versions"));
        let text = text.expect("setup.sh writes it");
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let mut versions: Vec<_> = lines
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .collect();
        versions.sort();
        versions
    }

    fn addr(&self, system: System) -> SocketAddr {
        match system.server() {
            Server::Broker => self.broker.addr(),
            Server::Memory => self.targets.memory(),
            Server::Echo => self.targets.echo(),
            Server::BrokersRedis => self.brokers_redis.addr(),
            Server::Redis => self.redis.addr(),
            Server::Etcd => self.etcd.addr,
            Server::ZooKeeper => self.zookeeper_addr,
        }
    }

    /// What serves a system: its processes.
    pub(crate) fn servers(&self, system: System) -> Vec<u32> {
        match system.server() {
            Server::Broker => vec![
                self.broker.process().pid(),
                self.brokers_redis.process().pid(),
            ],
            Server::Memory => vec![self.targets.memory_pid()],
            Server::Echo => vec![self.targets.echo_pid()],
            Server::BrokersRedis => vec![self.brokers_redis.process().pid()],
            Server::Redis => vec![self.redis.process().pid()],
            Server::Etcd => vec![self.etcd.process.pid()],
            Server::ZooKeeper => vec![self.zookeeper.pid()],
        }
    }

    /// What a broker's Redis is asked through.
    pub(crate) async fn brokers_redis(&self) -> RedisConnection {
        self.brokers_redis.connect().await
    }

    /// Nothing is left of a run that is over. etcd's server is a new one: where many who waited in its line
    /// have gone at once, nobody may ever get a lock again (<https://github.com/etcd-io/etcd/issues/13336>),
    /// and 100,000 leases that nobody keeps any more take half a core for a minute. So is the broker, which
    /// otherwise takes such callers out of their line six seconds later.
    pub(crate) async fn clear(&mut self, system: System) {
        match system.server() {
            Server::Etcd => self.etcd = Etcd::start(&self.peers).await,
            Server::Redis => drop(self.redis.connect().await.must(&["FLUSHALL"]).await),
            Server::Broker => self.broker = BrokerProcess::start(&self.options).await,
            Server::Memory | Server::Echo | Server::BrokersRedis | Server::ZooKeeper => {}
        }
    }

    /// The peer, without its task.
    pub(crate) fn peer(&self, system: System) -> Command {
        let path = |name: &str| self.peers.join(name);
        let (mut command, name) = match system {
            System::Stream | System::MemoryStream | System::EchoStream => (own(), "stream"),
            System::Unary | System::MemoryUnary | System::Echo => (own(), "unary"),
            System::Client => (own(), "client"),
            System::Scripts => (own(), "scripts"),
            System::Etcd => (Command::new(path("bin/go")), "etcd"),
            System::Redsync => (Command::new(path("bin/go")), "redsync"),
            System::Redislock => (Command::new(path("bin/go")), "redislock"),
            System::Curator => (self.java(), "curator"),
            System::Redisson => (self.java(), "redisson"),
            System::RedissonFair => (self.java(), "redisson-fair"),
            System::Redlock => (Command::new(path("bin/node")), "redlock"),
            System::RedisPy => (Command::new(path("python/bin/python")), "redis-py"),
        };
        if system == System::Redlock {
            command.arg(path("node/driver.mjs"));
        } else if system == System::RedisPy {
            command.arg(path("python/driver.py"));
        }
        command.args([name, &self.addr(system).to_string()]);
        command
    }

    /// A thread for each caller, so with a small stack.
    fn java(&self) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xss256k", "-cp"])
            .arg(class_path(&self.peers))
            .arg("peers.Driver");
        java
    }
}

impl Etcd {
    async fn start(peers: &Path) -> Self {
        let dir = TempDir::new("etcd");
        let [addr, peer_addr] = [(); 2].map(|()| addr());
        let (client, peer) = (format!("http://{addr}"), format!("http://{peer_addr}"));
        let mut etcd = Command::new(peers.join("bin/etcd"));
        etcd.arg("--data-dir").arg(dir.path().join("data"));
        for (flag, value) in [
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &format!("default={peer}")),
            ("--log-level", &"error".to_owned()),
        ] {
            etcd.args([flag, value]);
        }
        let (process, _, _) = TestProcess::start_talking(etcd, &dir.path().join("log"));
        listens(addr).await;
        Self {
            process,
            addr,
            _dir: dir,
        }
    }
}

async fn listens(addr: SocketAddr) {
    until("the server listens", async || {
        TcpStream::connect(addr).await.ok()
    })
    .await;
}

fn own() -> Command {
    let mut own = Command::new(std::env::current_exe().expect("a program knows its path"));
    own.arg(ours::ARGUMENT);
    own
}

fn addr() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

fn class_path(peers: &Path) -> String {
    std::fs::read_to_string(peers.join("classpath")).expect("setup.sh writes it")
}

/// Where the peers are. The first time they are built, which takes minutes.
async fn set_up() -> PathBuf {
    let script = workspace().join("tests/peers/setup.sh");
    let said = Command::new(script)
        .stderr(std::process::Stdio::inherit())
        .output();
    let said = tokio::time::timeout(Duration::from_secs(1_200), said).await;
    let said = said.expect("within minutes").expect("it runs");
    assert!(said.status.success(), "tests/peers/setup.sh failed");
    PathBuf::from(String::from_utf8_lossy(&said.stdout).trim())
}
