//! The broker on every topology of Redis beside one node, as a table.

mod sites;
mod table;

use std::collections::BTreeMap;

use self::sites::{Idle, Sites};
use crate::{grpc, pairs::Sample};

const CALLERS: [usize; 2] = [1, 64];

/// How the store is run, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topology {
    Node,
    Tls,
    Sentinel,
    /// Each grant waits until a replica has it.
    SentinelWaits,
    Cluster,
    RedLock,
}

/// The rounds; shown, they are a table.
pub(crate) struct Topologies {
    rounds: usize,
    idle: Idle,
    pairs: BTreeMap<(usize, Topology), Vec<Sample>>,
}

/// Rounds are interleaved, and no topology always follows the same other one.
pub(crate) async fn measure(rounds: usize) -> Topologies {
    let mut sites = Sites::start().await;
    let idle = sites.idle().await;
    let mut pairs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for _ in 0..rounds {
        for callers in CALLERS {
            for (topology, broker) in sites.brokers() {
                let sample = grpc::pairs(broker, callers).await;
                pairs.entry((callers, topology)).or_default().push(sample);
            }
        }
        sites.rotate();
    }
    Topologies {
        rounds,
        idle,
        pairs,
    }
}
