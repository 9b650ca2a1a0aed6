//! Brokers on a Redis Cluster, with bounds so small that a quarantine takes seconds.

use std::{fs, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use rand::Rng as _;

use crate::{
    broker_process::{BrokerOptions, BrokerProcess, KEY_PREFIX},
    cluster::{ClusterDeployment, ClusterOptions, SLOTS, slot_of},
    temp_dir::TempDir,
};

/// The longest validity that these brokers grant: it outlasts a fail-over.
pub const TTL: Duration = Duration::from_secs(5);
/// E(ttl_max) + lock_delay_max + former_master_max + 1 s.
pub const QUARANTINE: Duration = Duration::from_millis(6_250 + 2_000 + 1_000);
/// How many masters there are, and into how many parts the slots fall.
pub const SHARDS: usize = 3;
/// An isolated master goes on taking writes for less than twice as long: `former_master_max`.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_000);
const KEY_BYTES: usize = 32;

/// Brokers first: they end before the store does.
#[derive(Debug)]
pub struct ClusterSite {
    /// The brokers.
    pub brokers: Vec<BrokerProcess>,
    /// The store.
    pub cluster: ClusterDeployment,
    /// How to start one more broker.
    pub options: BrokerOptions,
    _key: KeyFile,
}

/// A deployment key that no store keeps.
#[derive(Debug)]
pub struct KeyFile {
    dir: TempDir,
}

impl ClusterSite {
    /// Brokers on a cluster that is new and prepared for them.
    pub async fn start(options: ClusterOptions, brokers: usize) -> Self {
        let mut site = Self::unprepared(options).await;
        site.options.init_store().await;
        site.add_brokers(brokers).await;
        site
    }

    /// A cluster that nobody has prepared, without brokers.
    pub async fn unprepared(options: ClusterOptions) -> Self {
        let cluster = ClusterDeployment::start(options).await;
        let key = KeyFile::create();
        let options = options_on(cluster.url(), Some(&key));
        Self {
            brokers: Vec::new(),
            cluster,
            options,
            _key: key,
        }
    }

    /// Starts so many more; returns once they serve.
    pub async fn add_brokers(&mut self, count: usize) {
        let more = BrokerProcess::start_many(&self.options, count).await;
        self.brokers.extend(more);
    }

    /// Where the brokers listen.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.brokers.iter().map(BrokerProcess::addr).collect()
    }
}

impl KeyFile {
    /// A random one.
    #[must_use]
    pub fn create() -> Self {
        let dir = TempDir::new("key");
        let key: [u8; KEY_BYTES] = rand::thread_rng().r#gen();
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(dir.path().join("key"), digits).expect("write a file");
        Self { dir }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("key")
    }
}

/// A cluster that notices soon what has failed.
#[must_use]
pub fn quick() -> ClusterOptions {
    ClusterOptions {
        node_timeout: NODE_TIMEOUT,
        ..ClusterOptions::default()
    }
}

/// The bounds above, on this store.
#[must_use]
pub fn options_on(url: String, key: Option<&KeyFile>) -> BrokerOptions {
    let mut options = BrokerOptions::on(url);
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

/// The slots of one of the first masters.
#[must_use]
pub fn shard(master: usize) -> RangeInclusive<u16> {
    let first = |master: usize| usize::from(SLOTS) * master / SHARDS;
    let slot = |slot: usize| u16::try_from(slot).expect("a slot is a small number");
    slot(first(master))..=slot(first(master + 1) - 1)
}

/// In which slot a lock of the default namespace lies.
#[must_use]
pub fn slot_of_lock(name: &str) -> u16 {
    slot_of(&format!("{KEY_PREFIX}{{default:{name}}}"))
}

/// Names of so many locks in these slots. Another `what` makes other names.
#[must_use]
pub fn locks_in(slots: &RangeInclusive<u16>, what: &str, count: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("{what}/{number}"));
    let names = names.filter(|name| slots.contains(&slot_of_lock(name)));
    names.take(count).collect()
}

/// Names of so many locks in each of these slots.
#[must_use]
pub fn locks_in_each(slots: &[u16], what: &str, count: usize) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new(); slots.len()];
    let mut left = slots.len() * count;
    for number in 0.. {
        let name = format!("{what}/{number}");
        let slot = slot_of_lock(&name);
        let at = slots.iter().position(|wanted| *wanted == slot);
        if let Some(names) = at
            .map(|at| &mut found[at])
            .filter(|names| names.len() < count)
        {
            names.push(name);
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    found
}
