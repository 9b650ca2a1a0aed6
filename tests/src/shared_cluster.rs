//! A Redis Cluster that tests share, apart by their key prefixes: that of the run, if the test runner
//! started one for all processes, else one of this process, which ends with it.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use leasehold_server::{
    lock::DeploymentKey,
    store::redis::{connection::RedisConfig, place::Place},
};

use crate::{
    binary::built,
    cluster::{SLOTS, slot_of},
    shared_redis::{MESSAGES_MAX, address},
    shared_stores::{CLUSTER, addresses, of_the_run},
};

/// The masters, which share the slots in order, and what ends them with this process if they are its own.
struct Shared {
    masters: Vec<SocketAddr>,
    _running: Option<Child>,
}

/// Returns the masters.
#[must_use]
pub fn shared_cluster() -> &'static [SocketAddr] {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    &SHARED.get_or_init(start).masters
}

/// The master of a key.
#[must_use]
pub fn master_of(key: &str) -> SocketAddr {
    let masters = shared_cluster();
    let first = |index: usize| usize::from(SLOTS) * index / masters.len();
    let slot = usize::from(slot_of(key));
    let index = (0..masters.len()).rfind(|&index| first(index) <= slot);
    masters[index.expect("the first begins at 0")]
}

/// How a store of its own key prefix reaches it.
#[must_use]
pub fn cluster_config(key_prefix: &str, trust_empty_store: bool) -> RedisConfig {
    let seeds = shared_cluster().iter().map(|&addr| address(addr)).collect();
    RedisConfig {
        key_prefix: key_prefix.to_owned(),
        deployment_key: Some(deployment_key()),
        trust_empty_store,
        messages_max: MESSAGES_MAX,
        ..RedisConfig::at(Place::Cluster(seeds))
    }
}

/// The one of all brokers of a process.
#[must_use]
pub fn deployment_key() -> DeploymentKey {
    static KEY: OnceLock<DeploymentKey> = OnceLock::new();
    KEY.get_or_init(DeploymentKey::random).clone()
}

fn start() -> Shared {
    if let Some(masters) = of_the_run(CLUSTER) {
        return Shared {
            masters,
            _running: None,
        };
    }
    let mut running = Command::new(built("shared_stores"))
        .arg("cluster")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a cluster");
    let stdout = running.stdout.take().expect("stdout is piped");
    let mut line = String::new();
    let read = BufReader::new(stdout).read_line(&mut line);
    read.expect("shared_stores prints where the cluster is");
    let masters = line.trim().strip_prefix(CLUSTER);
    let masters = masters.and_then(|rest| rest.strip_prefix('='));
    Shared {
        masters: addresses(masters.expect("the masters")),
        _running: Some(running),
    }
}
