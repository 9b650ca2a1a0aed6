//! Servers that know nothing of each other, as RedLock wants them.

use std::time::Duration;

use futures::future::join_all;
use leasehold_server::lock::{DeploymentKey, LockKey};

use crate::{
    broker_process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    client::{AcquireCall, Client},
    redis_server::{Data, RedisOptions, RedisServer},
    store_clock::StoreClock,
    temp_dir::TempDir,
};

/// Keeps every answered write through a kill.
const KEEPS: [&str; 2] = ["--appendonly", "yes"];

/// The longest validity that brokers of [`RedlockDeployment::brokers`] grant.
pub const TTL_MAX: Duration = Duration::from_secs(3);
/// `E(ttl_max) + 1 s`: how long a server that came back does not vote then.
pub const QUARANTINE: Duration = Duration::from_millis(3_850 + 1_000);

/// Independent masters, and the key of the deployment that uses them.
#[derive(Debug)]
pub struct RedlockDeployment {
    servers: Vec<RedisServer>,
    key: DeploymentKey,
    dir: TempDir,
}

/// Who holds a lock at one node, as its record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldAt {
    /// The lease.
    pub lease_id: String,
    /// The token.
    pub token: u64,
}

impl RedlockDeployment {
    /// Starts so many empty ones.
    pub async fn start(servers: usize) -> Self {
        Self::of(join_all((0..servers).map(|_| launch(None))).await)
    }

    /// Starts so many empty ones, each with a wall clock of its own.
    pub async fn start_with_clocks(servers: usize) -> Self {
        let launches =
            (0..servers).map(|_| async { launch(Some(StoreClock::build().await)).await });
        Self::of(join_all(launches).await)
    }

    fn of(servers: Vec<RedisServer>) -> Self {
        let dir = TempDir::new("redlock");
        let text = data_encoding::HEXLOWER.encode(&rand::random::<[u8; 32]>());
        std::fs::write(dir.path().join("key"), &text).expect("write a file");
        Self {
            servers,
            key: DeploymentKey::parse(&text).expect("64 digits"),
            dir,
        }
    }

    /// What `--store` takes.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs = self.servers.iter().map(|server| server.addr().to_string());
        format!("redlock://{}", addrs.collect::<Vec<_>>().join(","))
    }

    /// Brokers with small bounds, so that a server that came back soon votes again.
    #[must_use]
    pub fn options(&self) -> BrokerOptions {
        self.options_up_to("3s")
    }

    /// The same with another longest validity.
    #[must_use]
    pub fn options_up_to(&self, ttl_max: &str) -> BrokerOptions {
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
            ..BrokerOptions::on(self.url())
        }
    }

    /// So many of them, on servers that were never used.
    pub async fn brokers(&self, brokers: usize) -> Vec<BrokerProcess> {
        let options = self.options();
        options.init_store().await;
        let brokers = BrokerProcess::start_many(&options, brokers).await;
        serving(&brokers).await;
        brokers
    }

    /// The deployment's key.
    #[must_use]
    pub fn key(&self) -> &DeploymentKey {
        &self.key
    }

    /// All of them.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// SIGKILL.
    pub async fn lose(&mut self, index: usize) {
        self.servers[index].kill().await;
    }

    /// Starts one again on its port.
    pub async fn restart(&mut self, index: usize, data: Data) {
        self.servers[index].restart_with(data, &[]).await;
    }

    /// Starts one again with its last snapshot, which may be old.
    pub async fn restart_with_snapshot(&mut self, index: usize) {
        let without_log = ["--appendonly", "no"];
        self.servers[index]
            .restart_with(Data::Kept, &without_log)
            .await;
    }

    /// Stops these processes; returns once they are stopped.
    pub async fn pause(&self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            self.servers[node].process().pause().await;
        }
    }

    /// Lets them go on.
    pub fn resume(&self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            self.servers[node].process().resume();
        }
    }

    /// Who holds the lock at a node.
    pub async fn held_at(&self, node: usize, lock: &LockKey) -> Option<HeldAt> {
        let mut connection = self.servers[node].connect().await;
        let key = format!("{KEY_PREFIX}{}", lock.encoded());
        let text = connection.must(&["HGET", &key, "h:1"]).await;
        let mut fields = text.text().split('|').map(str::to_owned);
        let lease_id = fields.next().filter(|lease_id| !lease_id.is_empty())?;
        let token = fields.nth(2)?.parse().expect("a token");
        Some(HeldAt { lease_id, token })
    }

    /// The same of all nodes.
    pub async fn held(&self, lock: &LockKey) -> Vec<Option<HeldAt>> {
        let mut held = Vec::new();
        for node in 0..self.servers.len() {
            held.push(self.held_at(node, lock).await);
        }
        held
    }

    /// At how many nodes anybody holds the lock.
    pub async fn holders(&self, lock: &LockKey) -> usize {
        self.held(lock).await.into_iter().flatten().count()
    }
}

/// Returns once each of these brokers serves, and so has tried to reach every server.
pub async fn serving(brokers: &[BrokerProcess]) {
    for broker in brokers {
        let client = Client::new("first", &[broker.addr()], 0);
        let call = AcquireCall::new("serving", Duration::from_secs(1), Duration::from_secs(10));
        let held = client.acquire(&call).await.expect("it serves");
        client.release(&held).await.expect("it is held");
    }
}

async fn launch(clock: Option<StoreClock>) -> RedisServer {
    RedisServer::start_as(RedisOptions {
        options: KEEPS.map(str::to_owned).to_vec(),
        clock,
        ..RedisOptions::default()
    })
    .await
}
