//! Independent Redis servers for a RedLock store.

use std::time::Duration;

use futures::future::join_all;
use leasehold_server::lock::{DeploymentKey, LockKey};

use crate::{
    broker::process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    client::unary::{AcquireCall, Client},
    process::{private_wall_clock::PrivateWallClock, temp_dir::TempDir},
    redis::server::{RedisOptions, RedisServer, RestartData},
};

/// Options with which a server loses no acknowledged write when it is killed.
const DURABLE_OPTIONS: [&str; 2] = ["--appendonly", "yes"];

/// Maximum TTL that brokers of [`RedlockDeployment::options`] grant.
pub const TTL_MAX: Duration = Duration::from_secs(3);
/// Time for which a restarted server does not vote, `E(ttl_max) + 1 s`.
pub const QUARANTINE: Duration = Duration::from_millis(3_850 + 1_000);

/// Independent masters, and the deployment key of their brokers.
#[derive(Debug)]
pub struct RedlockDeployment {
    servers: Vec<RedisServer>,
    key: DeploymentKey,
    dir: TempDir,
}

/// Holder in the record of a lock at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHolder {
    pub lease_id: String,
    /// Fencing token at this node.
    pub token: u64,
}

impl RedlockDeployment {
    /// Starts empty servers.
    pub async fn start(servers: usize) -> Self {
        Self::from_servers(join_all((0..servers).map(|_| launch_server(None))).await)
    }

    /// Starts empty servers, each with a private wall clock.
    pub async fn start_with_clocks(servers: usize) -> Self {
        let launches = (0..servers)
            .map(|_| async { launch_server(Some(PrivateWallClock::build().await)).await });
        Self::from_servers(join_all(launches).await)
    }

    fn from_servers(servers: Vec<RedisServer>) -> Self {
        let dir = TempDir::new("redlock");
        let text = data_encoding::HEXLOWER.encode(&rand::random::<[u8; 32]>());
        std::fs::write(dir.path().join("key"), &text).expect("write a file");
        Self {
            servers,
            key: DeploymentKey::parse(&text).expect("64 digits"),
            dir,
        }
    }

    /// Returns the URL for `--store`.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.servers.iter().map(|server| server.addr().to_string());
        format!("redlock://{}", addrs.collect::<Vec<_>>().join(","))
    }

    /// Returns options of brokers with small bounds, so that a restarted server votes again after
    /// [`QUARANTINE`].
    #[must_use]
    pub fn options(&self) -> BrokerOptions {
        self.options_with_ttl_max("3s")
    }

    /// Returns options of brokers with small bounds and this maximum TTL.
    #[must_use]
    pub fn options_with_ttl_max(&self, ttl_max: &str) -> BrokerOptions {
        let file = self.dir.path().join("key");
        let file = file.to_str().expect("a plain path");
        let all = [
            ("LIMITS__TTL_MAX", ttl_max),
            ("LIMITS__LOCK_DELAY_MAX", "0s"),
            ("STORE__FORMER_MASTER_MAX", "0s"),
            ("STORE__DEPLOYMENT_KEY_FILE", file),
        ];
        let env = |(key, value): (&str, &str)| (format!("LEASEHOLD__{key}"), value.to_owned());
        BrokerOptions {
            env: all.into_iter().map(env).collect(),
            ..BrokerOptions::for_store(self.url())
        }
    }

    /// Starts brokers on servers that have not been used before.
    pub async fn start_brokers(&self, brokers: usize) -> Vec<BrokerProcess> {
        let options = self.options();
        options.init_store().await;
        let brokers = BrokerProcess::start_many(&options, brokers).await;
        wait_until_serving(&brokers).await;
        brokers
    }

    #[must_use]
    pub fn key(&self) -> &DeploymentKey {
        &self.key
    }

    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Kills a server (SIGKILL).
    pub async fn kill(&mut self, index: usize) {
        self.servers[index].kill().await;
    }

    /// Restarts a server on its port.
    pub async fn restart(&mut self, index: usize, data: RestartData) {
        self.servers[index].restart_with(data, &[]).await;
    }

    /// Restarts a server with its last snapshot, which may be old.
    pub async fn restart_with_snapshot(&mut self, index: usize) {
        let without_log = ["--appendonly", "no"];
        self.servers[index]
            .restart_with(RestartData::Kept, &without_log)
            .await;
    }

    /// Pauses these servers and waits until they are stopped.
    pub async fn pause(&self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            self.servers[node].process().pause().await;
        }
    }

    pub fn resume(&self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            self.servers[node].process().resume();
        }
    }

    /// Returns the holder of the lock in the record at one node.
    pub async fn holder_at(&self, node: usize, lock: &LockKey) -> Option<NodeHolder> {
        let mut connection = self.servers[node].connect().await;
        let key = format!("{KEY_PREFIX}{}", lock.encoded());
        let text = connection.must(&["HGET", &key, "h:1"]).await;
        let mut fields = text.text().split('|').map(str::to_owned);
        let lease_id = fields.next().filter(|lease_id| !lease_id.is_empty())?;
        let token = fields.nth(2)?.parse().expect("a token");
        Some(NodeHolder { lease_id, token })
    }

    /// Returns the holder of the lock in the record at each node.
    pub async fn holders_by_node(&self, lock: &LockKey) -> Vec<Option<NodeHolder>> {
        let mut held = Vec::new();
        for node in 0..self.servers.len() {
            held.push(self.holder_at(node, lock).await);
        }
        held
    }

    /// Returns the number of nodes with a holder of the lock.
    pub async fn holder_count(&self, lock: &LockKey) -> usize {
        self.holders_by_node(lock)
            .await
            .into_iter()
            .flatten()
            .count()
    }
}

/// Waits until each broker has granted a lock. A broker that grants has tried to connect to every
/// server.
pub async fn wait_until_serving(brokers: &[BrokerProcess]) {
    for broker in brokers {
        let client = Client::new("first", &[broker.addr()], 0);
        let call = AcquireCall::new("serving", Duration::from_secs(1), Duration::from_secs(10));
        let held = client.acquire(&call).await.expect("it serves");
        client.release(&held).await.expect("it is held");
    }
}

async fn launch_server(clock: Option<PrivateWallClock>) -> RedisServer {
    RedisServer::start_with_options(RedisOptions {
        options: DURABLE_OPTIONS.map(str::to_owned).to_vec(),
        clock,
        ..RedisOptions::default()
    })
    .await
}
