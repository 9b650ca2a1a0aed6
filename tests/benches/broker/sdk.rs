//! The Rust client beside raw stubs, and what its guards occupy and cost, as tables.

pub(crate) mod callers;
mod guards;
mod table;

use std::{collections::BTreeMap, time::Duration};

use self::guards::Kept;
pub(crate) use self::guards::{ARGUMENT, hold_guards};
use crate::{grpc, pairs::Sample, streams::calls, targets::Targets};

/// How much is measured.
pub(crate) struct Extent {
    rounds: usize,
    callers: &'static [usize],
    guards: &'static [usize],
    window: Duration,
}

/// What tables are made of.
pub(crate) const FULL: Extent = Extent {
    rounds: 5,
    callers: &[1, 64, 256],
    guards: &[0, 1_000, 10_000],
    window: Duration::from_secs(30),
};

/// Shows within half a minute that everything works; the figures mean little.
pub(crate) const QUICK: Extent = Extent {
    rounds: 1,
    callers: &[1, 64],
    guards: &[0, 1_500],
    window: Duration::from_secs(2),
};

/// How locks are taken and given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Unary,
    Stream,
    Client,
}

/// The rounds, and a process for each count of guards; shown, they are tables.
pub(crate) struct Sdk {
    rounds: usize,
    pairs: BTreeMap<(usize, By), Vec<Sample>>,
    kept: Vec<Kept>,
}

/// Rounds are interleaved, so that a slow moment of the machine meets everybody alike.
pub(crate) async fn measure(extent: &Extent) -> Sdk {
    let mut sdk = Sdk {
        rounds: extent.rounds,
        pairs: BTreeMap::new(),
        kept: Vec::new(),
    };
    let targets = Targets::start().await;
    let broker = targets.redis();
    for _ in 0..extent.rounds {
        for &callers in extent.callers {
            let rounds = [
                (By::Unary, grpc::pairs(broker, callers).await),
                (By::Stream, calls::pairs(broker, callers).await),
                (By::Client, callers::pairs(broker, callers).await),
            ];
            for (by, sample) in rounds {
                sdk.pairs.entry((callers, by)).or_default().push(sample);
            }
        }
    }
    for &guards in extent.guards {
        sdk.kept
            .push(guards::measure(broker, guards, extent.window).await);
    }
    sdk
}
