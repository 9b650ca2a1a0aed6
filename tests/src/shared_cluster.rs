//! One Redis Cluster for all tests of a process; ended when the process ends.

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
};

/// The masters, which share the slots in order, and what ends them with this process.
struct Shared {
    masters: Vec<SocketAddr>,
    _running: Child,
}

/// The masters. Tests keep apart by their key prefixes.
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
    let mut running = Command::new(built("cluster_of_tests"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a cluster");
    let stdout = running.stdout.take().expect("stdout is piped");
    let mut line = String::new();
    let read = BufReader::new(stdout).read_line(&mut line);
    read.expect("the cluster tells where it is");
    let masters = line.split_whitespace().map(|addr| addr.parse());
    Shared {
        masters: masters.collect::<Result<_, _>>().expect("addresses"),
        _running: running,
    }
}
