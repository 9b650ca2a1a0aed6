//! Starts stores for many test processes, prints where they are, one `VARIABLE=ADDRESSES` a line, and ends
//! them when its input ends. With the argument `cluster` it starts only a Redis Cluster.

#![expect(clippy::print_stdout, reason = "the caller reads the addresses there")]

use std::{
    io::{Read as _, stdin},
    net::SocketAddr,
};

use leasehold_tests::{
    cluster::{ClusterDeployment, ClusterOptions},
    sentinel::SentinelDeployment,
    shared_redis::{own_nodes, own_redis},
    shared_sentinel::undisturbed,
    shared_stores::{CLUSTER, MASTER, NODES, REDIS, SENTINELS},
};

#[tokio::main]
async fn main() {
    let only_cluster = std::env::args().any(|arg| arg == "cluster");
    let options = ClusterOptions::default();
    let masters = options.masters;
    let cluster = ClusterDeployment::start(options).await;
    print(CLUSTER, (0..masters).map(|index| cluster.addr(index)));
    let mut sentinels = None;
    if !only_cluster {
        print(REDIS, [own_redis()]);
        print(NODES, own_nodes());
        let all = sentinels.insert(SentinelDeployment::start(undisturbed()).await);
        print(SENTINELS, all.sentinel_addrs());
        print(MASTER, [all.addr(0)]);
        println!("ready");
    }
    let ended = tokio::task::spawn_blocking(|| stdin().read_to_end(&mut Vec::new()));
    // An error of the input is an end, too.
    let _ = ended.await;
}

fn print(variable: &str, addrs: impl IntoIterator<Item = SocketAddr>) {
    let addrs = addrs.into_iter().map(|addr| addr.to_string());
    println!("{variable}={}", addrs.collect::<Vec<_>>().join(" "));
}
