//! The fixture of brokers on a Redis Cluster, with small bounds, so that a quarantine takes
//! seconds.

use std::{fs, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use rand::Rng as _;

use crate::{
    broker::process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    cluster::deployment::{ClusterDeployment, ClusterOptions, SLOTS, slot_of},
    process::temp_dir::TempDir,
};

/// Maximum TTL of these brokers, longer than a failover.
pub const TTL: Duration = Duration::from_secs(5);
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s.
pub const QUARANTINE: Duration = Duration::from_millis(6_250 + 2_000 + 1_000);
/// Number of masters, and of the ranges into which the slots are divided.
pub const SHARDS: usize = 3;
/// Node timeout. An isolated master accepts writes for less than twice this time,
/// `former_master_max`.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_000);
const KEY_BYTES: usize = 32;

/// Brokers and their cluster. The brokers are declared first, so that they end before the store.
#[derive(Debug)]
pub struct ClusterFixture {
    pub brokers: Vec<BrokerProcess>,
    pub cluster: ClusterDeployment,
    /// Options for further brokers.
    pub options: BrokerOptions,
    _key: DeploymentKeyFile,
}

/// A file with a deployment key that is not in the store.
#[derive(Debug)]
pub struct DeploymentKeyFile {
    dir: TempDir,
}

impl ClusterFixture {
    /// Starts brokers on a new, initialized cluster.
    pub async fn start(options: ClusterOptions, brokers: usize) -> Self {
        let mut fixture = Self::uninitialized(options).await;
        fixture.options.init_store().await;
        fixture.add_brokers(brokers).await;
        fixture
    }

    /// Starts brokers on a new cluster, with this bound of a TTL instead of `TTL`.
    pub async fn with_ttl_max(ttl_max: Duration, brokers: usize) -> Self {
        let mut fixture = Self::uninitialized(ClusterOptions::default()).await;
        let seconds = format!("{}s", ttl_max.as_secs());
        let env = &mut fixture.options.env;
        env.push(("LEASEHOLD__LIMITS__TTL_MAX".to_owned(), seconds));
        fixture.options.init_store().await;
        fixture.add_brokers(brokers).await;
        fixture
    }

    /// Starts a cluster without an era and without brokers.
    pub async fn uninitialized(options: ClusterOptions) -> Self {
        let cluster = ClusterDeployment::start(options).await;
        let key = DeploymentKeyFile::create();
        let options = broker_options(cluster.url(), Some(&key));
        Self {
            brokers: Vec::new(),
            cluster,
            options,
            _key: key,
        }
    }

    /// Starts `count` more brokers. Returns once they serve.
    pub async fn add_brokers(&mut self, count: usize) {
        let more = BrokerProcess::start_many(&self.options, count).await;
        self.brokers.extend(more);
    }

    /// Returns the addresses of the brokers.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.brokers.iter().map(BrokerProcess::addr).collect()
    }
}

impl DeploymentKeyFile {
    /// Creates a file with a random key.
    #[must_use]
    pub fn create() -> Self {
        let dir = TempDir::new("key");
        let key: [u8; KEY_BYTES] = rand::thread_rng().r#gen();
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(dir.path().join("key"), digits).expect("write a file");
        Self { dir }
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("key")
    }
}

/// Returns options of a cluster that detects failed nodes early.
#[must_use]
pub fn fast_failover_options() -> ClusterOptions {
    ClusterOptions {
        node_timeout: NODE_TIMEOUT,
        ..ClusterOptions::default()
    }
}

/// Returns options of brokers on this store, with the bounds above.
#[must_use]
pub fn broker_options(url: String, key: Option<&DeploymentKeyFile>) -> BrokerOptions {
    let mut options = BrokerOptions::for_store(url);
    let bounds = [
        ("LIMITS__TTL_MAX", "5s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "2s"),
    ];
    let bounds = bounds.map(|(key, value)| (key, value.to_owned()));
    let key = key.map(|key| key.path().display().to_string());
    let key = key.map(|path| ("STORE__DEPLOYMENT_KEY_FILE", path));
    let all = bounds.into_iter().chain(key);
    options.env = all
        .map(|(key, value)| (format!("LEASEHOLD__{key}"), value))
        .collect();
    options
}

/// Returns the slots of one of the initial masters.
#[must_use]
pub fn initial_slots_of(master: usize) -> RangeInclusive<u16> {
    let first = |master: usize| usize::from(SLOTS) * master / SHARDS;
    let slot = |slot: usize| u16::try_from(slot).expect("a slot is a small number");
    slot(first(master))..=slot(first(master + 1) - 1)
}

/// Returns the slot of a lock of the default namespace.
#[must_use]
pub fn slot_of_lock(name: &str) -> u16 {
    slot_of(&format!("{KEY_PREFIX}{{default:{name}}}"))
}

/// Returns names of `count` locks in these slots. Different values of `what` result in different
/// names.
#[must_use]
pub fn lock_names_in(slots: &RangeInclusive<u16>, what: &str, count: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("{what}/{number}"));
    let names = names.filter(|name| slots.contains(&slot_of_lock(name)));
    names.take(count).collect()
}

/// Returns names of `count` locks in each of these slots.
#[must_use]
pub fn lock_names_in_each(slots: &[u16], what: &str, count: usize) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new(); slots.len()];
    let mut missing = slots.len() * count;
    for number in 0.. {
        let name = format!("{what}/{number}");
        let slot = slot_of_lock(&name);
        let at = slots.iter().position(|wanted| *wanted == slot);
        if let Some(names) = at
            .map(|at| &mut found[at])
            .filter(|names| names.len() < count)
        {
            names.push(name);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    found
}
