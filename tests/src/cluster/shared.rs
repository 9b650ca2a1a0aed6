//! A Redis Cluster shared by tests with different key prefixes. It is the cluster of the run if the
//! test runner has started one for all processes, else a cluster of this process, which ends with
//! it.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use leasehold_server::{
    lock::DeploymentKey,
    store::redis::{connection::RedisConfig, location::StoreLocation},
};

use crate::{
    cluster::deployment::{SLOTS, slot_of},
    process::binaries::built_binary,
    redis::{
        shared_server::{MESSAGES_MAX, config_address},
        shared_stores::{CLUSTER, parse_addresses, shared_addresses},
    },
};

/// Masters, with equal slot ranges in this order, and the process that runs them if they belong to
/// this test process.
struct SharedCluster {
    masters: Vec<SocketAddr>,
    _running: Option<Child>,
}

#[must_use]
pub fn shared_cluster() -> &'static [SocketAddr] {
    static SHARED: OnceLock<SharedCluster> = OnceLock::new();
    &SHARED.get_or_init(start).masters
}

/// Returns the address of the master that serves a key.
#[must_use]
pub fn master_of(key: &str) -> SocketAddr {
    let masters = shared_cluster();
    let first = |index: usize| usize::from(SLOTS) * index / masters.len();
    let slot = usize::from(slot_of(key));
    let index = (0..masters.len()).rfind(|&index| first(index) <= slot);
    masters[index.expect("the first begins at 0")]
}

/// Returns the configuration of a store with this key prefix.
#[must_use]
pub fn cluster_config(key_prefix: &str, trust_empty_store: bool) -> RedisConfig {
    let seeds = shared_cluster()
        .iter()
        .map(|&addr| config_address(addr))
        .collect();
    RedisConfig {
        key_prefix: key_prefix.to_owned(),
        deployment_key: Some(deployment_key()),
        trust_empty_store,
        messages_max: MESSAGES_MAX,
        ..RedisConfig::at(StoreLocation::Cluster(seeds))
    }
}

/// Returns the deployment key of all brokers in this process.
#[must_use]
pub fn deployment_key() -> DeploymentKey {
    static KEY: OnceLock<DeploymentKey> = OnceLock::new();
    KEY.get_or_init(DeploymentKey::random).clone()
}

fn start() -> SharedCluster {
    if let Some(masters) = shared_addresses(CLUSTER) {
        return SharedCluster {
            masters,
            _running: None,
        };
    }
    let mut running = Command::new(built_binary("shared_stores"))
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
    SharedCluster {
        masters: parse_addresses(masters.expect("the masters")),
        _running: Some(running),
    }
}
