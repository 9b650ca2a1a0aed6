//! Starts stores for many test processes, prints their addresses, one `VARIABLE=ADDRESSES` a line,
//! and stops the stores at the end of its stdin. With the argument `cluster` it starts only a Redis
//! Cluster.

#![expect(clippy::print_stdout, reason = "the caller reads the addresses there")]

use std::{
    io::{Read as _, stdin},
    net::SocketAddr,
};

use leasehold_tests::{
    cluster::deployment::{ClusterDeployment, ClusterOptions},
    redis::{
        shared_server::{own_nodes, own_redis},
        shared_stores::{CLUSTER, MASTER, NODES, REDIS, SENTINELS},
    },
    sentinel::{deployment::SentinelDeployment, shared::stable_options},
};

#[tokio::main]
async fn main() {
    let only_cluster = std::env::args().any(|arg| arg == "cluster");
    let options = ClusterOptions::default();
    let masters = options.masters;
    let cluster = ClusterDeployment::start(options).await;
    print_addresses(CLUSTER, (0..masters).map(|index| cluster.addr(index)));
    let mut sentinels = None;
    if !only_cluster {
        print_addresses(REDIS, [own_redis()]);
        print_addresses(NODES, own_nodes());
        let all = sentinels.insert(SentinelDeployment::start(stable_options()).await);
        print_addresses(SENTINELS, all.sentinel_addrs());
        print_addresses(MASTER, [all.addr(0)]);
        println!("ready");
    }
    let ended = tokio::task::spawn_blocking(|| stdin().read_to_end(&mut Vec::new()));
    // An error of the input counts as its end, too.
    let _ = ended.await;
}

fn print_addresses(variable: &str, addrs: impl IntoIterator<Item = SocketAddr>) {
    let addrs = addrs.into_iter().map(|addr| addr.to_string());
    println!("{variable}={}", addrs.collect::<Vec<_>>().join(" "));
}
