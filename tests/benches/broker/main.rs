//! `make bench`: throughput and latency of the broker and of its parts, measured in one run, as
//! tables.
//!
//! The arguments `calls`, `streams`, `leases`, `sdk`, `topologies`, `listing`, `access`, `metrics`,
//! `capacity` and `peers` select parts. `--quick` measures less of each part. `--write` writes the
//! figures of `capacity` and `peers` into the docs.
//!
//! Every part runs in a separate process, as in production: this load generator, the broker (or a
//! bare gRPC echo server in its place) and Redis. The processes share the cores of one machine, so
//! only the ratios apply to other machines.

#![expect(clippy::print_stdout, reason = "its output is the tables")]

mod access;
mod capacity;
mod echo;
mod grpc;
mod hand_off;
mod listing;
mod metrics;
mod modes;
mod pages;
mod pairs;
mod peers;
mod report;
mod scripts;
mod sdk;
mod site;
mod streams;
mod targets;
mod topologies;

use std::time::Duration;

use crate::modes::Modes;
use crate::report::{HandOffs, Pairs, Report};
use crate::targets::Targets;

const CALLERS: [usize; 3] = [1, 64, 256];
const PAIR_ROUNDS: usize = 5;
/// Many rounds, because authentication costs less than the machine's speed varies.
const ACCESS_ROUNDS: usize = 11;
const METRIC_ROUNDS: usize = 60;
const HAND_OFF_ROUNDS: usize = 3;
const MODE_ROUNDS: usize = 3;
/// Time after which a part is considered to hang.
const PART_LIMIT: Duration = Duration::from_secs(420);
const CAPACITY_LIMIT: Duration = Duration::from_secs(1_200);
const PEERS_LIMIT: Duration = Duration::from_secs(7_200);
/// Parts by their names as arguments.
const PARTS: [(&str, Part); 10] = [
    ("calls", Part::Calls),
    ("streams", Part::Streams),
    ("leases", Part::Leases),
    ("sdk", Part::Sdk),
    ("topologies", Part::Topologies),
    ("listing", Part::Listing),
    ("access", Part::Access),
    ("metrics", Part::Metrics),
    ("capacity", Part::Capacity),
    ("peers", Part::Peers),
];

/// A part of the benchmark.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Unary calls, for each mode of locks.
    Calls,
    /// Calls on lease streams.
    Streams,
    /// Idle leases on streams.
    Leases,
    /// Calls of the Rust client.
    Sdk,
    /// Unary calls on every topology of Redis.
    Topologies,
    /// Unary calls while another client lists many locks.
    Listing,
    /// Unary calls of authenticated callers.
    Access,
    /// Unary calls to brokers with and without metrics.
    Metrics,
    /// Costs of single operations, and of many leases.
    Capacity,
    /// Other lock systems in the same scenarios.
    Peers,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let has = |argument: &str| std::env::args().any(|given| given == argument);
    if has(echo::ARGUMENT) {
        runtime.block_on(echo::serve());
        return;
    }
    if has(peers::ARGUMENT) {
        runtime.block_on(peers::run(std::env::args()));
        return;
    }
    if has(sdk::ARGUMENT) {
        runtime.block_on(sdk::hold_guards(std::env::args()));
        return;
    }
    let is_quick = has("--quick");
    let has_none = !PARTS.iter().any(|(name, _)| has(name));
    for (name, part) in PARTS {
        if has_none || has(name) {
            println!(
                "{}",
                runtime.block_on(limited(part, part.measure(is_quick)))
            );
        }
    }
}

impl Part {
    /// Measures the part and returns its tables.
    async fn measure(self, is_quick: bool) -> String {
        let extent = if is_quick {
            streams::QUICK
        } else {
            streams::FULL
        };
        match self {
            Self::Calls => {
                let (report, modes) = measure_calls(is_quick).await;
                format!("{report}\n{modes}")
            }
            Self::Streams => streams::measure(&extent).await.to_string(),
            Self::Leases => streams::measure_leases(&extent).await.to_string(),
            Self::Sdk if is_quick => sdk::measure(&sdk::QUICK).await.to_string(),
            Self::Sdk => sdk::measure(&sdk::FULL).await.to_string(),
            Self::Topologies => {
                let rounds = if is_quick { 1 } else { PAIR_ROUNDS };
                topologies::measure(rounds).await.to_string()
            }
            Self::Listing if is_quick => listing::measure(&listing::QUICK).await.to_string(),
            Self::Listing => listing::measure(&listing::FULL).await.to_string(),
            Self::Access => {
                let rounds = if is_quick { 1 } else { ACCESS_ROUNDS };
                access::measure(rounds).await.to_string()
            }
            Self::Capacity => capacity::part(is_quick).await,
            Self::Peers => peers::part(is_quick).await,
            Self::Metrics => {
                let rounds = if is_quick { 1 } else { METRIC_ROUNDS };
                metrics::measure(rounds).await.to_string()
            }
        }
    }
}

async fn limited<T>(part: Part, measured: impl Future<Output = T>) -> T {
    let limit = if matches!(part, Part::Peers) {
        PEERS_LIMIT
    } else if matches!(part, Part::Capacity) {
        CAPACITY_LIMIT
    } else {
        PART_LIMIT
    };
    tokio::time::timeout(limit, measured)
        .await
        .expect("it ends")
}

/// Measures in interleaved rounds, so that a slow period of the machine affects every target
/// equally.
async fn measure_calls(is_quick: bool) -> (Report, Modes) {
    let at_most = |rounds: usize| if is_quick { 1 } else { rounds };
    let [pair_rounds, hand_off_rounds, mode_rounds] =
        [PAIR_ROUNDS, HAND_OFF_ROUNDS, MODE_ROUNDS].map(at_most);
    let targets = Targets::start().await;
    let mut report = Report::new(pair_rounds, hand_off_rounds);
    for _ in 0..pair_rounds {
        for callers in CALLERS {
            report.pairs(
                Pairs::Memory,
                callers,
                grpc::pairs(targets.memory(), callers).await,
            );
            report.pairs(
                Pairs::Redis,
                callers,
                grpc::pairs(targets.redis(), callers).await,
            );
            report.pairs(
                Pairs::Scripts,
                callers,
                scripts::pairs(targets.scripts(), callers).await,
            );
            report.pairs(
                Pairs::Echo,
                callers,
                grpc::pairs(targets.echo(), callers).await,
            );
        }
    }
    for round in 0..hand_off_rounds {
        let [one, other] = [targets.redis(), targets.second_redis()];
        let memory = hand_off::run(&[targets.memory()], round).await;
        report.hand_offs(HandOffs::Memory, memory);
        report.hand_offs(HandOffs::Redis, hand_off::run(&[one], round).await);
        report.hand_offs(
            HandOffs::TwoBrokers,
            hand_off::run(&[one, other], 1000 + round).await,
        );
    }
    let mut modes = Modes::default();
    for _ in 0..mode_rounds {
        modes.round(targets.redis()).await;
    }
    (report, modes)
}
