//! The compared systems, and the servers that they need.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    process::{child::TestProcess, ports::free_port, temp_dir::TempDir},
    redis::{connection::RedisConnection, server::RedisServer},
    repository::paths::repository_root,
    until::until,
};
use tokio::{net::TcpStream, process::Command};

use super::ours;
use crate::targets::Targets;

/// A compared system, in the order of the tables.
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

/// Server that a system connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Broker,
    Memory,
    Echo,
    /// Redis with the keys of the broker, which is idle meanwhile.
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

    /// Returns true if callers can wait for a lock, and the system is not a variant of another one.
    pub(crate) fn waits(self) -> bool {
        !matches!(
            self,
            Self::Scripts | Self::EchoStream | Self::Echo | Self::MemoryStream | Self::MemoryUnary
        )
    }

    /// Returns true if the recovery after the death of a holder is measured.
    pub(crate) fn dies(self) -> bool {
        self.waits() && self != Self::Stream
    }

    /// Returns true if the system is Leasehold.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self.server(), Server::Broker | Server::Memory)
    }

    /// Returns true if the library of the system uses Redis without another server.
    pub(crate) fn has_no_server(self) -> bool {
        self.server() == Server::Redis
    }

    /// Returns true if a lock is one key with a random value, without a queue and a fencing token.
    pub(crate) fn sets_one_key(self) -> bool {
        self.has_no_server() && !matches!(self, Self::Redisson | Self::RedissonFair)
    }

    /// Returns true if the client of the system renews many locks on its own.
    pub(crate) fn keeps(self) -> bool {
        matches!(self, Self::Client | Self::Etcd | Self::Redisson)
    }

    /// Returns true if the system is a broker on Redis, whose commands are counted.
    pub(crate) fn is_broker(self) -> bool {
        self.server() == Server::Broker
    }
}

/// An empty etcd server. Killed when dropped.
struct Etcd {
    process: TestProcess,
    addr: SocketAddr,
    _dir: TempDir,
}

/// Servers of all systems. Killed when dropped.
pub(crate) struct PeerFixture {
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

/// Quota of locks in a namespace, larger than the number of held locks.
const QUOTA: usize = 1_000_000;

impl PeerFixture {
    pub(crate) async fn start() -> Self {
        let peers = set_up().await;
        let dir = TempDir::new("servers");
        let brokers_redis = RedisServer::start().await;
        let mut options = BrokerOptions::for_store(brokers_redis.url());
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
            TestProcess::start_with_pipes(zookeeper, &dir.path().join("zookeeper.log"));
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
        wait_until_listening(zookeeper_addr).await;
        sites
    }

    /// Returns the compared programs with their versions.
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

    /// Returns the process ids of a system's servers.
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

    /// Connects to the Redis server of the broker.
    pub(crate) async fn brokers_redis(&self) -> RedisConnection {
        self.brokers_redis.connect().await
    }

    /// Removes what a finished run has left. The etcd server is replaced: after many waiters of a
    /// lock have left at once, the lock may never be granted again
    /// (<https://github.com/etcd-io/etcd/issues/13336>), and 100,000 leases that are not renewed
    /// use half a core for a minute. The broker is replaced as well, because it would remove the
    /// waiters of the run six seconds later.
    pub(crate) async fn clear(&mut self, system: System) {
        match system.server() {
            Server::Etcd => self.etcd = Etcd::start(&self.peers).await,
            Server::Redis => drop(self.redis.connect().await.must(&["FLUSHALL"]).await),
            Server::Broker => self.broker = BrokerProcess::start(&self.options).await,
            Server::Memory | Server::Echo | Server::BrokersRedis | Server::ZooKeeper => {}
        }
    }

    /// Returns the command of the peer, without its task.
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

    /// Returns a Java command with small stacks, because each caller has a thread.
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
        let (process, _, _) = TestProcess::start_with_pipes(etcd, &dir.path().join("log"));
        wait_until_listening(addr).await;
        Self {
            process,
            addr,
            _dir: dir,
        }
    }
}

async fn wait_until_listening(addr: SocketAddr) {
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

/// Returns the folder of the peers. Builds them the first time, which takes minutes.
async fn set_up() -> PathBuf {
    let script = repository_root().join("tests/peers/setup.sh");
    let output = Command::new(script)
        .stderr(std::process::Stdio::inherit())
        .output();
    let output = tokio::time::timeout(Duration::from_secs(1_200), output).await;
    let output = output.expect("within minutes").expect("it runs");
    assert!(output.status.success(), "tests/peers/setup.sh failed");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}
