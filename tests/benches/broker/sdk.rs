//! The Rust client compared with raw stubs, and memory and CPU of its guards, as tables.

pub(crate) mod callers;
mod guards;
mod table;

use std::{collections::BTreeMap, time::Duration};

use self::guards::HeldGuards;
pub(crate) use self::guards::{ARGUMENT, hold_guards};
use crate::{grpc, pairs::Sample, streams::calls, targets::Targets};

/// Number and length of the measurements.
pub(crate) struct Extent {
    rounds: usize,
    callers: &'static [usize],
    guards: &'static [usize],
    window: Duration,
}

/// Extent of a run without `--quick`.
pub(crate) const FULL: Extent = Extent {
    rounds: 5,
    callers: &[1, 64, 256],
    guards: &[0, 1_000, 10_000],
    window: Duration::from_secs(30),
};

/// Extent that tests within half a minute that everything works. The figures mean little.
pub(crate) const QUICK: Extent = Extent {
    rounds: 1,
    callers: &[1, 64],
    guards: &[0, 1_500],
    window: Duration::from_secs(2),
};

/// API by which locks are acquired and released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallPath {
    Unary,
    Stream,
    Client,
}

/// Results of the rounds, and of a process for each number of guards, displayed as tables.
pub(crate) struct Sdk {
    rounds: usize,
    pairs: BTreeMap<(usize, CallPath), Vec<Sample>>,
    kept: Vec<HeldGuards>,
}

/// Measures in interleaved rounds, so that a slow period of the machine affects all APIs equally.
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
                (CallPath::Unary, grpc::pairs(broker, callers).await),
                (CallPath::Stream, calls::pairs(broker, callers).await),
                (CallPath::Client, callers::pairs(broker, callers).await),
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
