//! The broker on every topology of Redis compared with one node, as a table.

mod sites;
mod table;

use std::collections::BTreeMap;

use self::sites::Sites;
use crate::{grpc, pairs::Sample};

const CALLERS: [usize; 2] = [1, 64];

/// Topology of the store, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topology {
    Node,
    Tls,
    Sentinel,
    /// Sentinel with a replication barrier: each grant waits until a replica has it.
    SentinelWaits,
    Cluster,
    RedLock,
}

/// Results of the rounds, displayed as a table.
pub(crate) struct Topologies {
    rounds: usize,
    pairs: BTreeMap<(usize, Topology), Vec<Sample>>,
}

/// Measures in interleaved rounds that begin with different topologies.
pub(crate) async fn measure(rounds: usize) -> Topologies {
    let sites = Sites::start().await;
    let mut all: Vec<_> = sites.topologies().collect();
    let mut pairs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for _ in 0..rounds {
        for &topology in &all {
            let broker = sites.go_on(topology).await;
            for callers in CALLERS {
                let sample = grpc::pairs(broker, callers).await;
                pairs.entry((callers, topology)).or_default().push(sample);
            }
            sites.stop(topology).await;
        }
        all.rotate_left(1);
    }
    Topologies { rounds, pairs }
}
