//! A Redis Cluster for all tests of a process: runs until that process has ended.
//!
//! Prints the addresses of its masters once it serves, and ends when its input does.

#![expect(
    clippy::print_stdout,
    reason = "who started it reads the addresses there"
)]

use std::io::{Read as _, stdin};

use leasehold_tests::cluster::{ClusterDeployment, ClusterOptions};

#[tokio::main]
async fn main() {
    let options = ClusterOptions::default();
    let masters = options.masters;
    let cluster = ClusterDeployment::start(options).await;
    let addrs = (0..masters).map(|index| cluster.addr(index).to_string());
    println!("{}", addrs.collect::<Vec<_>>().join(" "));
    let ended = tokio::task::spawn_blocking(|| stdin().read_to_end(&mut Vec::new()));
    // However it ends, it has ended.
    let _ = ended.await;
}
