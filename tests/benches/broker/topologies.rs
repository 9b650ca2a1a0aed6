//! The broker on every topology of Redis beside one node, as a table.

mod sites;
mod table;

use std::collections::BTreeMap;

use self::sites::Sites;
use crate::{grpc, pairs::Sample};

const CALLERS: [usize; 2] = [1, CALLERS_MAX];
const CALLERS_MAX: usize = 64;

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
    pairs: BTreeMap<(usize, Topology), Vec<Sample>>,
}

/// Rounds are interleaved, and no topology is the first of all of them.
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
